"""Exact decoder of NVFP4: `w = round_f32((e2m1 * e4m3fn) / d_w)` (tensor-formats §3.3).

The significand of a nonzero E2M1 code is 1 or 1.5, so two quotients a scale, kept to 26 bits with a sticky bit, serve a
whole group; each weight shifts one of them and rounds once. Gradual underflow and overflow to infinity are kept. Words
outside the valid language (NaN scales, divisors that are not finite and positive) have no defined value.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32, UInt32

from ninfer_jax.codecs.float_words import (
    BINARY32,
    Unrounded,
    bits_float,
    divide,
    e4m3fn_float,
    float_bits,
    round_to,
    split,
    split_normal,
)
from ninfer_jax.codecs.grouping import join_groups, split_groups
from ninfer_jax.formats import NVFP4
from ninfer_jax.words import NVFP4Words


def decode_nvfp4(words: NVFP4Words) -> Float32[Array, "*lead n k"]:
    """`w[..., n, k] = round_f32(code[..., n, k] * scale[..., n, k // 16] / d_w[...])`, signed zeros kept."""
    codes = jnp.asarray(words.codes)
    scale_words = jnp.asarray(words.scales).astype(jnp.uint32)
    divisors = split(jnp.asarray(words.divisor) & 0x7FFFFFFF)
    divisors = Unrounded(divisors.significand[..., None, None], divisors.exponent[..., None, None])
    scales = e4m3fn_float(scale_words & 0x7F)
    quotients = [divide(split_normal(float_bits(scales * jnp.float32(unit))), divisors) for unit in (1.0, 1.5)]
    quotients = lax.optimization_barrier(quotients)  # one pair a group, not one for each of its weights
    lanes = split_groups(codes, NVFP4.group_size).astype(jnp.uint32)
    magnitude = _weights(lanes & 7, *quotients)
    sign = ((lanes >> 3) ^ (scale_words >> 7)[..., None]) << 31
    return join_groups(bits_float(magnitude | sign), codes.shape[-1])


def _weights(
    magnitudes: UInt32[Array, "*lead groups 16"], whole: Unrounded, half_more: Unrounded
) -> UInt32[Array, "*lead groups 16"]:
    """Binary32 words of `e2m1 * quotient` for code magnitudes 0..7: 0, 1/2, 1, 3/2, 2, 3, 4, 6."""
    is_half_more = ((magnitudes & 1) == 1) & (magnitudes > 1)
    significand = jnp.where(is_half_more, half_more.significand[..., None], whole.significand[..., None])
    exponent = jnp.where(is_half_more, half_more.exponent[..., None], whole.exponent[..., None])
    shift = (magnitudes >> 1).astype(jnp.int32) - 1
    significand = jnp.where(magnitudes == 0, jnp.uint32(0), significand)
    return round_to(Unrounded(significand, exponent + shift), BINARY32)
