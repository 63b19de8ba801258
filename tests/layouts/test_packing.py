"""Words to planes and back against the golden payloads, eager and under jit, for every format."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.errors import FormatError, LayoutError
from ninfer_jax.formats import FORMATS
from ninfer_jax.layouts import (
    pack,
    payload_to_planes,
    planes_to_payload,
    swizzle_scales,
    unpack,
    unswizzle_scales,
)
from ninfer_jax.words import GroupedWords, NVFP4Words, RowScaledWords
from tests import golden_cases
from tests.layouts.samples import (
    CASES,
    assert_same,
    columns,
    golden_words,
    oracle_words,
    pack_jit,
    pack_unpack_jit,
    random_words,
    small_shape,
)
from tests.oracle import layouts as oracle

GROUPED = golden_cases.GROUPED_FORMATS
QUANTIZED = (*GROUPED, "NVFP4", "FP8_E4M3FN_ROW_BF16S")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_golden_payloads_eager(case):
    words = golden_words(case)
    payload = planes_to_payload(pack(words, case.format), case.format, case.shape)
    np.testing.assert_array_equal(payload, case["payload"], strict=True)
    planes = payload_to_planes(case["payload"], case.format, case.shape)
    assert_same(unpack(planes, case.format, columns(case)), words)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_golden_payloads_jit(case):
    words = golden_words(case)
    planes, back = pack_unpack_jit(words, case.format, columns(case))
    payload = planes_to_payload(planes, case.format, case.shape)
    np.testing.assert_array_equal(payload, case["payload"], strict=True)
    assert_same(back, words)


@pytest.mark.parametrize(
    ("name", "codes", "base", "high"),
    [
        ("Q4G64_F16S", (-8, -7, -1, 0, 1, 7), "98 0f 71", ""),
        ("Q5G64_F16S", (-16, -15, -1, 0, 1, 15), "10 0f f1", "07"),
        ("Q6G64_F16S", (-32, -31, -17, -16, -1, 0, 15, 31), "10 0f 0f ff", "ea 43"),
        ("W8G32_F16S", (-127, -1, 0, 1, 127), "81 ff 00 01 7f", ""),
    ],
)
def test_worked_bytes(name, codes, base, high):
    words = GroupedWords(np.array([codes], np.int8), np.array([[0x3C00]], np.uint16))
    planes = pack(words, name)
    for plane, text in ((planes.base, base), (planes.high, high)):
        if text:
            wanted = bytes.fromhex(text)
            given = np.asarray(plane).tobytes()
            assert given[: len(wanted)] == wanted
            assert not any(given[len(wanted) :])
    assert (planes.high is None) == (not high)


@pytest.mark.parametrize("name", GROUPED)
def test_padding_is_zero(name):
    """Codes and scales of all one bits: whatever is zero in the planes is padding."""
    groups = 3 if name == "W8G32_F16S" else 2
    words = GroupedWords(np.full((3, 65), -1, np.int8), np.full((3, groups), 0xFFFF, np.uint16))
    planes: Any = pack_jit(words, name)
    codes = unpack(planes, name, 128).codes
    assert (np.asarray(codes)[:, :65] == -1).all()
    assert not np.asarray(codes)[:, 65:].any()
    scales = np.asarray(planes.scales)
    assert (scales[:, :groups] == 0xFFFF).all()
    assert not scales[:, groups:].any()
    payload = planes_to_payload(planes, name, (3, 65))
    assert payload.tobytes() == oracle.pack(oracle_words(words), name)


@pytest.mark.parametrize("name", QUANTIZED)
def test_leading_axes_and_vmap(name):
    shape = (2, 3, *small_shape(name))
    words = random_words(name, shape)
    planes, back = pack_unpack_jit(words, name, shape[-1])
    mapped = jax.vmap(jax.vmap(lambda one: pack_unpack_jit(one, name, shape[-1])))(words)
    assert_same(mapped, (planes, words))
    assert_same(back, words)
    for i, j in ((0, 0), (1, 2)):
        one = jax.tree.map(lambda leaf, i=i, j=j: np.asarray(leaf)[i, j], planes)
        expected = oracle.pack(tuple(part[i, j] for part in oracle_words(words)), name)
        assert planes_to_payload(one, name, shape[-2:]).tobytes() == expected


@pytest.mark.parametrize("name", QUANTIZED)
def test_large_matrices(name):
    """Large enough for the vectorised and threaded loops of the compiler, which small golden cases never enter."""
    shape = (512, 1024) if name == "NVFP4" else (515, 1000)
    words = random_words(name, shape)
    planes, back = pack_unpack_jit(words, name, shape[-1])
    assert planes_to_payload(planes, name, shape).tobytes() == oracle.pack(oracle_words(words), name)
    assert_same(back, words)


@pytest.mark.parametrize("name", FORMATS)
def test_abstract_evaluation(name):
    """Planes are pytrees of any leaves: shapes pass through eval_shape and lowering, where nothing is an array."""
    shape = small_shape(name)
    words = random_words(name, shape)
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), words)
    planes = jax.eval_shape(lambda w: pack(w, name), abstract)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), planes) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), pack_jit(words, name)
    )
    assert jax.jit(lambda w: pack(w, name)).lower(abstract).out_tree == jax.tree.structure(planes)


def test_swizzle_offsets():
    words = np.arange(256 * 8, dtype=np.int32).reshape(256, 8)
    stored = np.asarray(swizzle_scales(words)).reshape(-1)
    for (n, g), offset in {(0, 0): 0, (31, 3): 499, (32, 0): 4, (127, 3): 511}.items():
        assert stored[offset] == words[n, g]
    np.testing.assert_array_equal(stored[oracle.swizzle(256, 128)], words)
    np.testing.assert_array_equal(unswizzle_scales(swizzle_scales(words)), words)
    np.testing.assert_array_equal(jax.jit(swizzle_scales)(words).reshape(-1), stored)
    np.testing.assert_array_equal(jax.jit(lambda w: unswizzle_scales(swizzle_scales(w)))(words), words)


@pytest.mark.parametrize("shape", [(127, 4), (128, 3), (0, 4), (128,)])
def test_swizzle_refuses_partial_tiles(shape):
    with pytest.raises(LayoutError, match="N % 128 == 0 and K % 64 == 0"):
        getattr(swizzle_scales, "__wrapped__", swizzle_scales)(np.zeros(shape, np.uint8))


def test_unswizzle_refuses_other_shapes():
    """Called as users call it, without the annotation checks of the test run."""
    unchecked = getattr(unswizzle_scales, "__wrapped__", unswizzle_scales)
    for shape in ((1, 1, 32, 16), (1, 1, 32, 2, 8)):
        with pytest.raises(LayoutError, match="32, 4, 4"):
            unchecked(np.zeros(shape, np.uint8))


def _grouped(codes_shape, scales_shape, codes: type = np.int8, scales: type = np.uint16):
    return GroupedWords(np.zeros(codes_shape, codes), np.zeros(scales_shape, scales))


@pytest.mark.parametrize(
    ("words", "name", "message"),
    [
        (_grouped((1, 64), (1, 1), codes=np.int16), "Q4G64_F16S", "codes must be int8 words, not int16"),
        (_grouped((1, 64), (1, 1), scales=np.float16), "Q4G64_F16S", "scales must be uint16 words, not float16"),
        (_grouped((64,), (1,)), "Q4G64_F16S", r"reshape to \[1, K\]"),
        (_grouped((2, 65), (2, 1)), "Q4G64_F16S", r"need scales of shape \(2, 2\)"),
        (np.zeros((3,), np.float32), "FP32", "must be uint32 words, not float32"),
        (
            RowScaledWords(np.zeros((2, 3), np.uint8), np.zeros((3,), np.uint16)),
            "FP8_E4M3FN_ROW_BF16S",
            "codes of shape",
        ),
        (
            NVFP4Words(np.zeros((64, 64), np.uint8), np.zeros((64, 4), np.uint8), np.ones((), np.uint32)),
            "NVFP4",
            "N % 128 == 0",
        ),
        (
            NVFP4Words(np.zeros((128, 64), np.uint8), np.zeros((128, 8), np.uint8), np.ones((), np.uint32)),
            "NVFP4",
            "need scales of shape",
        ),
    ],
)
def test_pack_refusals(words, name, message):
    with pytest.raises(LayoutError, match=message):
        pack(words, name)


def test_words_and_planes_of_another_kind():
    words = random_words("Q4G64_F16S", (2, 64))
    for value, function in ((words, pack), (pack(words, "Q4G64_F16S"), unpack)):
        for name in ("NVFP4", "FP8_E4M3FN_ROW_BF16S", "BF16"):
            with pytest.raises(FormatError, match=f"of {name} are"):
                function(value, name)
    with pytest.raises(FormatError, match="words of Q4G64_F16S are GroupedWords, not ndarray"):
        pack(words.codes, "Q4G64_F16S")
    door: Any = getattr(pack, "__wrapped__", pack)
    with pytest.raises(FormatError, match="words of BF16 are one bare array, not list"):
        door([1, 2], "BF16")
    with pytest.raises(LayoutError, match="scales must be uint16 words, not NoneType"):
        pack(words._replace(scales=None), "Q4G64_F16S")


@pytest.mark.parametrize(("stored", "read"), [("Q4G64_F16S", "Q5G64_F16S"), ("Q6G64_F16S", "Q4G64_F16S")])
def test_unpack_refuses_planes_of_another_grouped_format(stored, read):
    planes = pack(random_words(stored, (2, 130)), stored)
    with pytest.raises(LayoutError, match="planes of another format"):
        unpack(planes, read, 130)


@pytest.mark.parametrize("name", ["Q4G64_F16S", "Q6G64_F16S", "W8G32_F16S", "NVFP4", "FP8_E4M3FN_ROW_BF16S"])
def test_unpack_refuses_planes_that_do_not_belong_together(name):
    """Each plane in turn of another dtype or with another number of rows; nothing is decoded from such."""
    planes = pack(random_words(name, small_shape(name)), name)
    for field, plane in planes._asdict().items():
        if plane is None:
            continue
        for dtype in (np.int8, np.float32):
            with pytest.raises(LayoutError, match=rf"{name}: .*{field} must be uint\d+ words"):
                unpack(planes._replace(**{field: plane.astype(dtype)}), name, small_shape(name)[-1])
        shorter = plane[:-1] if plane.ndim else np.zeros(1, np.uint32)
        with pytest.raises(LayoutError, match=r"the other planes need|N % 128 == 0|codes of shape"):
            unpack(planes._replace(**{field: shorter}), name, small_shape(name)[-1])


@pytest.mark.parametrize("shape", [(0, 64), (2, 0)])
@pytest.mark.parametrize("name", ["Q5G64_F16S", "FP8_E4M3FN_ROW_BF16S", "NVFP4"])
def test_pack_refuses_empty_matrices(name, shape):
    with pytest.raises(LayoutError, match=r"N, K > 0|N % 128 == 0"):
        pack(random_words(name, shape), name)


@pytest.mark.parametrize(
    ("name", "k"), [("Q4G64_F16S", None), ("Q4G64_F16S", 129), ("Q4G64_F16S", 257), ("NVFP4", 64), ("BF16", 5)]
)
def test_unpack_refuses_other_columns(name, k):
    shape = (2, 130) if name == "Q4G64_F16S" else small_shape(name)
    planes = pack(random_words(name, shape), name)
    if (name, k) == ("Q4G64_F16S", 129):  # 129 columns fit in the same 256; any other padded size does not
        assert unpack(planes, name, k).codes.shape == (2, 129)
    else:
        with pytest.raises(LayoutError, match=r"k = |columns"):
            unpack(planes, name, k)


def test_words_of_another_width_do_not_leak_into_neighbours():
    """A layout keeps the low bits of a code and does not check legality; neighbours stay intact."""
    codes = np.zeros((1, 64), np.int8)
    codes[0, 10] = 0x7F
    planes = pack(GroupedWords(codes, np.zeros((1, 1), np.uint16)), "Q5G64_F16S")
    out = np.asarray(unpack(planes, "Q5G64_F16S", 64).codes)
    assert out[0, 10] == -1
    assert np.count_nonzero(out) == 1


def test_illegal_w8_code_is_kept():
    words = GroupedWords(np.full((1, 32), -128, np.int8), np.zeros((1, 1), np.uint16))
    assert_same(unpack(pack(words, "W8G32_F16S"), "W8G32_F16S", 32), words)


@pytest.mark.parametrize("name", QUANTIZED)
def test_strict_promotion_changes_nothing(name):
    """Users who turn off the promotion of ranks and types can still pack and unpack."""
    words = random_words(name, small_shape(name))
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        planes, back = pack_unpack_jit(words, name, small_shape(name)[-1])
    assert_same(planes, pack(words, name))
    assert_same(back, words)


def test_x64_mode_changes_nothing():
    case = golden_cases.grouped_case("Q6G64_F16S", "normal_f32_5x127")
    with jax.enable_x64(True):
        planes = pack(golden_words(case), case.format)
        assert {leaf.dtype for leaf in jax.tree.leaves(planes)} == {jnp.dtype("uint8"), jnp.dtype("uint16")}
        payload = planes_to_payload(planes, case.format, case.shape)
    np.testing.assert_array_equal(payload, case["payload"])
