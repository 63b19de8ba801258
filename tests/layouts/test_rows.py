"""Row slices and gathers: never decoded, standalone again, equal to the golden selections (storage-layouts)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.errors import LayoutError
from ninfer_jax.formats import FORMATS
from ninfer_jax.layouts import (
    gather_rows,
    geometry,
    pack,
    payload_to_planes,
    plane_row_bytes,
    planes_to_payload,
    slice_rows,
)
from tests import golden_cases
from tests.layouts.samples import assert_same, oracle_words, random_words, small_shape
from tests.oracle import layouts as oracle


def _select(words, name, rows):
    """The words of the rows, chosen before packing: what every selection of planes has to equal."""
    if name == "NVFP4":
        return words._replace(codes=words.codes[rows], scales=words.scales[rows])
    return jax.tree.map(lambda leaf: leaf[rows], words)


@pytest.mark.parametrize("case", golden_cases.row_view_cases(), ids=lambda case: case.id)
@pytest.mark.parametrize("kind", ["numpy", "jax"])
def test_golden_row_views(case, kind):
    parent = golden_cases.grouped_case(case.format, "rows_parent")
    planes = payload_to_planes(parent["payload"], case.format, parent.shape)
    if kind == "jax":
        planes = jax.tree.map(jnp.asarray, planes)
    gathered = gather_rows(planes, case.format, list(case.rows))
    np.testing.assert_array_equal(planes_to_payload(gathered, case.format, case.shape), case["payload"])
    if case.name == "rows_consecutive":
        start, stop = case.rows[0], case.rows[-1] + 1
        sliced = slice_rows(planes, case.format, start, stop)
        np.testing.assert_array_equal(planes_to_payload(sliced, case.format, case.shape), case["payload"])
        spans = geometry(case.format, parent.shape).row_spans(start, stop)
        parts = [parent["payload"][span.offset : span.offset + span.nbytes] for span in spans]
        plan = geometry(case.format, case.shape)
        for plane, part in zip(plan.planes, parts, strict=True):
            np.testing.assert_array_equal(part, case["payload"][plane.offset : plane.offset + plane.nbytes])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["numpy", "jax", "jit"])
def test_gathered_rows_are_standalone(name, kind):
    shape = small_shape(name)
    words = random_words(name, shape)
    rng = np.random.default_rng(1)
    ids = rng.integers(0, shape[0], 128 if name == "NVFP4" else 4)
    planes = pack(words, name)
    if kind == "numpy":
        gathered = gather_rows(jax.tree.map(np.asarray, planes), name, ids)
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(gathered))
    elif kind == "jax":
        gathered = gather_rows(planes, name, jnp.asarray(ids))
    else:
        gathered = jax.jit(lambda p, i: gather_rows(p, name, i))(planes, ids)
    payload = planes_to_payload(gathered, name, (len(ids), *shape[1:]))
    assert payload.tobytes() == oracle.pack(oracle_words(_select(words, name, ids)), name)


@pytest.mark.parametrize("name", FORMATS)
def test_sliced_rows_are_views(name):
    shape = small_shape(name)
    words = random_words(name, shape)
    payload = planes_to_payload(pack(words, name), name, shape)
    planes = payload_to_planes(payload, name, shape)
    start, stop = (128, 256) if name == "NVFP4" else (2, 5)
    sliced = slice_rows(planes, name, start, stop)
    for leaf in jax.tree.leaves(sliced):
        assert np.shares_memory(leaf, payload)
    wanted = _select(words, name, slice(start, stop))
    assert planes_to_payload(sliced, name, (stop - start, *shape[1:])).tobytes() == oracle.pack(
        oracle_words(wanted), name
    )
    assert_same(slice_rows(jax.tree.map(jnp.asarray, planes), name, start, stop), sliced)


def test_unaligned_nvfp4_slice_is_repacked():
    words = random_words("NVFP4", (256, 64))
    sliced = slice_rows(pack(words, "NVFP4"), "NVFP4", 64, 192)
    wanted = _select(words, "NVFP4", slice(64, 192))
    assert planes_to_payload(sliced, "NVFP4", (128, 64)).tobytes() == oracle.pack(oracle_words(wanted), "NVFP4")


@pytest.mark.parametrize("name", FORMATS)
def test_row_blocks_written_at_their_spans_make_the_payload(name):
    """A writer that puts `plane_row_bytes` at `row_spans`, in any order, produces the payload."""
    shape = small_shape(name)
    words = random_words(name, shape)
    plan = geometry(name, shape)
    payload = np.zeros(plan.nbytes, np.uint8)
    step = plan.row_block if plan.row_block > 1 else 4
    for start in reversed(range(0, plan.rows, step)):
        stop = min(start + step, plan.rows)
        planes = pack(_select(words, name, slice(start, stop)), name)
        for span, part in zip(plan.row_spans(start, stop), plane_row_bytes(planes), strict=True):
            payload[span.offset : span.offset + span.nbytes] = part
    assert payload.tobytes() == oracle.pack(oracle_words(words), name)


def test_leading_axes_keep_their_rows_apart():
    words = random_words("Q5G64_F16S", (2, 6, 130))
    planes = pack(words, "Q5G64_F16S")
    gathered = gather_rows(planes, "Q5G64_F16S", [5, 1])
    assert_same(gathered, pack(jax.tree.map(lambda leaf: leaf[:, [5, 1]], words), "Q5G64_F16S"))
    assert_same(
        slice_rows(planes, "Q5G64_F16S", 1, 3), pack(jax.tree.map(lambda leaf: leaf[:, 1:3], words), "Q5G64_F16S")
    )


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 7), (3, 3)])
@pytest.mark.parametrize("name", ["BF16", "Q5G64_F16S", "FP8_E4M3FN_ROW_BF16S"])
def test_slice_refusals(name, start, stop):
    planes = pack(random_words(name, small_shape(name)), name)
    with pytest.raises(LayoutError, match="allowed 0 <= start < stop <= 6"):
        slice_rows(planes, name, start, stop)


@pytest.mark.parametrize("ids", [[], [6], [-1], np.array([[0]]), np.array([0.5])])
def test_gather_refusals(ids):
    planes = pack(random_words("Q4G64_F16S", (6, 130)), "Q4G64_F16S")
    with pytest.raises(LayoutError, match="row ids"):
        gather_rows(planes, "Q4G64_F16S", ids)


def test_row_ids_of_another_byte_order():
    planes = pack(random_words("Q4G64_F16S", (6, 130)), "Q4G64_F16S")
    assert_same(gather_rows(planes, "Q4G64_F16S", np.array([4, 1], ">i4")), gather_rows(planes, "Q4G64_F16S", [4, 1]))


def test_nvfp4_selection_needs_whole_tiles():
    planes = pack(random_words("NVFP4", (128, 64)), "NVFP4")
    with pytest.raises(LayoutError, match="multiple of 128"):
        gather_rows(planes, "NVFP4", [0, 1])
    with pytest.raises(LayoutError, match="multiple of 128"):
        slice_rows(planes, "NVFP4", 0, 100)


def test_scalars():
    word = np.array(0x3F80, np.uint16)
    assert_same(slice_rows(word, "BF16", 0, 1), word)
    with pytest.raises(LayoutError, match="scalar"):
        gather_rows(word, "BF16", [0])
