"""Where every byte of a payload is: plane spans, row spans and checked 64-bit sizes (storage-layouts).

Standard library only, and independent of any layout: each layout module lists its planes and this module places them.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_jax.errors import LayoutError
from ninfer_jax.formats import Format

MAX_BYTES = 2**64 - 1
"""Largest payload size in bytes; a shape that needs more is an error, never a wrap."""

PLANE_ALIGNMENT = 256
"""Planes that the layouts align start at a multiple of this many bytes."""


@dataclass(frozen=True)
class PlaneSpan:
    """One plane inside a payload.

    Attributes:
        name: field of the planes tuple, or `words` for a direct tensor.
        offset: first byte, from the start of the payload.
        nbytes: size in bytes.
        dtype: NumPy name of the little-endian unit, such as `<u2`.
        shape: shape in units.
        block_nbytes: bytes that belong to one row block; 0 where every row selection needs the whole plane.
    """

    name: str
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    block_nbytes: int


@dataclass(frozen=True)
class Span:
    """A run of payload bytes inside one plane: `[offset, offset + nbytes)` from the start of the payload."""

    plane: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Geometry:
    """Sizes and offsets of the payload of one tensor, all in bytes unless said otherwise.

    Attributes:
        format: canonical format name.
        layout: layout name.
        shape: logical shape.
        rows: rows that can be addressed: N of `[N, K]`; the first dimension of a direct tensor, 1 for a scalar.
        row_block: rows are sliced in multiples of this: 1, or 128 for NVFP4.
        planes: the planes in payload order; the bytes between them are zero.
        nbytes: size of the payload; nothing follows the last plane.
    """

    format: str
    layout: str
    shape: tuple[int, ...]
    rows: int
    row_block: int
    planes: tuple[PlaneSpan, ...]

    @property
    def nbytes(self) -> int:
        """Size of the payload in bytes."""
        return self.planes[-1].offset + self.planes[-1].nbytes

    def plane(self, name: str) -> PlaneSpan:
        """The plane with this name.

        Raises:
            LayoutError: where the format has no such plane.
        """
        for plane in self.planes:
            if plane.name == name:
                return plane
        names = ", ".join(plane.name for plane in self.planes)
        raise LayoutError(f"{self.format} has no plane {name!r}; its planes are {names}")

    def row_spans(self, start: int, stop: int) -> tuple[Span, ...]:
        """Byte spans of rows `[start, stop)`, one a plane, in payload order.

        Concatenated with offsets recomputed for `stop - start` rows they are again a valid payload. The NVFP4 divisor
        belongs to every selection, so its span is always there.

        Raises:
            LayoutError: where the range is empty, out of bounds or not a multiple of `row_block`.
        """
        self.check_rows(start, stop)
        first, blocks = start // self.row_block, (stop - start) // self.row_block
        return tuple(
            Span(plane.name, plane.offset + first * plane.block_nbytes, blocks * plane.block_nbytes)
            if plane.block_nbytes
            else Span(plane.name, plane.offset, plane.nbytes)
            for plane in self.planes
        )

    def check_rows(self, start: int, stop: int) -> None:
        """Raise LayoutError unless `[start, stop)` is a nonempty range of whole row blocks."""
        if not 0 <= start < stop <= self.rows:
            raise LayoutError(
                f"rows [{start}, {stop}) of {self.format} {list(self.shape)}: allowed 0 <= start < stop <= {self.rows}"
            )
        if start % self.row_block or stop % self.row_block:
            raise LayoutError(
                f"rows [{start}, {stop}) of {self.format}: its scale plane is tiled, so start and stop must be"
                f" multiples of {self.row_block}; gather single rows with gather_rows"
            )


@dataclass(frozen=True)
class PlaneSize:
    """What a layout states of one plane, before it is placed: see `PlaneSpan`; `align` is that of its offset."""

    name: str
    dtype: str
    unit_nbytes: int
    shape: tuple[int, ...]
    block_nbytes: int
    align: int = 1


def round_up(value: int, multiple: int) -> int:
    """`up(value, multiple)`: the smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def place(
    spec: Format, layout: str, shape: tuple[int, ...], rows: int, row_block: int, sizes: Sequence[PlaneSize]
) -> Geometry:
    """Place planes one after another, each at its alignment.

    Raises:
        LayoutError: where the payload would need more than `MAX_BYTES` bytes.
    """
    spans: list[PlaneSpan] = []
    end = 0
    for size in sizes:
        nbytes = size.unit_nbytes
        for dim in size.shape:
            nbytes *= dim
        offset = round_up(end, size.align)
        end = offset + nbytes
        spans.append(PlaneSpan(size.name, offset, nbytes, size.dtype, size.shape, size.block_nbytes))
    if end > MAX_BYTES:
        raise LayoutError(f"{spec.name} {list(shape)} needs more than 2**64 - 1 bytes; split the tensor")
    return Geometry(spec.name, layout, shape, rows, row_block, tuple(spans))


def check_shape(spec: Format, shape: Sequence[Any], ranks: range) -> tuple[int, ...]:
    """Return `shape` as positive Python integers below 2**64 with a rank in `ranks`.

    Raises:
        LayoutError: naming the dimension that is wrong. The message stays short whatever the shape holds.
    """
    if len(shape) not in ranks:
        allowed = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        raise LayoutError(f"{spec.name} with a shape of rank {len(shape)}: allowed {allowed}; reshape the tensor")
    dims = []
    for axis, dim in enumerate(shape):
        try:
            value = operator.index(dim)
        except TypeError:
            value = 0
        if isinstance(dim, bool) or not 0 < value <= MAX_BYTES:
            given = repr(dim) if abs(value) <= MAX_BYTES else "an integer beyond 64 bits"
            raise LayoutError(f"{spec.name}: dimension {axis} is {given}; allowed an integer from 1 to 2**64 - 1")
        dims.append(value)
    return tuple(dims)
