"""Planes to payload bytes and back, without copying a byte that need not move (storage-layouts).

Everything here is NumPy on the host. Packing is in `ninfer_jax.layouts.packing`, files are in `ninfer_jax.container`.
"""

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import UInt8

from ninfer_jax._typing import AnyArray
from ninfer_jax.errors import LayoutError
from ninfer_jax.formats import Format, get_format
from ninfer_jax.layouts._geometry import Geometry, PlaneSpan
from ninfer_jax.layouts._layout import check_kind
from ninfer_jax.layouts._registry import geometry, get_layout
from ninfer_jax.planes import Planes


def planes_to_payload(
    planes: Planes, format: str | Format, shape: Sequence[SupportsIndex]
) -> UInt8[np.ndarray, " nbytes"]:
    """The complete payload of one tensor: its planes at their offsets, zero bytes between them.

    Args:
        planes: planes of one matrix, without leading axes (of any shape, for direct formats); NumPy or JAX.
        format: canonical name or spec.
        shape: logical shape.

    Returns:
        A new byte array of `encoded_size(format, shape)` bytes.

    Raises:
        FormatError: for planes of another kind of format.
        LayoutError: where a plane is missing or does not have the shape or dtype that the layout gives it.
    """
    plan = geometry(format, shape)
    parts = _by_name(planes, plan)
    payload = np.zeros(plan.nbytes, np.uint8)
    for span, plane in zip(plan.planes, parts, strict=True):
        if plane.shape != span.shape or plane.dtype != np.dtype(span.dtype):
            raise LayoutError(
                f"{plan.format} {list(plan.shape)}: plane {span.name} is {plane.dtype} {list(plane.shape)},"
                f" needed {span.dtype} {list(span.shape)}"
            )
        payload[span.offset : span.offset + span.nbytes] = _bytes_of(plane)
    return payload


def payload_to_planes(
    buffer: bytes | bytearray | memoryview | np.ndarray, format: str | Format, shape: Sequence[SupportsIndex]
) -> Planes:
    """Read-only NumPy views of the planes inside a payload; nothing is copied.

    Args:
        buffer: exactly one payload, as any contiguous byte buffer.
        format: canonical name or spec.
        shape: logical shape.

    Raises:
        LayoutError: where the buffer is not contiguous or does not have `encoded_size(format, shape)` bytes.
    """
    plan = geometry(format, shape)
    data = _flat_bytes(buffer)
    if data.nbytes != plan.nbytes:
        raise LayoutError(
            f"a payload of {plan.format} {list(plan.shape)} has {plan.nbytes} bytes, not {data.nbytes}; check the shape"
        )
    views = {span.name: _view(data, span) for span in plan.planes}
    planes_type = get_layout(plan.layout).planes_type
    if planes_type is None:
        return views["words"]
    return planes_type(**{name: views.get(name) for name in planes_type._fields})


def plane_row_bytes(planes: Planes) -> tuple[UInt8[np.ndarray, "_"], ...]:
    """The bytes of every plane, in payload order: what goes to the spans of `Geometry.row_spans`.

    Args:
        planes: planes of a row block, without leading axes; NumPy or JAX.

    Returns:
        One flat byte array a plane: a view where the plane is contiguous on the host, else a copy.
    """
    parts = planes if isinstance(planes, tuple) else (planes,)
    return tuple(_bytes_of(plane) for plane in parts if plane is not None)


def _by_name(planes: Planes, plan: Geometry) -> list[Any]:
    check_kind("planes", planes, get_layout(plan.layout).planes_type, get_format(plan.format))
    if not isinstance(planes, tuple):
        return [planes]
    given = {name: plane for name, plane in planes._asdict().items() if plane is not None}
    names = [span.name for span in plan.planes]
    if list(given) != names:
        raise LayoutError(f"planes of {plan.format} are {', '.join(names)}, not {', '.join(given)}")
    return list(given.values())


def _flat_bytes(buffer: bytes | bytearray | memoryview | np.ndarray) -> np.ndarray:
    try:
        return np.frombuffer(buffer, np.uint8)
    except (BufferError, ValueError) as error:
        raise LayoutError(f"a payload is one contiguous byte buffer; this {type(buffer).__name__}: {error}") from None


def _bytes_of(plane: AnyArray | np.generic) -> np.ndarray:
    host = np.asarray(plane)
    little = np.ascontiguousarray(host, host.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8)


def _view(data: np.ndarray, span: PlaneSpan) -> np.ndarray:
    view = data[span.offset : span.offset + span.nbytes].view(span.dtype).reshape(span.shape)
    view.flags.writeable = False
    return view
