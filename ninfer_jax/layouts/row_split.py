"""`row-split-k128-v1`: grouped formats in base, high and scale planes, rows padded to 128 columns (storage-layouts).

A row's bytes are adjacent in each plane, so any row selection is again a payload. Padding lanes hold code 0 and groups
wholly past K hold scale 0x0000. Code legality is not checked here (see `ninfer_jax.codecs`).
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, SupportsIndex

import jax
import jax.numpy as jnp

from ninfer_jax._typing import AnyArray
from ninfer_jax.errors import LayoutError
from ninfer_jax.formats import GroupedFormat
from ninfer_jax.layouts import _bits
from ninfer_jax.layouts._geometry import PLANE_ALIGNMENT, Geometry, PlaneSize, check_shape, place, round_up
from ninfer_jax.layouts._layout import Layout, check_plane, check_words
from ninfer_jax.planes import GroupedPlanes
from ninfer_jax.words import GroupedWords

COLUMN_ALIGNMENT = 128
_BASE_NBYTES = 32
_HIGH_NBYTES = {4: 0, 5: 8, 6: 16, 8: 0}


def padded_k(k: int) -> int:
    """`up(k, 128)`: physical columns of a row."""
    return round_up(k, COLUMN_ALIGNMENT)


def groups_per_row(spec: GroupedFormat, k: int) -> int:
    """`up(k, 128) / group_size`: physical groups of a row, at least the logical `spec.groups(k)`."""
    return padded_k(k) // spec.group_size


class RowSplit(Layout):
    """Grouped codes and binary16 scales in two or three row-major planes."""

    name: ClassVar[str] = "row-split-k128-v1"
    formats: ClassVar[tuple[str, ...]] = ("Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S")
    words_type: ClassVar[type | None] = GroupedWords
    planes_type: ClassVar[type | None] = GroupedPlanes
    row_axes: ClassVar[dict[str, int]] = {"base": -2, "high": -2, "scales": -2}

    def plan(self, spec: GroupedFormat, shape: Sequence[SupportsIndex]) -> Geometry:
        """Base plane, high plane at up(., 256) for Q5 and Q6, scale plane at up(., 256)."""
        n, k = check_shape(spec, shape, range(2, 3))
        groups = groups_per_row(spec, k)
        base, high = groups * _BASE_NBYTES, groups * _HIGH_NBYTES[spec.bits]
        sizes = [PlaneSize("base", "|u1", 1, (n, base), base)]
        if high:
            sizes.append(PlaneSize("high", "|u1", 1, (n, high), high, PLANE_ALIGNMENT))
        sizes.append(PlaneSize("scales", "<u2", 2, (n, groups), 2 * groups, PLANE_ALIGNMENT))
        return place(spec, self.name, (n, k), n, 1, sizes)

    def pack(self, words: GroupedWords, spec: GroupedFormat) -> GroupedPlanes:
        """Pad to whole 128-column blocks and split the code bits into base and high planes."""
        _check_grouped_words(words, spec)
        return _pack(words, spec)

    def unpack(self, planes: GroupedPlanes, spec: GroupedFormat, k: int | None) -> GroupedWords:
        """Join the planes into signed codes and drop the padding."""
        _check_planes(planes, spec)
        columns = planes.scales.shape[-1] * spec.group_size
        if k is None or padded_k(k) != columns:
            raise LayoutError(
                f"{spec.name} planes of {columns} physical columns cannot hold k = {k};"
                f" k is the logical column count, {columns - COLUMN_ALIGNMENT + 1} to {columns}"
            )
        return _unpack(planes, spec, k)


# One program each, so that an eager call makes one pass over the codes; inlined where a caller is already compiling.
@partial(jax.jit, static_argnums=1, inline=True)
def _pack(words: GroupedWords, spec: GroupedFormat) -> GroupedPlanes:
    k = words.codes.shape[-1]
    codes = _pad_last(words.codes, padded_k(k) - k).view(jnp.uint8)
    scales = _pad_last(words.scales, groups_per_row(spec, k) - words.scales.shape[-1])
    if spec.bits == 8:
        return GroupedPlanes(codes, None, scales)
    high = _bits.pack_bits(codes, 4, spec.bits - 4) if spec.bits > 4 else None
    return GroupedPlanes(_bits.pack_bits(codes, 0, 4), high, scales)


@partial(jax.jit, static_argnums=(1, 2), inline=True)
def _unpack(planes: GroupedPlanes, spec: GroupedFormat, k: int) -> GroupedWords:
    codes = planes.base.view(jnp.int8) if spec.bits == 8 else _bits.unpack_codes(planes.base, planes.high, spec.bits)
    return GroupedWords(codes[..., :k], planes.scales[..., : spec.groups(k)])


def _pad_last(array: AnyArray, count: int) -> AnyArray:
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, count)]) if count else array


def _check_grouped_words(words: GroupedWords, spec: GroupedFormat) -> None:
    check_words(words.codes, "int8", "codes", spec)
    check_words(words.scales, "uint16", "scales", spec)
    if words.codes.ndim < 2 or 0 in words.codes.shape[-2:]:
        raise LayoutError(
            f"{spec.name} codes of shape {words.codes.shape}: the layout holds [N, K] with N, K > 0; reshape to [1, K]"
        )
    expected = (*words.codes.shape[:-1], spec.groups(words.codes.shape[-1]))
    if words.scales.shape != expected:
        raise LayoutError(
            f"{spec.name} codes of shape {words.codes.shape} need scales of shape {expected}, one a logical group,"
            f" not {words.scales.shape}"
        )


def _check_planes(planes: GroupedPlanes, spec: GroupedFormat) -> None:
    check_words(planes.scales, "uint16", "plane scales", spec)
    if planes.scales.ndim < 2:
        raise LayoutError(f"{spec.name} plane scales of shape {planes.scales.shape}: needed [..., N, groups]")
    *rows, groups = planes.scales.shape
    high = _HIGH_NBYTES[spec.bits]
    if (planes.high is not None) != bool(high) or groups * spec.group_size % COLUMN_ALIGNMENT:
        given, wanted = ("without" if absent else "with" for absent in (planes.high is None, not high))
        raise LayoutError(
            f"{spec.name} planes are {wanted} a high plane, in blocks of {COLUMN_ALIGNMENT // spec.group_size} groups;"
            f" these are {given} one, {groups} groups a row: planes of another format"
        )
    check_plane(planes.base, "uint8", (*rows, groups * _BASE_NBYTES), "base", spec)
    if planes.high is not None:
        check_plane(planes.high, "uint8", (*rows, groups * high), "high", spec)
