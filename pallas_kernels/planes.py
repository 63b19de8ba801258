"""Raw planes of a packed weight: the persistent bytes, shaped, and the check that they are what a kernel expects.

Leaves out decoding: a kernel unpacks the planes in registers (mosaic_gpu/_unpack). Source: storage-layouts.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.errors import PlaneShapeError
from pallas_kernels.tiling import weight_kind


class WeightPlanes(NamedTuple):
    """Planes of one [N, K] weight; a plane its kind does not have is None.

    Attributes:
      codes: uint8, the base plane of a grouped kind, else the plane of codes.
      high: uint8, the plane of high bits of q5 and q6.
      scales: uint16 binary16 (grouped) or bfloat16 (fp8) words, or uint8 E4M3FN words as stored (nvfp4).
      divisor: uint32 scalar, the binary32 word of nvfp4's weight divisor.
    """

    codes: jax.Array | np.ndarray | jax.ShapeDtypeStruct
    high: jax.Array | np.ndarray | jax.ShapeDtypeStruct | None
    scales: jax.Array | np.ndarray | jax.ShapeDtypeStruct
    divisor: jax.Array | np.ndarray | jax.ShapeDtypeStruct | None


def plane_shapes(kind: str, n: int, k: int) -> WeightPlanes:
    """Shapes and dtypes of the planes of an [n, k] weight.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      n: rows, elements.
      k: columns, elements.

    Returns:
      `WeightPlanes` of `jax.ShapeDtypeStruct`, None where the kind has no such plane.

    Raises:
      PlaneShapeError: the kind cannot hold that shape.
    """
    info = weight_kind(kind)
    if n < 1 or k < 1 or n % info.n_multiple or (kind == "nvfp4" and k % info.k_multiple):
        raise PlaneShapeError(
            f"a {kind} weight of shape [{n}, {k}] cannot be stored: rows must be a positive multiple of "
            f"{info.n_multiple}"
            + (f" and columns of {info.k_multiple}" if kind == "nvfp4" else " and columns positive")
        )
    u8, u16, u32 = jnp.uint8, jnp.uint16, jnp.uint32
    shape = jax.ShapeDtypeStruct
    if kind == "fp8":
        return WeightPlanes(shape((n, k), u8), None, shape((n,), u16), None)
    if kind == "nvfp4":
        scales = shape((n // 128, k // 64, 32, 4, 4), u8)
        return WeightPlanes(shape((n, k // 2), u8), None, scales, shape((), u32))
    groups = info.groups(k)
    high = shape((n, groups * info.high_bytes), u8) if info.high_bytes else None
    return WeightPlanes(shape((n, groups * info.group_bytes), u8), high, shape((n, groups), u16), None)


def check_planes(planes: WeightPlanes, *, kind: str, n: int, k: int) -> None:
    """Raise `PlaneShapeError` unless the planes have the shapes and dtypes of an [n, k] weight of that kind."""
    for field, want, got in zip(WeightPlanes._fields, plane_shapes(kind, n, k), planes, strict=True):
        if want is None and got is None:
            continue
        if want is None or got is None:
            raise PlaneShapeError(f"{kind} [{n}, {k}]: plane {field} is {_text(got)}, it must be {_text(want)}")
        if tuple(got.shape) != tuple(want.shape) or got.dtype != want.dtype:
            raise PlaneShapeError(f"{kind} [{n}, {k}]: plane {field} is {_text(got)}, it must be {_text(want)}")


def plane_bytes(kind: str, n: int, k: int) -> int:
    """Bytes of all planes of an [n, k] weight."""
    planes = [plane for plane in plane_shapes(kind, n, k) if plane is not None]
    return sum(math.prod(plane.shape) * np.dtype(plane.dtype).itemsize for plane in planes)


def row_numbers(ids: jax.Array, n: int) -> jax.Array:
    """Integers of any type as int32 row numbers: clipped to 0..n - 1, those of int32 left to the kernel to clip."""
    ids = jnp.asarray(ids)
    if ids.dtype == jnp.int32:
        return ids
    # A narrower type may have no room for n, which would wrap around; a cast of a wider one would itself.
    ids = ids.astype(jnp.int32) if ids.dtype.itemsize < 4 else ids
    return jnp.clip(ids, 0, n - 1).astype(jnp.int32)


def _text(plane: jax.Array | np.ndarray | jax.ShapeDtypeStruct | None) -> str:
    return "absent" if plane is None else f"{np.dtype(plane.dtype).name}{list(plane.shape)}"
