"""The canonical encoder MAXABS_F16_RECIP_RNE_V1 of the four grouped formats, bit for bit (tensor-formats §7).

Scales and reciprocals are computed on integer words, one per group; only `x * inv32` and the rounding to an integer are
floating point, and neither is touched by flushing: what it flushes has code 0 either way. This module leaves out
physical padding and packing (see `ninfer_jax.layouts`).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, UInt32

from ninfer_jax.codecs.float_words import BINARY16, BINARY32, bits_float, divide, round_to, split, split_normal
from ninfer_jax.codecs.grouping import join_groups, split_groups
from ninfer_jax.codecs.sources import group_maximum
from ninfer_jax.formats import GroupedFormat
from ninfer_jax.words import GroupedWords

MAXABS_F16_RECIP_RNE_V1 = "MAXABS_F16_RECIP_RNE_V1"
_BINARY16_OVERFLOW = 65520  # the tie between the largest finite binary16 and infinity goes to infinity


def refused_maximum(spec: GroupedFormat) -> int:
    """The smallest binary32 word of a group maximum that has no finite scale: the word of `65520 * qmax`."""
    return int(np.float32(_BINARY16_OVERFLOW * spec.qmax).view(np.uint32))


def scale_words(amax: UInt32[Array, "*lead"], spec: GroupedFormat) -> UInt32[Array, "*lead"]:
    """`RNE_binary16(amax / qmax)`, at least 0x0001 for a nonzero maximum.

    The specification rounds the quotient to binary32 first. That never changes the result: the quotient is at least
    `2^(b-1) / (2^b - 1)` of a binary32 unit away from every binary16 midpoint it does not hit, which is over one half.
    """
    denominator = split_normal(jnp.uint32(np.float32(spec.qmax).view(np.uint32)))
    scale = round_to(divide(split(amax), denominator), BINARY16)
    return jnp.maximum(scale, (amax != 0).astype(jnp.uint32))


def reciprocals(scales: UInt32[Array, "*lead"]) -> jax.Array:
    """`inv32 = round_f32(1 / scale32)` of binary16 words; 1 for the zero scale, whose codes are 0 whatever the factor."""
    normal = scales + (112 << 10) << 13
    subnormal = scales.astype(jnp.int32).astype(jnp.float32) * jnp.float32(2.0**-24)
    scale32 = jnp.where(scales < 0x400, lax.bitcast_convert_type(subnormal, jnp.uint32), normal)
    one = jnp.uint32(0x3F800000)
    return bits_float(round_to(divide(split_normal(one), split_normal(jnp.where(scales == 0, one, scale32))), BINARY32))


def encode_grouped(x: jax.Array, spec: GroupedFormat) -> tuple[GroupedWords, Bool[Array, ""]]:
    """`code = clamp(RNE(round_f32(x * inv32)), qmin, qmax)` for each group of the last axis, and whether all is legal.

    Args:
        x: finite source [..., k], float32, bfloat16 or float16.
        spec: a grouped format.

    Returns:
        The words, and False where any value is not finite or any scale overflows (the words are then meaningless).
    """
    groups = split_groups(x, spec.group_size)
    amax = group_maximum(groups)
    scales = scale_words(amax, spec)
    normalized = groups.astype(jnp.float32) * reciprocals(scales)[..., None]
    rounded = lax.round(normalized, lax.RoundingMethod.TO_NEAREST_EVEN)
    codes = jnp.clip(rounded, spec.qmin, spec.qmax).astype(jnp.int32).astype(jnp.int8)
    ok = jnp.all(amax < refused_maximum(spec))
    return GroupedWords(join_groups(codes, x.shape[-1]), scales.astype(jnp.uint16)), ok
