"""Tiles and row padding: the shapes that programs see, and what comes back."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ninfer_jax.convert.blocks import object_blocks, owned_blocks
from ninfer_jax.convert.devices import SMALLEST_ELEMENTS, padded_rows
from ninfer_jax.convert.tiles import pad_rows, tile_planes, tile_rows, tiles_per_row, untile_planes
from ninfer_jax.layouts import pack
from ninfer_jax.planes import GroupedPlanes
from ninfer_jax.recipes import ResourceSpec
from ninfer_jax.words import GroupedWords

FORMATS = ("Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S")


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("columns", [1, 64, 127, 128, 129, 300])
def test_packed_tiles_are_the_packed_rows(format_name: str, columns: int):
    rng = np.random.default_rng(columns)
    rows, group = 5, 32 if format_name.startswith("W8") else 64
    codes = rng.integers(-8, 8, (rows, columns)).astype(np.int8)
    scales = rng.integers(1, 99, (rows, -(-columns // group))).astype(np.uint16)
    expected = pack(GroupedWords(codes, scales), format_name)
    tiles = rows * tiles_per_row(columns) + 3
    tiled = pack(GroupedWords(tile_rows(codes, tiles), tile_rows(scales, tiles, width=128 // group)), format_name)
    found = untile_planes(GroupedPlanes(*tiled), rows, columns)
    for one, other in zip(expected, found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(np.asarray(one), other)
    again = tile_planes(found, columns, tiles)
    for one, other in zip(tiled, again, strict=True):
        if one is not None:
            np.testing.assert_array_equal(np.asarray(one), other)


def test_padding_is_zero_and_memory_is_fresh():
    block = np.arange(6, dtype=np.float32).reshape(2, 3)
    padded = pad_rows(block, 4)
    assert padded[2:].tolist() == [[0.0] * 3] * 2
    padded[0, 0] = 9
    assert block[0, 0] == 0


@given(
    st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from([1, 2, 8, 128, 1024]), st.sampled_from([128, 5120])
)
def test_padded_row_counts_hold_the_rows_and_are_few(rows: int, full: int, quantum: int, width: int):
    size = padded_rows(rows, full, quantum, width=width)
    assert size >= rows
    assert size % quantum == 0
    if rows <= full:
        allowed = {
            padded_rows(count, full, quantum, width=width) for count in (1, *(full >> shift for shift in range(20)))
        }
        assert size in allowed
        assert len(allowed) <= 2 + max(0, full * width // SMALLEST_ELEMENTS).bit_length() // 2


@given(st.integers(1, 300_000), st.integers(1 << 16, 1 << 20))
def test_blocks_cover_an_object_once(nbytes: int, block_bytes: int):
    blocks = object_blocks(3, ResourceSpec("r", None, nbytes, "r"), block_bytes)
    assert blocks[0].start == 0
    assert blocks[-1].stop == nbytes
    assert all(one.stop == other.start for one, other in pairwise(blocks))
    assert all(block.stop - block.start <= block_bytes for block in blocks)


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_every_block_has_one_owner_and_shares_are_even(processes: int):
    specs = tuple(ResourceSpec(f"r{index}", None, 1000 + 100 * index, "r") for index in range(20))
    blocks = [block for index, spec in enumerate(specs) for block in object_blocks(index, spec, 100)]
    shares = [owned_blocks(specs, blocks, process, processes) for process in range(processes)]
    assert [block for share in shares for block in share] == blocks
    sizes = [sum(block.nbytes for block in share) for share in shares]
    assert max(sizes) - min(sizes) <= 200
