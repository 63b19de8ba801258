"""The unpackers of the decode kernel for every code word in every column, as PTX and as their twin, and the layouts."""

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import jax.numpy as jnp

from pallas_kernels.mosaic_gpu import _scales, _unpack
from pallas_kernels.mosaic_gpu._words import FmaPtxWords, JnpWords, PtxWords, lut3
from pallas_kernels.tiling import WEIGHT_KINDS, weight_kind
from tests.oracle import layouts
from tests.pallas_kernels import ptx
from tests.pallas_kernels.weights import FORMATS, planes_of

GROUPED = ("q4", "q5", "q6", "w8")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
#: Rows of a matrix in which every column meets every word of eight bits, and so of fewer.
ROWS, COLUMNS = 256, 128


def every_word(kind: str) -> tuple[Any, np.ndarray]:
    """Planes of a [256, 128] weight in which every column holds every code word, and the codes' exact values."""
    words = (np.arange(ROWS)[:, None] + 37 * np.arange(COLUMNS)) % 2 ** weight_kind(kind).code_bits
    if kind == "nvfp4":
        scales = ((np.arange(ROWS)[:, None] + 5 * np.arange(COLUMNS // 16)) % 127).astype(np.uint8)
        payload = layouts.pack((words.astype(np.uint8), scales, np.array(0x3F800000, np.uint32)), FORMATS[kind])
        return planes_of(kind, payload, ROWS, COLUMNS), E2M1[words] * np.repeat(E4M3[scales], 16, axis=1)
    if kind == "fp8":
        words[words & 0x7F == 0x7F] = 0x80
        payload = layouts.pack((words.astype(np.uint8), np.full(ROWS, 0x3F80, np.uint16)), FORMATS[kind])
        return planes_of(kind, payload, ROWS, COLUMNS), E4M3[words]
    bits = weight_kind(kind).code_bits
    codes = (words - (1 << (bits - 1))).astype(np.int64)
    codes[codes == -128] = 127
    scales = np.full((ROWS, COLUMNS // weight_kind(kind).group_size), 0x3C00, np.uint16)
    return planes_of(kind, layouts.pack((codes.astype(np.int8), scales), FORMATS[kind]), ROWS, COLUMNS), codes


def tiles(kind: str):
    """Each [64, 64] tile: its codes, high bits and scale pairs, and its values in the unpacker's order."""
    planes, values = every_word(kind)
    size, high_size = _unpack.tile_bytes(kind), weight_kind(kind).high_bytes
    for row in range(0, ROWS, 64):
        for unit in range(COLUMNS // 64):
            rows = slice(row, row + 64)
            codes = planes.codes[rows, unit * size : (unit + 1) * size]
            high = None if planes.high is None else planes.high[rows, unit * high_size : (unit + 1) * high_size]
            scales = None
            if kind == "nvfp4":
                tile = np.ascontiguousarray(planes.scales[row // 128, unit]).view(np.uint32).reshape(128)
                scales = _scales.block_scales(jnp.asarray(tile), row // 64 % 2, interpret=True)
            yield codes, high, scales, values[rows, 64 * unit + _unpack.column_order(kind)]


def as_bits(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_twin_gives_every_code_word_in_every_column(kind):
    unpack = jax.jit(lambda *planes: _unpack.unpack(kind, *planes, interpret=True))
    factor = 1 / _unpack.NVFP4_FACTOR if kind == "nvfp4" else 1
    for codes, high, scales, values in tiles(kind):
        out = np.asarray(unpack(codes, high, scales))
        np.testing.assert_array_equal(out.astype(np.float64), values * factor)
        if kind in ("fp8", "nvfp4"):  # signed zeros too
            np.testing.assert_array_equal(out.view(np.uint16), as_bits(values * factor))


@pytest.mark.parametrize("instructions", [PtxWords, FmaPtxWords])
@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_emitted_ptx_does_what_the_twin_does(kind, instructions, monkeypatch):
    ptx.install(monkeypatch)
    for codes, high, scales, values in tiles(kind):
        words = np.ascontiguousarray(codes).reshape(64, -1, 4, 2, 4).view(np.uint32)[..., 0]
        lanes = None
        if high is not None:
            lanes = np.zeros((64, 4, 4), np.uint8)
            lanes[..., : high.shape[1] // 4] = high.reshape(64, 4, -1)
            lanes = lanes.view(np.uint32)[..., 0]
        scales = None if scales is None else np.asarray(scales)
        pairs = []
        for part in range(words.shape[1]):
            parts = [words[:, part, :, w] for w in range(2)]
            pairs += _unpack.PROGRAMS[kind](parts, lanes, scales, instructions())
        out = np.stack(pairs, axis=1).view(ml_dtypes.bfloat16).reshape(64, 64).astype(np.float64)
        np.testing.assert_array_equal(out, values / (_unpack.NVFP4_FACTOR if kind == "nvfp4" else 1))


def test_block_scale_pair_of_every_legal_byte(monkeypatch):
    ptx.install(monkeypatch)
    scales = np.arange(0x7F, dtype=np.uint32)
    for byte in range(4):
        words = scales << np.uint32(8 * byte) | np.uint32(0xA5A5A5A5) & ~np.uint32(0xFF << 8 * byte)
        selector = 0x4040 + 0x0101 * byte
        for pair in (
            _unpack.block_scale_pair(words, selector, PtxWords()),
            _unpack.block_scale_pair(words, selector, FmaPtxWords()),
            np.asarray(_unpack.block_scale_pair(jnp.asarray(words), selector, JnpWords())),
        ):
            halves = np.ascontiguousarray(pair).view(ml_dtypes.bfloat16).astype(np.float64).reshape(-1, 2)
            np.testing.assert_array_equal(halves, np.repeat(E4M3[scales][:, None] * 2.0**118, 2, axis=1))


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_group_scales_of_every_finite_word(groups):
    words = np.arange(0x7C00, dtype=np.uint16)
    for start in range(0, words.size - 64 * groups, 64 * groups):
        tile = words[start : start + 64 * groups].reshape(64, groups)
        scales = _scales.group_scales(jnp.asarray(tile), interpret=True)
        np.testing.assert_array_equal(np.stack(scales, axis=1), tile.view(np.float16).astype(np.float32))


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_column_order_is_a_permutation_and_keeps_to_a_group(kind):
    order = _unpack.column_order(kind)
    assert sorted(order) == list(range(64))
    x = np.arange(2 * 128).reshape(2, 128)
    expected = x.reshape(2, 2, 64)[:, :, order].reshape(2, 128)
    np.testing.assert_array_equal(_unpack.order_columns(kind, jnp.asarray(x)), expected)
    group = weight_kind(kind).group_size
    if kind == "w8":  # each product of 32 columns has a scale of its own
        np.testing.assert_array_equal(order // group, np.arange(64) // group)


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_a_thread_gets_the_columns_wgmma_wants_of_it(kind):
    """Thread t of a quad gives wgmma columns 8i + 2t and 8i + 2t + 1: they must be of the bytes it loaded."""
    order = _unpack.column_order(kind)
    per_thread = 64 * weight_kind(kind).code_plane_bits // 8 // 8  # runs of eight bytes in 64 columns
    run = 64 // per_thread
    for p in range(64):
        assert order[p] // run % 4 == p // 2 % 4


def test_lut3_is_the_truth_table_ptx_defines():
    assert lut3(lambda a, b, c: (a & b) ^ c) == 0x6A
    assert lut3(lambda a, b, c: (a & b) | c) == 0xEA
    assert lut3(lambda a, b, c: a | b | c) == 0xFE


def test_nvfp4_scale_selection_is_per_thread():
    words = jnp.asarray(np.array([0x40302010], np.uint32))
    selectors = np.asarray(_scales._byte_selector(jnp.arange(4, dtype=jnp.uint32)))
    picked = [int(JnpWords().prmt(words, 0, int(s))[0]) for s in selectors]
    assert picked == [0x100010, 0x200020, 0x300030, 0x400040]


@pytest.mark.parametrize("kind", GROUPED)
def test_tile_bytes_match_the_stored_groups(kind):
    info = weight_kind(kind)
    assert _unpack.tile_bytes(kind) == info.group_bytes * 64 // info.group_size
