"""The closed registry of tensor layouts, and geometry by name (storage-layouts).

`raw-bytes-v1` is a resource encoding, not a tensor layout, and is not here.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import SupportsIndex

from ninfer_jax.errors import LayoutError
from ninfer_jax.formats import Format, get_format
from ninfer_jax.layouts._geometry import Geometry
from ninfer_jax.layouts._layout import Layout
from ninfer_jax.layouts.block_scale import BlockScale
from ninfer_jax.layouts.contiguous import Contiguous
from ninfer_jax.layouts.row_scale import RowScale
from ninfer_jax.layouts.row_split import RowSplit

LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {layout.name: layout for layout in (Contiguous(), RowSplit(), BlockScale(), RowScale())}
)
"""Read-only mapping of the four layout names to their layouts."""

_LAYOUT_OF: Mapping[str, Layout] = {name: layout for layout in LAYOUTS.values() for name in layout.formats}


def get_layout(name: str | Layout) -> Layout:
    """Return the layout with this name; a registered layout is returned as it is.

    Raises:
        LayoutError: for anything else, listing the four names.
    """
    layout = LAYOUTS.get(name.name if isinstance(name, Layout) else name) if isinstance(name, str | Layout) else None
    if layout is None:
        raise LayoutError(f"unknown layout {name!r}; the four layouts are {', '.join(LAYOUTS)}")
    return layout


def layout_of(format: str | Format) -> Layout:
    """Return the one layout that holds a format.

    Raises:
        UnknownFormatError: where `format` is not one of the nine.
    """
    return _LAYOUT_OF[get_format(format).name]


def geometry(format: str | Format, shape: Sequence[SupportsIndex], layout: str | Layout | None = None) -> Geometry:
    """Sizes and offsets of the payload of one tensor.

    Args:
        format: canonical name or spec.
        shape: logical shape; `[N, K]` for the quantized formats.
        layout: layout name; by default the one of the format.

    Raises:
        UnknownFormatError: where `format` is not one of the nine.
        LayoutError: for an unknown layout, a layout that does not hold the format, a shape that it does not allow, or
            a size beyond 64 bits.
    """
    spec = get_format(format)
    chosen = layout_of(spec) if layout is None else get_layout(layout)
    if spec.name not in chosen.formats:
        raise LayoutError(f"layout {chosen.name} does not hold {spec.name}; it holds {', '.join(chosen.formats)}")
    return chosen.plan(spec, shape)


def encoded_size(format: str | Format, shape: Sequence[SupportsIndex], layout: str | Layout | None = None) -> int:
    """Payload size in bytes: `geometry(format, shape, layout).nbytes`, with the same errors."""
    return geometry(format, shape, layout).nbytes
