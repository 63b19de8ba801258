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
    lanes = fields.reshape(*codes.shape[:-1], -1, 8 // width)
    lanes = lanes << _shifts(width, lanes.ndim)
    return lax.reduce(lanes, np.uint8(0), lax.bitwise_or, (lanes.ndim - 1,))


def unpack_nibbles(packed: UInt8[AnyArray, "*lead row_bytes"]) -> UInt8[jax.Array, "*lead k"]:
    """Both nibbles of every byte, low first: uint8 [..., m] to uint8 [..., 2m]."""
    return _merge(_nibbles(jnp.asarray(packed)))


def unpack_codes(
    base: UInt8[AnyArray, "*lead row_bytes"], high: UInt8[AnyArray, "*lead high_bytes"] | None, bits: int
) -> Int8[jax.Array, "*lead k"]:
    """Signed codes of `bits` bits: the low four from nibbles of `base`, the others from fields of `high`.

    Args:
        base: uint8 [..., k / 2].
        high: uint8 [..., k * (bits - 4) / 8], or None for 4-bit codes.
        bits: code width: 4, 5 or 6.

    Returns:
        int8 [..., k].
    """
    codes = _nibbles(jnp.asarray(base))
    if high is not None:
        width = bits - 4
        # First give every base byte the high fields of its own two lanes, then split both alike.
        pairs = _merge(_fields(jnp.asarray(high), 2 * width))
        fields = (pairs[..., None] >> _shifts(width, pairs.ndim + 1)[..., :2]) & jnp.uint8((1 << width) - 1)
        codes = codes | (fields << 4)
    sign = jnp.uint8(1 << (bits - 1))
    return lax.bitcast_convert_type(_merge((codes ^ sign) - sign), jnp.int8)


def _nibbles(packed: jax.Array) -> jax.Array:
    return _fields(packed, 4) & jnp.uint8(0xF)


def _fields(packed: jax.Array, width: int) -> jax.Array:
    """[..., m] to [..., m, 8 / width]: each byte shifted to each of its fields; higher ones are still above it."""
    return packed[..., None] >> _shifts(width, packed.ndim + 1)


def _merge(lanes: jax.Array) -> jax.Array:
    """[..., m, lanes] to [..., m * lanes].

    The CPU back end vectorises lanes as an axis of their own and not once they are merged into columns, so the barrier
    keeps the merge out of the fusion: unpacking runs two to six times faster on jax 0.11 and 0.12. Jax 0.10 drops it.
    """
    return lax.optimization_barrier(lanes).reshape(*lanes.shape[:-2], -1)


def _shifts(width: int, rank: int) -> jax.Array:
    """The lowest bit of each field of a byte along the last of `rank` axes: rank promotion may be turned off."""
    return jnp.arange(0, 8, width, dtype=jnp.uint8).reshape((1,) * (rank - 1) + (-1,))
