"""Bit planes of 4, 5 and 6-bit codes, by arithmetic on wide integers (storage-layouts, row-split-k128-v1).

Four code bytes are handled as one 32-bit integer: a strided gather of nibbles runs several times slower on CPU. Lane 0
of a 32-bit word is its low byte, which is what `bitcast_convert_type` promises on every platform.
"""

import jax
import jax.numpy as jnp

from ninfer_jax._typing import AnyArray


def pack_nibbles(codes: AnyArray) -> jax.Array:
    """Low four bits of byte pairs: `out[j] = codes[2j] & 15 | (codes[2j + 1] & 15) << 4`.

    Args:
        codes: uint8 [..., k], k a multiple of 4.

    Returns:
        uint8 [..., k / 2].
    """
    wide = _widen(codes, jnp.uint16)
    return ((wide & 0xF) | ((wide >> 4) & 0xF0)).astype(jnp.uint8)


def pack_high(codes: AnyArray, bits: int) -> jax.Array | None:
    """Bits 4 and up of every code, lane 0 in the lowest bits; None for 4-bit codes.

    Args:
        codes: uint8 [..., k], k a multiple of 8.
        bits: code width.

    Returns:
        uint8 [..., k * (bits - 4) / 8].
    """
    if bits == 4:
        return None
    wide = _widen(codes, jnp.uint32) >> 4
    if bits == 6:
        wide = wide & 0x03030303
        return (wide | (wide >> 6) | (wide >> 12) | (wide >> 18)).astype(jnp.uint8)
    wide = wide & 0x01010101
    quad = (wide | (wide >> 7) | (wide >> 14) | (wide >> 21)).astype(jnp.uint8) & 0xF
    return pack_nibbles(quad)


def unpack_codes(base: AnyArray, high: AnyArray | None, bits: int) -> jax.Array:
    """Signed codes from base and high planes: the inverse of `pack_nibbles` and `pack_high`.

    Args:
        base: uint8 [..., k / 2].
        high: uint8 [..., k * (bits - 4) / 8], None for 4-bit codes.
        bits: code width.

    Returns:
        int8 [..., k].
    """
    codes = unpack_nibbles(base)
    if high is not None:
        width = bits - 4
        shifts = jnp.arange(0, 8, width, dtype=jnp.uint8)
        lanes = (jnp.asarray(high)[..., None] >> shifts) & jnp.uint8((1 << width) - 1)
        codes = codes | (lanes.reshape(codes.shape) << 4)
    sign = jnp.uint8(1 << (bits - 1))
    return ((codes ^ sign) - sign).view(jnp.int8)


def unpack_nibbles(packed: AnyArray) -> jax.Array:
    """Both nibbles of every byte, low first: uint8 [..., m] to uint8 [..., 2m]."""
    packed = jnp.asarray(packed)
    shifts = jnp.array([0, 4], jnp.uint8)
    lanes = (packed[..., None] >> shifts) & jnp.uint8(0xF)
    return lanes.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def _widen(codes: AnyArray, dtype) -> jax.Array:
    codes = jnp.asarray(codes)
    lanes = jnp.dtype(dtype).itemsize
    return jax.lax.bitcast_convert_type(codes.reshape(*codes.shape[:-1], -1, lanes), dtype)
