"""Row selections and element transforms equal NumPy's, block by block, without reading whole tensors."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from ninfer_jax.errors import RecipeError, SourceError
from ninfer_jax.recipes import (
    IntegerRows,
    RowSource,
    SourceRef,
    concat,
    deinterleave,
    gather_rows,
    reshape,
    slice_rows,
    squeeze,
    transpose,
    widen,
)
from ninfer_jax.sources import PositionedFile, open_checkpoint
from tests.checkpoints import write_checkpoint


class ArrayRows:
    """Rows of an array, which remember the largest block that was read."""

    def __init__(self, array: np.ndarray, dtype: str, name: str = "t"):
        self.array, self.dtype, self.name = array, dtype, name
        self.shape: tuple[int, ...] = array.shape
        self.sources = (SourceRef(name, "f"),)
        self.largest = 0

    def read(self, start: int, stop: int) -> np.ndarray:
        assert 0 <= start <= stop <= (self.shape[0] if self.shape else 1)
        self.largest = max(self.largest, stop - start)
        return self.array[start:stop] if self.shape else self.array.reshape(1)


def rows_of(shape: tuple[int, ...], seed: int = 0, name: str = "t") -> ArrayRows:
    return ArrayRows(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), "F32", name)


def assert_rows(rows: RowSource, expected: np.ndarray, step: int = 3) -> None:
    assert rows.shape == expected.shape
    count = expected.shape[0] if expected.ndim else 1
    blocks = [rows.read(start, min(start + step, count)) for start in range(0, count, step)]
    np.testing.assert_array_equal(np.concatenate(blocks), expected.reshape(count, *expected.shape[1:]))
    assert rows.read(0, 0).shape[0] == 0


def test_concat_spans_its_parts():
    parts = [rows_of((n, 5), n, f"t{n}") for n in (4, 1, 7)]
    joined = concat(*parts)
    assert_rows(joined, np.concatenate([part.array for part in parts]))
    assert [ref.tensor for ref in joined.sources] == ["t4", "t1", "t7"]
    assert max(part.largest for part in parts) <= 3


def test_deinterleave_splits_query_and_gate():
    heads, size = 3, 4
    rows = rows_of((heads * 2 * size, 5))
    split = rows.array.reshape(heads, 2, size, 5)
    for part in (0, 1):
        assert_rows(deinterleave(rows, heads, part, 2), split[:, part].reshape(-1, 5))


def test_slice_and_nesting():
    rows = rows_of((24, 5))
    nested = concat(slice_rows(deinterleave(rows, 3, 1, 2), 2, 9), slice_rows(rows, 20, 24))
    gate = rows.array.reshape(3, 2, 4, 5)[:, 1].reshape(-1, 5)
    assert_rows(nested, np.concatenate([gate[2:9], rows.array[20:]]))
    assert [ref.tensor for ref in nested.sources] == ["t"]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 7))
def test_gather_follows_any_list(ids, step):
    rows = rows_of((10, 3))
    assert_rows(gather_rows(rows, np.array(ids)), rows.array[ids], step)


def test_gather_reads_runs_together():
    rows = rows_of((100, 2))
    gather_rows(rows, np.arange(40, 80)).read(0, 40)
    assert rows.largest == 40


@given(st.sampled_from([(12, 5, 2), (3, 40), (120,), (1, 120), (8, 1, 15), (5, 4, 3, 2)]), st.integers(1, 5))
def test_reshape_of_any_rank(shape, step):
    rows = rows_of((5, 6, 4))
    assert_rows(reshape(rows, shape), rows.array.reshape(shape), step)
    block_elements = min(step, shape[0]) * (120 // shape[0])
    assert rows.largest <= block_elements // 24 + 2


@given(st.permutations(range(3)), st.integers(1, 4))
def test_transpose_of_any_axes(axes, step):
    rows = rows_of((5, 6, 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ninfer_jax.recipes.elements.TRANSPOSE_BLOCK_BYTES", 2 * 6 * 4 * 4)
        assert_rows(transpose(rows, axes), rows.array.transpose(axes), step)
    assert rows.largest <= max(2, step)


def test_transpose_reads_in_bounded_steps(monkeypatch):
    monkeypatch.setattr("ninfer_jax.recipes.elements.TRANSPOSE_BLOCK_BYTES", 16 * 5 * 4)
    rows = rows_of((100, 5))
    assert_rows(transpose(rows, (1, 0)), rows.array.T, 2)
    assert rows.largest == 16


def test_a_transpose_never_holds_its_input(monkeypatch):
    monkeypatch.setattr("ninfer_jax.recipes.elements.TRANSPOSE_BLOCK_BYTES", 1 << 16)
    array = np.random.default_rng(0).standard_normal((2048, 512)).astype(np.float32)

    class Copies(ArrayRows):
        def read(self, start: int, stop: int) -> np.ndarray:
            return super().read(start, stop).copy()

    rows = transpose(Copies(array, "F32"), (1, 0))
    tracemalloc.start()
    try:
        block = rows.read(100, 104)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(block, array.T[100:104])
    assert peak < array.nbytes // 8


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_a_stored_tensor_is_read_by_its_new_rows(tmp_path, monkeypatch, dtype):
    array = np.arange(24 * 10).reshape(1, 24, 10).astype(dtype)
    write_checkpoint(tmp_path, {"before": np.zeros(3, np.int8), "a": array})
    asked, whole = [], PositionedFile.read
    monkeypatch.setattr(PositionedFile, "read", lambda self, at, n: asked.append(n) or whole(self, at, n))
    with open_checkpoint(tmp_path) as checkpoint:
        for rows, expected in (
            (squeeze(checkpoint["a"], 0), array[0]),
            (reshape(checkpoint["a"], (8, 5, 6)), array.reshape(8, 5, 6)),
            (reshape(squeeze(checkpoint["a"], 0), (240,)), array.reshape(240)),
        ):
            assert_rows(rows, expected, 1)
            asked.clear()
            rows.read(2, 4)
            assert asked == [expected[2:4].nbytes]
            assert repr(rows) != repr(checkpoint["a"])


def test_the_convolution_of_the_qwen_recipe():
    rows = rows_of((10, 1, 4))
    assert_rows(transpose(squeeze(rows, 1), [1, 0]), rows.array[:, 0].T)


def test_scalars_reshape():
    rows = ArrayRows(np.array(3, np.float32), "F32")
    assert reshape(rows, (1, 1)).read(0, 1).tolist() == [[3.0]]


@pytest.mark.parametrize(("dtype", "name"), [(ml_dtypes.bfloat16, "BF16"), (np.float16, "F16")])
def test_widening_keeps_every_value(dtype, name):
    words = np.arange(65536, dtype=np.uint16)
    wide = widen(ArrayRows(words.view(dtype), name))
    assert wide.dtype == "F32"
    with np.errstate(invalid="ignore"):  # the comparison itself meets signaling NaNs
        found, expected = wide.read(0, 65536), words.view(dtype).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(found[~np.isnan(expected)].astype(np.float64), expected[~np.isnan(expected)])
    assert not np.any((found == 0) & (np.signbit(found) != np.signbit(words.view(dtype))))
    if name == "BF16":
        np.testing.assert_array_equal(found.view(np.uint32), words.astype(np.uint32) << 16)


def test_integer_rows():
    rows = IntegerRows(np.array([5, -1, 2**31 - 1]), "ids")
    assert (rows.dtype, rows.shape, rows.sources) == ("I32", (3,), ())
    assert rows.read(1, 3).tolist() == [-1, 2**31 - 1]
    with pytest.raises(RecipeError, match="outside the range"):
        IntegerRows(np.array([2**31]), "ids")


def test_equal_texts_mean_equal_selections():
    rows, ids = rows_of((5000, 1)), np.random.default_rng(0).permutation(5000)
    other = ids.copy()
    other[[2000, 2001]] = other[[2001, 2000]]
    assert repr(gather_rows(rows, ids)) == repr(gather_rows(rows, ids.copy()))
    assert repr(gather_rows(rows, ids)) != repr(gather_rows(rows, other))
    assert repr(IntegerRows(ids, "ids")) != repr(IntegerRows(other, "ids"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda a, b, c: concat(), "at least one part"),
        (lambda a, b, c: concat(a, b), "row shape or type differs"),
        (lambda a, b, c: concat(a, ArrayRows(np.zeros((2, 5), np.int32), "I32")), "row shape or type differs"),
        (lambda a, b, c: concat(c, c), "is a scalar"),
        (lambda a, b, c: slice_rows(a, 3, 7), "outside the 6 rows"),
        (lambda a, b, c: slice_rows(a, 3, 3), "outside the 6 rows"),
        (lambda a, b, c: deinterleave(a, 2, 2, 2), "does not divide"),
        (lambda a, b, c: deinterleave(a, 4, 0, 2), "does not divide"),
        (lambda a, b, c: gather_rows(a, np.array([0, 6])), r"id 6 \(position 1\)"),
        (lambda a, b, c: gather_rows(a, np.array([-1])), "id -1"),
        (lambda a, b, c: gather_rows(a, np.array([0.0])), "list of integers"),
        (lambda a, b, c: gather_rows(a, np.array([], np.int64)), "is empty"),
        (lambda a, b, c: reshape(a, (4, 7)), "number of elements"),
        (lambda a, b, c: reshape(a, (0, 5)), "number of elements"),
        (lambda a, b, c: squeeze(a, 0), "must be 1"),
        (lambda a, b, c: squeeze(a, 2), "must be 1"),
        (lambda a, b, c: transpose(a, (0, 0)), "no permutation"),
        (lambda a, b, c: widen(ArrayRows(np.zeros(2), "F64")), "BF16, F16 or F32"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(RecipeError, match=message):
        make(rows_of((6, 5)), rows_of((6, 4)), ArrayRows(np.zeros(()), "F32"))


def test_reads_outside_a_selection():
    with pytest.raises(SourceError, match=r"rows \[0, 7\)"):
        concat(rows_of((6, 5))).read(0, 7)
