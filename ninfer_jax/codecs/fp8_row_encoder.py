"""The encoder profile FP8_ROW_MAXABS_BF16_V1 of FP8_E4M3FN_ROW_BF16S (tensor-formats §3.4, §8).

The profile, for one row of a source; every rounding is to nearest, ties to even, with gradual underflow:

1. Each value is rounded to binary32, then to BF16: `b[i]`. The encoder fails if any is not finite, so it fails for
   NaN, infinities, and binary32 magnitudes from 0x7F7F8000 up (these round to a BF16 infinity).
2. `amax = max_i |b[i]|`. If it is zero, the scale is positive zero. Otherwise `scale = RNE_bf16(amax / 448)` of the
   real quotient.
3. Rescue: a scale that rounds to zero becomes 0x0001 (2^-133). No scale overflows: the largest is that of
   amax = 0x7F7F, and its product with 448 is finite.
4. Each code is `RNE_e4m3fn(b[i] / scale)` of the real quotient, saturating at the magnitude 448 (0x7E). Quotients above
   464 occur only with subnormal scales, which can be rounded down by a third.
5. A code has the sign of its source, so negative zero gives 0x80, in a row of zeros too.

Nothing is flushed, whatever the size of the values.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, UInt32

from ninfer_jax.codecs.float_words import (
    BFLOAT16,
    bits_float,
    divide,
    e4m3fn_words,
    float_bits,
    round_to,
    split,
    split_normal,
)
from ninfer_jax.codecs.sources import binary32_words, last_axis_maximum, magnitude_words, widen_words
from ninfer_jax.words import RowScaledWords

FP8_ROW_MAXABS_BF16_V1 = "FP8_ROW_MAXABS_BF16_V1"
REFUSED_MAGNITUDE = 0x7F7F8000  # the smallest binary32 magnitude that rounds to a BF16 infinity
_WORD_448 = 0x43E00000
_BF16_INFINITY = 0x7F80
_SMALL_ROW = 67 << 7  # BF16 word of 2^-60
_LIFT = 100  # exponent added to small rows, which brings their subnormals into the normal range


def encode_fp8_row(x: jax.Array) -> tuple[RowScaledWords, Bool[Array, ""]]:
    """`code = RNE_e4m3fn(bf16(x) / scale)` with one scale a row, and whether every value is finite in BF16.

    Args:
        x: finite source [..., n, k], float32, bfloat16 or float16.

    Returns:
        The words, and False where any value is not finite in BF16 (the words are then meaningless).
    """
    words = binary32_words(x)
    amax = _round_to_bf16(widen_words(last_axis_maximum(magnitude_words(x)), x.dtype))
    scales = round_to(divide(split(amax << 16), split_normal(jnp.uint32(_WORD_448))), BFLOAT16)
    scales = jnp.maximum(scales, (amax != 0).astype(jnp.uint32))
    lift = jnp.where(amax < _SMALL_ROW, _LIFT, 0)
    rounded = _round_to_bf16(words & 0x7FFFFFFF)
    quotient = _lifted(rounded, lift[..., None]) * _lifted_reciprocal(scales, lift)[..., None]
    # The real quotient of two 8-bit significands is either an E4M3 midpoint or at least 2^-13 of itself away from one.
    # Sixteen bits of the approximate quotient therefore decide as the real quotient does, ties included.
    quotient16 = bits_float((float_bits(quotient) + 0x80) & jnp.uint32(0xFFFFFF00))
    codes = (e4m3fn_words(quotient16) | ((words >> 31) << 7)).astype(jnp.uint8)
    return RowScaledWords(codes, scales.astype(jnp.uint16)), jnp.all(amax < _BF16_INFINITY)


def _round_to_bf16(magnitudes: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """`RNE_bf16` of binary32 magnitude words, as 16-bit words; at least 0x7F80 where the result is not finite."""
    return (magnitudes + 0x7FFF + ((magnitudes >> 16) & 1)) >> 16


def _lifted(words: UInt32[Array, "*lead k"], lift: jax.Array) -> jax.Array:
    """BF16 magnitudes times `2^lift` as float32; without a lift subnormals drop, being far below every code."""
    subnormal = words.astype(jnp.int32).astype(jnp.float32) * jnp.float32(2.0 ** (_LIFT - 133))
    subnormal = jnp.where(lift == 0, jnp.float32(0), subnormal)
    normal = (words << 16) + (lift.astype(jnp.uint32) << 23)
    return jnp.where(words < 0x80, subnormal, bits_float(normal))


def _lifted_reciprocal(scales: UInt32[Array, "*lead"], lift: jax.Array) -> jax.Array:
    """`1 / (scale * 2^lift)` to a few units in the last place; 1 for the zero scale, whose codes are 0 anyway."""
    value = split(scales << 16)
    exponent = (value.exponent + 127 + lift).astype(jnp.uint32)
    lifted = ((value.significand >> 2) & 0x7FFFFF) | (exponent << 23)
    return jnp.float32(1) / bits_float(jnp.where(scales == 0, jnp.uint32(0x3F800000), lifted))
