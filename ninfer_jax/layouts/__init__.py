"""Storage layouts: logical words to planes to payload bytes and back, bit for bit (storage-layouts)."""

from ninfer_jax.layouts._geometry import Geometry as Geometry, PlaneSpan as PlaneSpan, Span as Span
from ninfer_jax.layouts._layout import Layout as Layout
from ninfer_jax.layouts._registry import (
    LAYOUTS as LAYOUTS,
    encoded_size as encoded_size,
    geometry as geometry,
    get_layout as get_layout,
    layout_of as layout_of,
)
from ninfer_jax.layouts.block_scale import swizzle_scales as swizzle_scales, unswizzle_scales as unswizzle_scales
from ninfer_jax.layouts.packing import (
    gather_rows as gather_rows,
    pack as pack,
    slice_rows as slice_rows,
    unpack as unpack,
)
from ninfer_jax.layouts.payload import (
    payload_to_planes as payload_to_planes,
    plane_row_bytes as plane_row_bytes,
    planes_to_payload as planes_to_payload,
)
from ninfer_jax.layouts.row_split import groups_per_row as groups_per_row, padded_k as padded_k
