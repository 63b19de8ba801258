"""The prefill kernel's unpackers for every code in every column, as PTX and as their twin, under many scales."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import jax.numpy as jnp
import ml_dtypes

from pallas_kernels.mosaic_gpu import _unpack, _unpack_tile
from pallas_kernels.mosaic_gpu._words import PtxWords
from pallas_kernels.tiling import WEIGHT_KINDS, weight_kind
from tests.oracle import fp8_row, grouped, layouts, nvfp4
from tests.pallas_kernels import ptx
from tests.pallas_kernels.weights import FORMATS, planes_of

#: Rows of a matrix in which every column meets every word of eight bits, and so of fewer.
ROWS, COLUMNS = 256, 64
#: binary16: zero, subnormals, the least and the largest normal number, one and its neighbors, ties of bfloat16.
SCALES = [0, 1, 3, 0x3FF, 0x400, 0x7BFF, 0x3C00, 0x3C01, 0x3BFF, 0x3C04, 0x3C0C, 0x2155, 0x1234, *range(7, 0x7C00, 401)]


def every_word(kind: str) -> tuple[Any, np.ndarray]:
    """Planes of a [256, 64] weight with every code word in every column, and its exact values, row scales left out."""
    words = ((np.arange(ROWS)[:, None] + 37 * np.arange(COLUMNS)) % 2 ** weight_kind(kind).code_bits).astype(np.uint8)
    one = np.asarray(np.float32(1)).view(np.uint32)
    if kind == "fp8":
        words[words & 0x7F == 0x7F] = 0x80
        contents = words, np.full(ROWS, 0x3F80, np.uint16)
        values = fp8_row.decode(*contents)
    elif kind == "nvfp4":
        contents = words, ((np.arange(ROWS)[:, None] + 5 * np.arange(COLUMNS // 16)) % 127).astype(np.uint8), one
        values = nvfp4.decode(*contents)
    else:
        bits, groups = weight_kind(kind).code_bits, COLUMNS // weight_kind(kind).group_size
        codes = (words.astype(np.int16) - 2 ** (bits - 1)).clip(-127).astype(np.int8)
        scales = np.resize(np.asarray(SCALES, np.uint16), (ROWS, groups))
        contents = codes, scales
        values = grouped.decode(codes, scales, FORMATS[kind])
    planes = planes_of(kind, layouts.pack(contents, FORMATS[kind]), ROWS, COLUMNS)
    return planes, values.view(np.float32).astype(np.float64)


def tiles(kind: str):
    """Codes, high bits and scale words of each 64 rows, and the exact values in the unpacker's order."""
    planes, values = every_word(kind)
    for row in range(0, ROWS, 64):
        rows = slice(row, row + 64)
        codes, high, scales = planes.codes[rows, : _unpack.tile_bytes(kind)], None, []
        if kind == "nvfp4":
            stored = np.ascontiguousarray(planes.scales).view(np.uint32)[row // 128, 0, :, :, 0]
            first = row % 128 // 32
            scales = [np.asarray(_unpack_tile.load_scale_words(jnp.asarray(stored[:, first : first + 2]), True))]
        elif kind != "fp8":
            groups = COLUMNS // weight_kind(kind).group_size
            scales = [planes.scales[rows, g].astype(np.uint32) for g in range(groups)]
        if planes.high is not None:
            high = planes.high[rows, : weight_kind(kind).high_bytes]
        yield codes, high, scales, values[rows, _unpack.column_order(kind)]


def bfloat16(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


#: Every kind with its scales in two parts, and q4 with them in one.
PROGRAMS = [(kind, 2) for kind in WEIGHT_KINDS] + [("q4", 1)]


def rounded(kind: str, parts: int, values: np.ndarray, scales: Sequence[Any]) -> np.ndarray:
    """What the tile is to hold: the values rounded to bfloat16 once, or with a scale rounded before."""
    if (kind, parts) != ("q4", 1):
        return bfloat16(values)
    exact = scales[0].astype(np.uint16).view(np.float16).astype(np.float64)[:, None]
    codes = np.divide(values, exact, out=np.zeros_like(values), where=exact > 0)
    return bfloat16(codes * bfloat16(exact))


def check(kind: str, parts: int, tile: np.ndarray, values: np.ndarray, scales: Sequence[Any]) -> None:
    tile = tile.astype(np.float64) * _unpack_tile.factor(kind, parts)
    expected = rounded(kind, parts, values, scales)
    if kind in ("q4", "fp8", "nvfp4"):
        np.testing.assert_array_equal(tile, expected)
    # The last bits of code * lo may turn a near tie: never further than one place of bfloat16, and rarely.
    assert np.all(np.abs(tile - expected) <= np.abs(expected) * 2.0**-7)
    assert np.mean(tile != expected) < 1e-3


@pytest.mark.parametrize(("kind", "parts_of_scale"), PROGRAMS)
def test_twin_holds_every_code_times_its_scale(kind, parts_of_scale):
    for codes, high, scales, values in tiles(kind):
        given = [jnp.asarray(s) for s in scales]
        tile = _unpack_tile.unpack_tile(
            kind, jnp.asarray(codes), None if high is None else jnp.asarray(high), given, True, parts_of_scale
        )
        check(kind, parts_of_scale, np.asarray(tile), values, scales)


@pytest.mark.parametrize(("kind", "parts_of_scale"), PROGRAMS)
def test_emitted_ptx_holds_every_code_times_its_scale(kind, parts_of_scale, monkeypatch):
    ptx.install(monkeypatch)
    for codes, high, scales, values in tiles(kind):
        words = np.ascontiguousarray(codes).reshape(64, -1, 4, 2, 4).view(np.uint32)[..., 0]
        parts = [[words[:, part, :, w] for w in range(2)] for part in range(words.shape[1])]
        lanes = None
        if high is not None:
            lanes = np.zeros((64, 4, 4), np.uint8)
            lanes[..., : high.shape[1] // 4] = high.reshape(64, 4, -1)
            lanes = lanes.view(np.uint32)[..., 0]
        spread = [np.repeat(s[:, None], 4, axis=1) for s in scales]
        selector = (np.arange(4) * 0x0101 + 0x4040).astype(np.uint32)
        pairs = _unpack_tile.tile_pairs(kind, parts, lanes, spread, selector, PtxWords(), parts_of_scale)
        tile = np.ascontiguousarray(np.stack(pairs, axis=1)).view(ml_dtypes.bfloat16).reshape(64, 64)
        check(kind, parts_of_scale, tile, values, scales)


def test_scale_words_twin_reads_the_stored_tile():
    rng = np.random.default_rng(0)
    scales = rng.integers(0, 0x7F, (128, 4)).astype(np.uint8)
    payload = layouts.pack((np.zeros((128, 64), np.uint8), scales, np.asarray(np.float32(1)).view(np.uint32)), "NVFP4")
    stored = np.ascontiguousarray(planes_of("nvfp4", payload, 128, 64).scales).view(np.uint32)[0, 0, :, :, 0]
    for first in (0, 64):
        words = _unpack_tile.load_scale_words(jnp.asarray(stored[:, first // 32 : first // 32 + 2]), True)
        np.testing.assert_array_equal(np.asarray(words).view(np.uint8).reshape(64, 4), scales[first : first + 64])
