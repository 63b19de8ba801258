"""Bit fields of codes in bytes, lane 0 in the lowest bits (storage-layouts).

Fields are joined by an or-reduction over the lanes of a byte. XLA fuses it into whatever produces the codes; strided
slices of the lanes, or a bitcast to wider integers, make the CPU back end compute the producer once a lane or fall back
to scalar code, five to ten times slower next to an encoder.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Int8, UInt8

from ninfer_jax._typing import AnyArray


def pack_bits(codes: UInt8[AnyArray, "*lead k"], low: int, width: int) -> UInt8[jax.Array, "*lead row_bytes"]:
    """`out[j] = OR_i ((codes[j * per + i] >> low) & (2**width - 1)) << (i * width)`, with `per = 8 / width`.

    Args:
        codes: uint8 [..., k], k a multiple of `per`.
        low: lowest bit of the field.
        width: bits of the field: 1, 2 or 4.

    Returns:
        uint8 [..., k * width / 8].
    """
    codes = jnp.asarray(codes)
    fields = (codes >> jnp.uint8(low)) & jnp.uint8((1 << width) - 1)
    lanes = fields.reshape(*codes.shape[:-1], -1, 8 // width) << _shifts(width)
    return lax.reduce(lanes, np.uint8(0), lax.bitwise_or, (lanes.ndim - 1,))


def unpack_bits(packed: UInt8[AnyArray, "*lead row_bytes"], width: int) -> UInt8[jax.Array, "*lead k"]:
    """The fields of every byte, lowest first: uint8 [..., m] to uint8 [..., m * 8 / width]."""
    packed = jnp.asarray(packed)
    lanes = (packed[..., None] >> _shifts(width)) & jnp.uint8((1 << width) - 1)
    # The CPU back end vectorises lanes as an axis of their own and not once they are merged into columns, so the merge
    # is kept out of the fusion: unpacking runs three times faster on jax 0.11 and 0.12. Jax 0.10 drops the barrier.
    return lax.optimization_barrier(lanes).reshape(*packed.shape[:-1], packed.shape[-1] * 8 // width)


def sign_extend(codes: UInt8[jax.Array, "*shape"], bits: int) -> Int8[jax.Array, "*shape"]:
    """Two's complement of `bits` bits in uint8 to int8."""
    sign = jnp.uint8(1 << (bits - 1))
    return lax.bitcast_convert_type((codes ^ sign) - sign, jnp.int8)


def _shifts(width: int) -> jax.Array:
    return jnp.arange(0, 8, width, dtype=jnp.uint8)
