"""Grouped rows as tiles of 128 columns, so that one compiled program serves every row length.

In `row-split-k128-v1` a plane is row major, then group, and K is padded with zero codes to a multiple of 128. A block
`[rows, K]` therefore has the same bytes as `[rows * ceil(K / 128), 128]` with zero columns appended, because zeros
change no group's maximum and a group of zeros has scale word 0. This module only reshapes and pads host arrays.
Specification: storage-layouts (row-split-k128-v1), tensor-formats §7.
"""

from collections.abc import Callable

import numpy as np

from ninfer_jax._typing import AnyArray
from ninfer_jax.planes import GroupedPlanes

TILE = 128
"""Columns of a tile: the padding unit of the layout."""


def tiles_per_row(columns: int) -> int:
    """Tiles in a row: `ceil(columns / 128)`."""
    return -(-columns // TILE)


def tile_rows(block: np.ndarray, tiles: int, *, width: int = TILE) -> np.ndarray:
    """Copy a block of rows into `tiles` zero-padded tiles.

    Args:
        block: `[rows, n]`, any element type; a row is padded with zeros to a multiple of `width`.
        tiles: tiles in the result, at least `rows * ceil(n / width)`.
        width: elements of a tile: 128 codes or values, or the number of scales that go with them.

    Returns:
        A fresh contiguous array `[tiles, width]`.
    """
    rows, columns = block.shape
    per_row = -(-columns // width)
    out = np.empty((tiles, width), block.dtype)
    used = rows * per_row
    view = out[:used].reshape(rows, per_row * width)
    view[:, :columns] = block
    view[:, columns:] = np.zeros((), block.dtype)
    out[used:] = np.zeros((), block.dtype)
    return out


def pad_rows(block: AnyArray, rows: int) -> np.ndarray:
    """Copy a block into a fresh contiguous array of `rows` rows, zeros after its own."""
    out = np.empty((rows, *block.shape[1:]), block.dtype)
    out[: block.shape[0]] = block
    out[block.shape[0] :] = np.zeros((), block.dtype)
    return out


def tile_planes(planes: GroupedPlanes, columns: int, tiles: int) -> GroupedPlanes:
    """Copy planes of a row block into planes of `tiles` tiles, zeros at the end.

    Args:
        planes: NumPy planes of `[rows, columns]`.
        columns: logical columns.
        tiles: tiles in the result.
    """
    per_row = tiles_per_row(columns)
    return map_planes(planes, lambda plane: _tile_plane(plane, per_row, tiles))


def _tile_plane(plane: np.ndarray, per_row: int, tiles: int) -> np.ndarray:
    return pad_rows(plane.reshape(plane.shape[0] * per_row, plane.shape[1] // per_row), tiles)


def untile_planes(planes: GroupedPlanes, rows: int, columns: int) -> GroupedPlanes:
    """View the planes of tiles as planes of `[rows, columns]`, dropping the padding tiles.

    Args:
        planes: planes of at least `rows * ceil(columns / 128)` tiles.
        rows: rows of the block.
        columns: logical columns.
    """
    used = rows * tiles_per_row(columns)
    return map_planes(planes, lambda plane: plane[:used].reshape(rows, -1))


def map_planes(planes: GroupedPlanes, change: Callable[[np.ndarray], np.ndarray]) -> GroupedPlanes:
    """Apply a change to every plane there is, as a NumPy array."""
    high = None if planes.high is None else change(np.asarray(planes.high))
    return GroupedPlanes(change(np.asarray(planes.base)), high, change(np.asarray(planes.scales)))
