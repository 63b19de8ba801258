"""The canonical encoder MAXABS_F16_RECIP_RNE_V1 of the four grouped formats, bit for bit (tensor-formats §7).

Scales and reciprocals are computed on integer words, one per group; only `x * inv32` and the rounding to an integer are
floating point, and neither is touched by flushing: what it flushes has code 0 either way. This module leaves out
physical padding and packing (see `ninfer_jax.layouts`).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from ninfer_jax.codecs.float_words import (
    BINARY16,
    bits_float,
    divide_by_integer,
    float_bits,
)
from ninfer_jax.codecs.grouping import join_groups, split_groups
from ninfer_jax.codecs.sources import binary32_words, last_axis_maximum, magnitude_words, widen_words
from ninfer_jax.formats import GroupedFormat
from ninfer_jax.words import GroupedWords

MAXABS_F16_RECIP_RNE_V1 = "MAXABS_F16_RECIP_RNE_V1"
_WORD_ONE = 0x3F800000
_BINARY16_OVERFLOW = 65520  # the tie between the largest finite binary16 and infinity goes to infinity


def refused_maximum(spec: GroupedFormat) -> int:
    """The smallest binary32 word of a group maximum that has no finite scale: the word of `65520 * qmax`."""
    return int(np.float32(_BINARY16_OVERFLOW * spec.qmax).view(np.uint32))


def scale_words(amax: UInt32[Array, "*lead"], spec: GroupedFormat) -> UInt32[Array, "*lead"]:
    """`RNE_binary16(amax / qmax)`, at least 0x0001 for a nonzero maximum.

    The specification rounds the quotient to binary32 first. That never changes the result: the quotient is at least
    `2^(b-1) / (2^b - 1)` of a binary32 unit away from every binary16 midpoint it does not hit, which is over one half.
    """
    scale = divide_by_integer(amax, spec.qmax, BINARY16)
    return jnp.maximum(scale, (amax != 0).astype(jnp.uint32))


def reciprocals(scales: UInt32[Array, "*lead"]) -> Float32[Array, "*lead"]:
    """`inv32 = round_f32(1 / scale32)` of binary16 words; any finite value for the zero scale, whose codes are 0.

    It is the reciprocal of the significand, rounded exactly, over a power of two. Ending in a division matters for
    speed alone: XLA never recomputes one for each value of a group, as it does with cheaper operations.
    """
    normal = (scales << 13) + jnp.uint32(112 << 23)
    subnormal = float_bits(scales.astype(jnp.int32).astype(jnp.float32) * jnp.float32(2.0**-24))
    scale32 = jnp.where(scales < 0x400, subnormal, normal)
    significand = (((scale32 & 0x7FFFFF) | 0x800000) >> 13).astype(jnp.int32)
    power = bits_float(jnp.where(scales == 0, jnp.uint32(_WORD_ONE), scale32 & 0x7F800000))
    # 2^34 / significand lies in (2^23, 2^24]. Up to two units of error in its estimate are corrected by the remainder,
    # which is small and therefore known from its low 32 bits, where 2^34 is zero. Only powers of two could tie.
    estimate = (jnp.float32(2**34) / significand.astype(jnp.float32)).astype(jnp.int32)
    twice = -2 * (estimate * significand)
    rounded = estimate
    for distance in (1, 3):
        rounded += (twice > distance * significand).astype(jnp.int32)
        rounded -= (twice < -distance * significand).astype(jnp.int32)
    return rounded.astype(jnp.float32) * jnp.float32(2.0**-24) / power


def encode_grouped(x: jax.Array, spec: GroupedFormat) -> tuple[GroupedWords, Bool[Array, ""]]:
    """`code = clamp(RNE(round_f32(x * inv32)), qmin, qmax)` for each group of the last axis, and whether all is legal.

    Args:
        x: finite source [..., k], float32, bfloat16 or float16.
        spec: a grouped format.

    Returns:
        The words, and False where any value is not finite or any scale overflows (the words are then meaningless).
    """
    amax = widen_words(last_axis_maximum(split_groups(magnitude_words(x), spec.group_size)), x.dtype)
    scales = scale_words(amax, spec)
    values = bits_float(split_groups(binary32_words(x), spec.group_size))
    rounded = lax.round(values * reciprocals(scales)[..., None], lax.RoundingMethod.TO_NEAREST_EVEN)
    codes = _integers(jnp.clip(rounded, spec.qmin, spec.qmax)).astype(jnp.int8)
    ok = jnp.all(amax < refused_maximum(spec))
    # A packer reads the codes once for each bit plane; without the barrier XLA would encode as often.
    codes = lax.optimization_barrier(join_groups(codes, x.shape[-1]))
    return GroupedWords(codes, scales.astype(jnp.uint16)), ok


def _integers(rounded: Float32[Array, "*shape"]) -> Int32[Array, "*shape"]:
    """Small integers from integral float32 values: adding 1.5 * 2^23 leaves them in the low bits of the word."""
    return lax.bitcast_convert_type(rounded + jnp.float32(1.5 * 2**23), jnp.int32)
