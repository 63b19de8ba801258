"""Words to planes and back, and row selections of planes, for any format; all of it runs under `jax.jit`.

Each function looks the layout up and calls it. Nothing here decodes a code or checks that it is legal.
"""

from collections.abc import Sequence
from typing import TypeVar, overload

import jax
import numpy as np
from jax.core import Tracer

from ninfer_jax._typing import AnyArray
from ninfer_jax.errors import LayoutError
from ninfer_jax.formats import Format, get_format
from ninfer_jax.layouts._layout import check_kind
from ninfer_jax.layouts._registry import layout_of
from ninfer_jax.planes import GroupedPlanes, NVFP4Planes, Planes, RowScaledPlanes
from ninfer_jax.words import GroupedWords, NVFP4Words, RowScaledWords, Words

_PlanesT = TypeVar("_PlanesT", bound=Planes)


@overload
def pack(words: GroupedWords, format: str | Format) -> GroupedPlanes: ...
@overload
def pack(words: NVFP4Words, format: str | Format) -> NVFP4Planes: ...
@overload
def pack(words: RowScaledWords, format: str | Format) -> RowScaledPlanes: ...
@overload
def pack(words: AnyArray, format: str | Format) -> AnyArray: ...
def pack(words: Words, format: str | Format) -> Planes:
    """Logical words to the planes of their layout; the inverse of `unpack`.

    Args:
        words: words of `format`, with any leading axes before [N, K].
        format: canonical name or spec.

    Returns:
        Planes whose padding is zero, with the same leading axes.

    Raises:
        FormatError: for words of another kind of format.
        LayoutError: where dtypes or shapes do not fit the format, or NVFP4 is not whole 128 x 64 tiles.

    Source: storage-layouts.
    """
    spec, layout = get_format(format), layout_of(format)
    check_kind("words", words, layout.words_type, spec)
    return layout.pack(words, spec)


@overload
def unpack(planes: GroupedPlanes, format: str | Format, k: int | None = None) -> GroupedWords: ...
@overload
def unpack(planes: NVFP4Planes, format: str | Format, k: int | None = None) -> NVFP4Words: ...
@overload
def unpack(planes: RowScaledPlanes, format: str | Format, k: int | None = None) -> RowScaledWords: ...
@overload
def unpack(planes: AnyArray, format: str | Format, k: int | None = None) -> AnyArray: ...
def unpack(planes: Planes, format: str | Format, k: int | None = None) -> Words:
    """Planes to logical words; the inverse of `pack`.

    Args:
        planes: planes of `format`, with any leading axes.
        format: canonical name or spec.
        k: logical columns; needed for the grouped formats, whose rows are padded, and checked for the others.

    Returns:
        The words, with the same leading axes; padding is left out.

    Raises:
        FormatError: for planes of another kind of format.
        LayoutError: where the planes are not those of `format` or `k` does not fit them.

    Source: storage-layouts.
    """
    spec, layout = get_format(format), layout_of(format)
    check_kind("planes", planes, layout.planes_type, spec)
    return layout.unpack(planes, spec, k)


def slice_rows(planes: _PlanesT, format: str | Format, start: int, stop: int) -> _PlanesT:
    """Planes of rows `[start, stop)`: views of NumPy planes, device slices of JAX planes, never decoded.

    Args:
        planes: planes of `format`; rows are N of [N, K], or the first axis of a direct tensor.
        format: canonical name or spec.
        start: first row.
        stop: row after the last.

    Raises:
        LayoutError: where the range is empty or out of bounds, or is not a multiple of 128 NVFP4 rows.

    Source: storage-layouts (row views).
    """
    layout = layout_of(format)
    check_kind("planes", planes, layout.planes_type, get_format(format))
    rows = layout.row_count(planes)
    if not 0 <= start < stop <= rows:
        raise LayoutError(f"rows [{start}, {stop}): allowed 0 <= start < stop <= {rows}")
    return layout.slice_rows(planes, start, stop)


def gather_rows(planes: _PlanesT, format: str | Format, ids: AnyArray | Sequence[int]) -> _PlanesT:
    """Planes of rows `ids`, in that order and with repeats, never decoded.

    Args:
        planes: planes of `format`.
        format: canonical name or spec.
        ids: row numbers, [count]; traced ids are not checked and read the nearest row where out of range.

    Raises:
        LayoutError: where an id is out of bounds, there are none, or their count is not a multiple of 128 for NVFP4.

    Source: storage-layouts (row views).
    """
    layout = layout_of(format)
    check_kind("planes", planes, layout.planes_type, get_format(format))
    if not isinstance(ids, jax.Array):
        ids = np.asarray(ids)
    if ids.ndim != 1 or not ids.size or not np.issubdtype(ids.dtype, np.integer):
        raise LayoutError(f"row ids of shape {ids.shape} and dtype {ids.dtype}: allowed a nonempty list of integers")
    if isinstance(ids, np.ndarray):
        ids = ids.astype(ids.dtype.newbyteorder("="), copy=False)  # JAX would take the bytes as they are
    if not isinstance(ids, Tracer):
        rows, lowest, highest = layout.row_count(planes), int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= rows:
            raise LayoutError(f"row ids from {lowest} to {highest}: allowed 0 to {rows - 1}")
    return layout.gather_rows(planes, ids)
