"""Embedding rows, whole dequantization, splitting of fused parents, and the ragged product over experts."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from ninfer_jax.errors import LayoutError, UnsupportedError
from ninfer_jax.ops import dequantize, grouped_matmul, matmul, split, take_rows
from tests.ops.test_transformations import stack
from tests.ops.weights import FORMATS, activations, exact, random_weight, relative_l2, temporary_bytes

IDS = np.array([[0, 5, 127], [-1, 64, 5]])
OUTSIDE = np.array([-129, 128, 300, -1])


def bits(values: jax.Array | np.ndarray) -> np.ndarray:
    """The binary32 words of float32 values."""
    return np.asarray(values).view(np.uint32)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_are_bit_exact(format: str) -> None:
    w = random_weight(format, 256, 192)
    values = exact(w).astype(np.float32)
    np.testing.assert_array_equal(bits(dequantize(w)), bits(values))
    np.testing.assert_array_equal(bits(jax.jit(take_rows)(w, IDS)), bits(values[IDS]))
    rows = take_rows(w, IDS[0], jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(rows), values[IDS[0]].astype(rows.dtype))


@pytest.mark.parametrize("mode", ["fill", "clip", "wrap", None])
def test_modes_are_those_of_take(mode: str | None) -> None:
    w = random_weight("Q5G64_F16S", 128, 70)
    table = dequantize(w)
    expected = jnp.take(table, OUTSIDE, axis=0, mode=mode)
    np.testing.assert_array_equal(np.asarray(take_rows(w, OUTSIDE, mode=mode)), np.asarray(expected))
    if mode in ("fill", None):
        filled = jnp.take(table, OUTSIDE, axis=0, mode=mode, fill_value=-2.5)
        np.testing.assert_array_equal(np.asarray(take_rows(w, OUTSIDE, mode=mode, fill_value=-2.5)), np.asarray(filled))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("mode", ["fill", "clip", "wrap"])
def test_row_numbers_of_any_integer_type(dtype: str, mode: str) -> None:
    # More rows than a byte counts: neither they nor their negative have a place in every type.
    n = 300
    w = random_weight("Q4G64_F16S", n, 64)
    info = jnp.iinfo(dtype)
    ids = np.array([0, 5, 100, info.max, max(info.min, -2)], dtype)
    wide = [int(one) for one in ids]
    values = exact(w).astype(np.float32)
    inside = [one + n if one < 0 and mode != "clip" else one for one in wide]
    expected = values[[one % n if mode == "wrap" else min(max(one, 0), n - 1) for one in inside]]
    if mode == "fill":
        expected[[not -n <= one < n for one in wide]] = np.nan
    rows = take_rows(w, ids, mode=mode)
    np.testing.assert_array_equal(np.asarray(rows), expected)


@pytest.mark.parametrize("format", FORMATS)
def test_no_row_numbers(format: str) -> None:
    w = random_weight(format, 128, 192)
    rows = jax.jit(take_rows)(w, np.zeros((2, 0), np.int32))
    assert (rows.shape, rows.dtype) == ((2, 0, 192), jnp.float32)


def test_only_the_rows_asked_for_are_dequantized() -> None:
    w = random_weight("Q6G64_F16S", 4096, 256)
    compiled = jax.jit(take_rows).lower(w, jax.ShapeDtypeStruct((8,), jnp.int32)).compile()
    assert temporary_bytes(compiled) < w.nbytes // 16


def test_take_rows_refusals() -> None:
    w = random_weight("Q4G64_F16S", 8, 64)
    with pytest.raises(UnsupportedError, match="allowed: 'fill'"):
        take_rows(w, IDS, mode="raise")
    with pytest.raises(LayoutError, match="map leading axes"):
        take_rows(stack(w, w), IDS)
    for convert in (lambda: take_rows(w, IDS, jnp.int8), lambda: dequantize(w, jnp.int8)):
        with pytest.raises(UnsupportedError, match="dtype int8: a float type is needed"):
            convert()


@pytest.mark.parametrize("format", FORMATS)
def test_split_concatenates_to_the_parent(format: str) -> None:
    w = random_weight(format, 384, 128)
    parts = split(w, (128, 256))
    assert [part.shape for part in parts] == [(128, 128), (256, 128)]
    assert all(part.to_payload().nbytes for part in parts)
    np.testing.assert_array_equal(np.concatenate([exact(part) for part in parts]), exact(w))
    x = activations(2, 128)
    joined = np.concatenate([np.asarray(matmul(x, part)) for part in parts], axis=1)
    assert relative_l2(joined, x @ exact(w).T) <= 1e-5


def test_split_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user, whom no annotation check guards
    with pytest.raises(LayoutError, match="adding to 8"):
        split(random_weight("Q4G64_F16S", 8, 64), (3, 4))
    with pytest.raises(LayoutError, match="multiples of 128"):
        split(random_weight("NVFP4", 256, 64), (100, 156))
    for sizes in (2, None, [3.5, 4.5]):
        with pytest.raises(LayoutError, match="give a list of integers"):
            split(random_weight("Q4G64_F16S", 8, 64), sizes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("format", FORMATS)
def test_grouped_matmul_is_ragged_dot(format: str) -> None:
    experts = [random_weight(format, 128, 192, seed) for seed in range(4)]
    bank, sizes = stack(*experts), jnp.array([3, 0, 13, 1])
    x = activations(19, 192)  # two rows behind the last group
    dense = np.stack([exact(w) for w in experts])
    owner = np.repeat(np.arange(4), sizes)
    reference = np.zeros((19, 128))
    reference[:17] = np.einsum("mk,mnk->mn", x[:17].astype(np.float64), dense[owner])
    y, pull = jax.vjp(lambda x: grouped_matmul(x, bank, sizes), jnp.asarray(x))
    assert relative_l2(np.asarray(y), reference) <= 1e-5
    assert not np.asarray(y[17:]).any()
    gradient = np.zeros((19, 192))
    gradient[:17] = np.einsum("mn,mnk->mk", reference[:17], dense[owner])
    assert relative_l2(np.asarray(pull(jnp.asarray(reference, jnp.float32))[0]), gradient) <= 1e-5


def test_grouped_matmul_of_one_row_and_under_jit() -> None:
    experts = [random_weight("Q4G64_F16S", 24, 64, seed) for seed in range(3)]
    x = activations(1, 64)
    for expert in range(3):
        sizes = np.eye(3, dtype=np.int32)[expert]
        y = jax.jit(grouped_matmul)(x, stack(*experts), sizes)
        assert relative_l2(np.asarray(y), x @ exact(experts[expert]).T) <= 1e-5
    with pytest.raises(LayoutError, match="do not fit"):
        grouped_matmul(x, experts[0], np.ones(3, np.int32))
