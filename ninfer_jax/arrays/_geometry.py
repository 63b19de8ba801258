"""Logical and physical sizes read off planes that may carry leading axes or be one shard of the columns.

Knows how many columns a plane's last axis holds; knows no bytes (storage-layouts).
"""

from typing import Any

from ninfer_jax.errors import UnsupportedError
from ninfer_jax.formats import (
    BlockScaledFormat,
    DirectFormat,
    Format,
    GroupedFormat,
    QuantizedFormat,
    get_format,
)
from ninfer_jax.layouts import padded_k

GROUP_NBYTES = 32
"""Bytes of a group in the base plane, the same in every grouped format."""
NVFP4_ROWS = 128
NVFP4_COLUMNS = 64


def quantized_format(format: str | Format) -> QuantizedFormat:
    """The spec of one of the six quantized formats.

    Raises:
        UnsupportedError: for a direct format.
    """
    spec = get_format(format)
    if isinstance(spec, DirectFormat):
        raise UnsupportedError(f"{spec.name} is a direct format; keep it as a jax.Array (load does)")
    return spec


def lead_axes(planes: Any) -> tuple[int, ...]:
    """Leading axes before [N, K]."""
    return tuple(planes[0].shape[:-2])


def physical_columns(planes: Any, spec: QuantizedFormat) -> int:
    """Columns that the planes hold, padding included."""
    if isinstance(spec, GroupedFormat):
        return planes.base.shape[-1] // GROUP_NBYTES * spec.group_size
    return planes.codes.shape[-1] * (2 if isinstance(spec, BlockScaledFormat) else 1)


def stored_columns(spec: QuantizedFormat, k: int) -> int:
    """Columns that a whole weight of `k` logical columns stores."""
    return padded_k(k) if isinstance(spec, GroupedFormat) else k


def logical_columns(planes: Any, spec: QuantizedFormat, k: int) -> int:
    """`k` for a whole weight, the columns present for one shard of it."""
    columns = physical_columns(planes, spec)
    return k if columns == stored_columns(spec, k) else columns


def column_block(spec: QuantizedFormat) -> int:
    """A shard of the columns must be a multiple of this many."""
    if isinstance(spec, GroupedFormat):
        return padded_k(1)
    return NVFP4_COLUMNS if isinstance(spec, BlockScaledFormat) else 1


def row_block(spec: QuantizedFormat) -> int:
    """A shard of the rows must be a multiple of this many."""
    return NVFP4_ROWS if isinstance(spec, BlockScaledFormat) else 1
