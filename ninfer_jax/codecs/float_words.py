"""Correctly rounded arithmetic on the integer words of floating-point numbers.

XLA flushes binary32 subnormals, rewrites divisions by a broadcast value into multiplications, and may fuse a
multiplication with an addition. Here a value is an integer significand and an exponent, so one rounding to any small
format is exact on every backend, eager and under jit. The only floating-point step is the first estimate of a quotient,
and up to two units in its last place of error are corrected. This module leaves out signs, infinities and NaNs: callers
handle them on the words (tensor-formats §3, §7).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32, Int32, UInt32

_FRACTION = 25  # an unrounded significand holds 24 bits of binary32 and two more: a guard bit and a sticky bit


class Unrounded(NamedTuple):
    """A nonnegative value: `significand / 2^25 * 2^exponent`.

    Attributes:
        significand: 0, or in [2^25, 2^26). Its lowest bit is sticky: set if any lower bit of the value is.
        exponent: any int32; of no meaning where the significand is 0.
    """

    significand: UInt32[Array, "*shape"]
    exponent: Int32[Array, "*shape"]


class FloatFormat(NamedTuple):
    """A binary floating-point format with gradual underflow.

    Attributes:
        mantissa_bits: stored fraction bits.
        bias: exponent bias.
        top: the word that everything larger rounds to: infinity, or the largest finite word if there is none.
    """

    mantissa_bits: int
    bias: int
    top: int


BINARY32 = FloatFormat(23, 127, 0x7F800000)
BINARY16 = FloatFormat(10, 15, 0x7C00)
BFLOAT16 = FloatFormat(7, 127, 0x7F80)
E4M3FN = FloatFormat(3, 7, 0x7E)


def float_bits(x: jax.Array) -> UInt32[Array, "*shape"]:
    """The binary32 words of a float32 array."""
    return lax.bitcast_convert_type(x, jnp.uint32)


def bits_float(words: UInt32[Array, "*shape"]) -> jax.Array:
    """The float32 array of binary32 words."""
    return lax.bitcast_convert_type(words, jnp.float32)


def e4m3fn_float(magnitudes: UInt32[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """Float32 values of E4M3FN magnitude words 0..0x7E: as binary16 words of a bias greater by 8, widened exactly."""
    half = lax.bitcast_convert_type(magnitudes.astype(jnp.uint16) << 7, jnp.float16)
    return half.astype(jnp.float32) * jnp.float32(2**8)


def e4m3fn_scale(magnitudes: UInt32[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """The same values as a significand over a power of two.

    Ending in a division matters for speed alone: XLA never recomputes one for each value of a group, as it does with
    cheaper operations.
    """
    field = jnp.maximum(magnitudes >> 3, 1)
    significand = jnp.where(magnitudes < 8, magnitudes, (magnitudes & 7) | 8)
    return significand.astype(jnp.int32).astype(jnp.float32) / bits_float((137 - field) << 23)


def e4m3fn_words(magnitudes: Float32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """`RNE_e4m3fn` of nonnegative finite float32 values, saturating at 448."""
    words = float_bits(magnitudes)
    normal = ((words + 0x7FFFF + ((words >> 20) & 1)) >> 20) - (120 << 3)
    subnormal = float_bits(magnitudes + jnp.float32(2**14)) & 0xF  # the sum's last place is 2^-9, the subnormal step
    return jnp.where(words < (121 << 23), subnormal, jnp.minimum(normal, 0x7E))


def split_normal(words: UInt32[Array, "*shape"]) -> Unrounded:
    """Split nonnegative finite binary32 words; subnormals count as zero."""
    exponent = (words >> 23).astype(jnp.int32)
    significand = ((words & 0x7FFFFF) | 0x800000) << 2
    return Unrounded(jnp.where(exponent == 0, jnp.uint32(0), significand), exponent - 127)


def split(words: UInt32[Array, "*shape"]) -> Unrounded:
    """Split nonnegative finite binary32 words, subnormals included."""
    fraction = words & 0x7FFFFF
    shift = lax.clz(fraction) - 8  # moves the leading one of a subnormal fraction to bit 23
    subnormal = Unrounded((fraction << shift) << 2, -126 - shift.astype(jnp.int32))
    normal = split_normal(words)
    is_subnormal = (words >> 23) == 0
    significand = jnp.where(is_subnormal, subnormal.significand, normal.significand)
    significand = jnp.where(words == 0, jnp.uint32(0), significand)
    return Unrounded(significand, jnp.where(is_subnormal, subnormal.exponent, normal.exponent))


def divide(numerator: Unrounded, denominator: Unrounded) -> Unrounded:
    """`numerator / denominator`, cut after 26 bits with a sticky last bit.

    Both operands must fit in 24 bits (no guard or sticky bit set), and the denominator must not be zero.
    """
    a = numerator.significand >> 2
    d = denominator.significand >> 2
    below = (a < d).astype(jnp.int32)  # the quotient is in [1/2, 1)
    numerator_float = a.astype(jnp.int32).astype(jnp.float32)
    estimate = numerator_float / d.astype(jnp.int32).astype(jnp.float32)
    estimate = estimate * jnp.where(below == 1, jnp.float32(2**24), jnp.float32(2**23))
    # Two units below the estimate is never above the quotient; the remainder is then less than 20 d, so it is known
    # exactly from its low 32 bits, and five steps of long division finish the quotient.
    quotient = (estimate.astype(jnp.int32).astype(jnp.uint32) - 2) << 2
    remainder = (a << (_FRACTION + below).astype(jnp.uint32)) - quotient * d
    for step in (16, 8, 4, 2, 1):
        part = d * step
        take = remainder >= part
        quotient = jnp.where(take, quotient + step, quotient)
        remainder = jnp.where(take, remainder - part, remainder)
    sticky = (remainder != 0).astype(jnp.uint32)
    return Unrounded(quotient | sticky, numerator.exponent - denominator.exponent - below)


def round_to(value: Unrounded, target: FloatFormat) -> UInt32[Array, "*shape"]:
    """`RNE(value)` as a word of `target`: nearest, ties to even, gradual underflow, overflow to `target.top`."""
    biased = value.exponent + target.bias
    kept = value.significand
    drop = _FRACTION - target.mantissa_bits + jnp.maximum(1 - biased, 0)
    drop = jnp.minimum(drop, _FRACTION + 2).astype(jnp.uint32)  # beyond that every value rounds to zero
    half = (jnp.uint32(1) << (drop - 1)) - 1
    rounded = (kept + half + ((kept >> drop) & 1)) >> drop
    # The implicit bit of a normal significand adds one to the exponent field, as does a carry out of the fraction.
    word = rounded + ((jnp.maximum(biased, 1) - 1).astype(jnp.uint32) << target.mantissa_bits)
    return jnp.where(kept == 0, jnp.uint32(0), jnp.minimum(word, jnp.uint32(target.top)))


def divide_by_integer(words: UInt32[Array, "*shape"], denominator: int, target: FloatFormat) -> UInt32[Array, "*shape"]:
    """`RNE(value / denominator)` as a word of `target`, for nonnegative binary32 words; subnormal ones count as zero.

    A midpoint of the target times the denominator is exact in binary32, so comparing it with the value decides. The
    approximate quotient only says which midpoint: the one above the word it is cut to. Where its error of a few units
    in the last place moves that word, the quotient is so close to a value of the target that both midpoints decide for
    that value.

    Args:
        words: binary32 words.
        denominator: at most `22 - target.mantissa_bits` bits.
        target: a format whose subnormals are normal in binary32.
    """
    value = bits_float(words)
    quotient = value * jnp.float32(1 / denominator)
    drop = 23 - target.mantissa_bits
    cut = float_bits(quotient) >> drop
    normal = cut - jnp.uint32((127 - target.bias) << target.mantissa_bits)
    midpoint = bits_float((cut << drop) + jnp.uint32(1 << (drop - 1)))
    # Below the smallest normal number of the target its values are a constant step apart.
    step = 2.0 ** (1 - target.bias - target.mantissa_bits)
    steps = (quotient * jnp.float32(1 / step)).astype(jnp.int32)
    small = quotient < jnp.float32(2.0 ** (1 - target.bias))
    word = jnp.where(small, steps.astype(jnp.uint32), normal)
    midpoint = jnp.where(small, (steps.astype(jnp.float32) + jnp.float32(0.5)) * jnp.float32(step), midpoint)
    tie = midpoint * jnp.float32(denominator)
    above = (value > tie) | ((value == tie) & ((word & 1) == 1))
    return jnp.minimum(word + above.astype(jnp.uint32), jnp.uint32(target.top))
