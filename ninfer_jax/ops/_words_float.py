"""Fast float32 values of small words, up to a power of two that the caller folds in, and exact outer scaling.

E4M3FN and E2M1 are the top of a binary16 word with another exponent bias: moving their bits there and widening gives
`value * 2^-8` and `value * 2^-14` exactly, subnormals included, with instructions that vectorize. Bit-exact decoding of
whole weights is in `ninfer_jax.codecs`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, UInt8, UInt16, UInt32

E4M3_UNIT = 2.0**8
E2M1_UNIT = 2.0**14

_SIGN = np.int16(-0x8000)


def binary16_values(words: UInt16[Array, "..."]) -> Float32[Array, "..."]:
    """float32 of binary16 words."""
    return lax.bitcast_convert_type(words, jnp.float16).astype(jnp.float32)


def e4m3_values(words: UInt8[Array, "..."]) -> Float32[Array, "..."]:
    """`value / E4M3_UNIT` of E4M3FN words; NaN words have no defined value."""
    # Shifting right with the sign copied leaves the exponent one place lower; the copy itself is then cleared.
    wide = lax.bitcast_convert_type(words.astype(jnp.uint16) << 8, jnp.int16) >> 1
    return _half(wide & np.int16(-0x4001))


def e2m1_values(pairs: UInt8[Array, "..."]) -> tuple[Float32[Array, "..."], Float32[Array, "..."]]:
    """`value / E2M1_UNIT` of the low and of the high E2M1 word of each byte."""
    wide = lax.bitcast_convert_type(pairs, jnp.int8).astype(jnp.int16)
    low, high = wide << 12, wide << 8
    return _half(_e2m1_bits(low)), _half(_e2m1_bits(high))


def _e2m1_bits(top_nibble: jax.Array) -> jax.Array:
    return (top_nibble & _SIGN) | ((top_nibble >> 3) & np.int16(0x0E00))


def _half(words: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(words, jnp.float16).astype(jnp.float32)


def times_word(y: Float32[Array, "..."], words: UInt32[Array, "..."]) -> Float32[Array, "..."]:
    """`y * value(words)` for finite binary32 words, subnormal words included (XLA would flush them to zero)."""
    significand, exponent = _split(_of_rank(words, y.ndim))
    return _times_power(y * significand, exponent)


def over_word(y: Float32[Array, "..."], words: UInt32[Array, "..."]) -> Float32[Array, "..."]:
    """`y / value(words)` for finite nonzero binary32 words, subnormal words included."""
    significand, exponent = _split(_of_rank(words, y.ndim))
    return _times_power(y / significand, -exponent)


def _of_rank(words: jax.Array, rank: int) -> jax.Array:
    """Leading axes of extent 1, which users may forbid to be implied (`jax_numpy_rank_promotion`)."""
    return lax.expand_dims(words, range(rank - words.ndim))


def _split(words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`value(words) = significand * 2^exponent` with |significand| in [1, 2), or 0."""
    magnitude = words & jnp.uint32(0x7FFFFFFF)
    shift = jnp.maximum(lax.clz(magnitude).astype(jnp.int32) - 8, 0)  # nonzero for subnormals only
    fraction = (magnitude << shift.astype(jnp.uint32)) & jnp.uint32(0x7FFFFF)
    significand = lax.bitcast_convert_type(
        (words & jnp.uint32(0x80000000)) | jnp.uint32(0x3F800000) | fraction, jnp.float32
    )
    exponent = jnp.maximum((magnitude >> 23).astype(jnp.int32), 1) - 127 - shift
    return jnp.where(magnitude == 0, jnp.float32(0), significand), jnp.where(magnitude == 0, 0, exponent)


def _times_power(y: jax.Array, exponent: jax.Array) -> jax.Array:
    half = exponent >> 1  # both factors are normal for every exponent of a binary32 number
    return y * _power(half) * _power(exponent - half)


def _power(exponent: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)
