"""Rows of a packed weight, decoded: the embedding look-up.

    y[t, k] = code[ids[t], k] * scale[ids[t], k // group]

Written for XLA, not as a kernel: XLA fuses the gather of packed rows with their decoding, so one launch reads only the
packed bytes of the rows asked for and writes only the result, which is all a kernel could do (the ahead-of-time suite
checks that no other array is written). It therefore runs on any device. Leaves out checking ids: those out of range are
clipped to the first or last row. Source: storage-layouts; tensor-formats §3, §5.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.planes import WeightPlanes, check_planes
from pallas_kernels.tiling import weight_kind

#: E2M1 magnitudes as multiples of 1 and of 1.5: a power of two of one of the two, or zero.
_ONES, _ONE_AND_HALVES = (0.0, 0.5, 1.0, 0.0, 2.0, 0.0, 4.0, 0.0), (0.0, 0.0, 0.0, 1.0, 0.0, 2.0, 0.0, 4.0)


def take_rows(
    planes: WeightPlanes, ids: Int[Array, " tokens"], *, kind: str, n: int, k: int, out_dtype: Any = jnp.bfloat16
) -> Float[Array, "tokens k"]:
    """y[t] = row ids[t] of the [n, k] weight, decoded in float32 and rounded once.

    Args:
      planes: raw planes of the weight.
      ids: rows to take, clipped to 0..n - 1.
      kind: a name of `WEIGHT_KINDS`.
      n: rows of the weight.
      k: columns of the weight.
      out_dtype: bfloat16 or float32.

    Returns:
      out_dtype [tokens, k].

    Raises:
      PlaneShapeError: planes that are not those of such a weight.
      UnsupportedKernelError: an unknown kind.
    """
    check_planes(planes, kind=kind, n=n, k=k)
    ids = jnp.clip(ids, 0, n - 1)
    codes = jnp.asarray(planes.codes)[ids]
    if kind == "fp8":
        values = lax.bitcast_convert_type(codes, jnp.float8_e4m3fn).astype(jnp.float32)
        scales = lax.bitcast_convert_type(jnp.asarray(planes.scales)[ids], jnp.bfloat16).astype(jnp.float32)
        return (values * scales[:, None]).astype(out_dtype)
    if kind == "nvfp4":
        return _take_nvfp4(planes, codes, ids).astype(out_dtype)
    words = _codes(codes, None if planes.high is None else jnp.asarray(planes.high)[ids], kind)
    scales = lax.bitcast_convert_type(jnp.asarray(planes.scales)[ids], jnp.float16).astype(jnp.float32)
    values = words.astype(jnp.float32) * jnp.repeat(scales, weight_kind(kind).group_size, axis=1)
    return values[:, :k].astype(out_dtype)


def _spread(bytes_: jax.Array, bits: int) -> jax.Array:
    """int32 [t, columns]: the fields of so many bits of each byte, lowest first."""
    fields = bytes_[:, :, None].astype(jnp.int32) >> jnp.arange(0, 8, bits) & ((1 << bits) - 1)
    return fields.reshape(bytes_.shape[0], -1)


def _codes(base: jax.Array, high: jax.Array | None, kind: str) -> jax.Array:
    """Signed codes, int32 [t, columns]."""
    width = weight_kind(kind).code_bits
    unsigned = _spread(base, 8 if width == 8 else 4)
    if high is not None:
        unsigned = unsigned | _spread(high, width - 4) << 4
    sign = 1 << (width - 1)
    return (unsigned ^ sign) - sign


def _take_nvfp4(planes: WeightPlanes, codes: jax.Array, ids: jax.Array) -> jax.Array:
    nibbles = _spread(codes, 4)
    # [tile, block of 4 groups, row % 32, row // 32, group % 4] as stored.
    scales = jnp.asarray(planes.scales)[ids // 128, :, ids % 32, ids % 128 // 32, :].reshape(ids.shape[0], -1)
    scales = lax.bitcast_convert_type(scales, jnp.float8_e4m3fn).astype(jnp.float32)
    # Two correctly rounded quotients a group; powers of two of them are exact. XLA would turn a division by a broadcast
    # scalar into a product with its reciprocal, which rounds twice; the barrier keeps it from seeing one.
    divisor = lax.bitcast_convert_type(jnp.asarray(planes.divisor), jnp.float32)
    divisors = lax.optimization_barrier(jnp.full(scales.shape, divisor))
    quotients = (jnp.repeat(numerators / divisors, 16, axis=1) for numerators in (scales, 1.5 * scales))
    factors = (jnp.asarray(table, jnp.float32)[nibbles & 7] for table in (_ONES, _ONE_AND_HALVES))
    magnitudes = sum(q * f for q, f in zip(quotients, factors, strict=True))
    return jnp.where(nibbles & 8, -magnitudes, magnitudes)
