"""`blockscale-k16-m128x4-v1`: NVFP4 codes two a byte, E4M3FN scales in 128x4 tiles, one divisor (storage-layouts).

The scale plane is the block-scale tile order that Blackwell tensor cores read. Word legality is not checked here (see
`ninfer_jax.codecs`).
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, SupportsIndex

import jax
import numpy as np
from jaxtyping import Shaped

from ninfer_jax._typing import AnyArray
from ninfer_jax.errors import LayoutError
from ninfer_jax.formats import BlockScaledFormat
from ninfer_jax.layouts import _bits
from ninfer_jax.layouts._geometry import PLANE_ALIGNMENT, Geometry, PlaneSize, check_shape, place
from ninfer_jax.layouts._layout import Layout, check_plane, check_words, take
from ninfer_jax.planes import NVFP4Planes
from ninfer_jax.words import NVFP4Words

TILE_ROWS = 128
TILE_COLUMNS = 64
_TILE = (32, 4, 4)


class BlockScale(Layout):
    """NVFP4 matrices of whole 128 x 64 tiles."""

    name: ClassVar[str] = "blockscale-k16-m128x4-v1"
    formats: ClassVar[tuple[str, ...]] = ("NVFP4",)
    words_type: ClassVar[type | None] = NVFP4Words
    planes_type: ClassVar[type | None] = NVFP4Planes
    row_axes: ClassVar[dict[str, int]] = {"codes": -2}

    def plan(self, spec: BlockScaledFormat, shape: Sequence[SupportsIndex]) -> Geometry:
        """`bytes = up(N * K / 2, 256) + N * K / 16 + 4`, for N a multiple of 128 and K of 64."""
        n, k = check_shape(spec, shape, range(2, 3))
        _check_tiles(spec, n, k)
        tiles = (n // TILE_ROWS, k // TILE_COLUMNS)
        sizes = [
            PlaneSize("codes", "|u1", 1, (n, k // 2), TILE_ROWS * k // 2),
            PlaneSize("scales", "|u1", 1, (*tiles, *_TILE), TILE_ROWS * k // 16, PLANE_ALIGNMENT),
            PlaneSize("divisor", "<u4", 4, (), 0),
        ]
        return place(spec, self.name, (n, k), n, TILE_ROWS, sizes)

    def pack(self, words: NVFP4Words, spec: BlockScaledFormat) -> NVFP4Planes:
        """Join code pairs into bytes and swizzle the scales."""
        check_words(words.codes, "uint8", "codes", spec)
        check_words(words.scales, "uint8", "scales", spec)
        check_words(words.divisor, "uint32", "divisor", spec)
        if words.codes.ndim < 2:
            raise LayoutError(f"{spec.name} codes of shape {words.codes.shape}: the layout holds [N, K]")
        *lead, n, k = words.codes.shape
        _check_tiles(spec, n, k)
        expected = (*lead, n, k // spec.group_size)
        if words.scales.shape != expected or words.divisor.shape != tuple(lead):
            raise LayoutError(
                f"{spec.name} codes of shape {words.codes.shape} need scales of shape {expected} and a divisor of shape"
                f" {tuple(lead)}, not {words.scales.shape} and {words.divisor.shape}"
            )
        return _pack(words)

    def unpack(self, planes: NVFP4Planes, spec: BlockScaledFormat, k: int | None) -> NVFP4Words:
        """Split bytes into code pairs and put the scales back in natural order."""
        _check_planes(planes, spec)
        columns = 2 * planes.codes.shape[-1]
        if k is not None and columns != k:
            raise LayoutError(f"{spec.name} planes have {columns} columns, not k = {k}")
        return _unpack(planes)

    def slice_rows(self, planes: NVFP4Planes, start: int, stop: int) -> NVFP4Planes:
        """Whole tiles are views; any other start goes through `gather_rows`."""
        if start % TILE_ROWS or stop % TILE_ROWS:
            return self.gather_rows(planes, np.arange(start, stop))
        tiles = slice(start // TILE_ROWS, stop // TILE_ROWS)
        return NVFP4Planes(planes.codes[..., start:stop, :], planes.scales[..., tiles, :, :, :, :], planes.divisor)

    def gather_rows(self, planes: NVFP4Planes, ids: AnyArray) -> NVFP4Planes:
        """Rows `ids`, a multiple of 128 of them: the scales are unswizzled, gathered and swizzled, never decoded."""
        if ids.shape[0] % TILE_ROWS:
            raise LayoutError(
                f"{ids.shape[0]} rows of NVFP4 are no matrix of their own: allowed a multiple of {TILE_ROWS} rows;"
                " repeat a row to fill the last tile"
            )
        scales = swizzle_scales(take(unswizzle_scales(planes.scales), ids, -2))
        return NVFP4Planes(take(planes.codes, ids, -2), scales, planes.divisor)


# One program each, so that an eager call makes one pass over the codes; inlined where a caller is already compiling.
@partial(jax.jit, inline=True)
def _pack(words: NVFP4Words) -> NVFP4Planes:
    return NVFP4Planes(_bits.pack_bits(words.codes, 0, 4), swizzle_scales(words.scales), words.divisor)


@partial(jax.jit, inline=True)
def _unpack(planes: NVFP4Planes) -> NVFP4Words:
    return NVFP4Words(_bits.unpack_nibbles(planes.codes), unswizzle_scales(planes.scales), planes.divisor)


def swizzle_scales(
    scales: Shaped[AnyArray, "*lead n groups"],
) -> Shaped[AnyArray, "*lead n_tiles k_tiles 32 4 4"]:
    """Natural scale words to the stored tile order.

    Row n, group g goes to byte
    `((n // 128) * (K // 64) + g // 4) * 512 + (n % 32) * 16 + ((n % 128) // 32) * 4 + g % 4`.

    Args:
        scales: one word per 16 columns, [..., N, K / 16], any dtype; NumPy stays NumPy.

    Returns:
        [..., N / 128, K / 64, 32, 4, 4], the plane in C order.

    Raises:
        LayoutError: where N is not a multiple of 128 or the groups are not a multiple of 4.
    """
    *lead, n, groups = scales.shape if scales.ndim > 1 else (0, 0)
    if n % TILE_ROWS or groups % 4 or not n or not groups:
        raise LayoutError(f"scales of shape {scales.shape}: allowed [..., N, K / 16] with N % 128 == 0 and K % 64 == 0")
    tiled = scales.reshape(*lead, n // TILE_ROWS, 4, 32, groups // 4, 4)
    axis = len(lead)
    return tiled.transpose(*range(axis), axis, axis + 3, axis + 2, axis + 1, axis + 4)


def unswizzle_scales(
    scales: Shaped[AnyArray, "*lead n_tiles k_tiles 32 4 4"],
) -> Shaped[AnyArray, "*lead n groups"]:
    """Stored tile order to natural scale words, the inverse of `swizzle_scales`.

    Args:
        scales: [..., N / 128, K / 64, 32, 4, 4], any dtype; NumPy stays NumPy.

    Returns:
        [..., N, K / 16].

    Raises:
        LayoutError: where the last three axes are not (32, 4, 4).
    """
    if scales.ndim < 5 or scales.shape[-3:] != _TILE:
        raise LayoutError(f"a scale plane of shape {scales.shape}: allowed [..., N / 128, K / 64, 32, 4, 4]")
    *lead, row_tiles, column_tiles, _, _, _ = scales.shape
    axis = len(lead)
    natural = scales.transpose(*range(axis), axis, axis + 3, axis + 2, axis + 1, axis + 4)
    return natural.reshape(*lead, row_tiles * TILE_ROWS, column_tiles * 4)


def _check_planes(planes: NVFP4Planes, spec: BlockScaledFormat) -> None:
    check_words(planes.codes, "uint8", "plane codes", spec)
    if planes.codes.ndim < 2:
        raise LayoutError(f"{spec.name} plane codes of shape {planes.codes.shape}: needed [..., N, K / 2]")
    *lead, n, half_k = planes.codes.shape
    _check_tiles(spec, n, 2 * half_k)
    scales = (*lead, n // TILE_ROWS, 2 * half_k // TILE_COLUMNS, *_TILE)
    check_plane(planes.scales, "uint8", scales, "scales", spec)
    check_plane(planes.divisor, "uint32", tuple(lead), "divisor", spec)


def _check_tiles(spec: BlockScaledFormat, n: int, k: int) -> None:
    if n % TILE_ROWS or k % TILE_COLUMNS or not n or not k:
        raise LayoutError(
            f"{spec.name} [{n}, {k}]: allowed N % {TILE_ROWS} == 0 and K % {TILE_COLUMNS} == 0; use another format"
        )
