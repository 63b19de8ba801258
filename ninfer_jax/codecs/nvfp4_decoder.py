"""Exact decoder of NVFP4: `w = round_f32((e2m1 * e4m3fn) / d_w)` (tensor-formats §3.3).

The significand of a nonzero E2M1 code is 1 or 1.5, so two quotients a scale serve a whole group. Where every weight is
a normal number, the quotients are rounded once and a weight is one of them times a power of two. Otherwise they are
kept to 26 bits with a sticky bit, and each weight shifts one of them and rounds by itself, with gradual underflow and
overflow to infinity. Words outside the valid language (NaN scales, divisors that are not finite and positive) have no
defined value.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, UInt32

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

_USUAL_DIVISORS = (127 - 110) << 23, (127 + 110) << 23
"""Words of 2^-110 and 2^110: nonzero weights lie in [2^-10, 2688] over the divisor, far from both ends of binary32."""


def decode_nvfp4(words: NVFP4Words) -> Float32[Array, "*lead n k"]:
    """`w[..., n, k] = round_f32(code[..., n, k] * scale[..., n, k // 16] / d_w[...])`, signed zeros kept."""
    codes, scales = jnp.asarray(words.codes), jnp.asarray(words.scales)
    divisors = jnp.asarray(words.divisor) & 0x7FFFFFFF
    usual = jnp.all((divisors >= _USUAL_DIVISORS[0]) & (divisors < _USUAL_DIVISORS[1]))
    return lax.cond(usual, _decode_normal, _decode_any, codes, scales, divisors)


def _decode_normal(codes: Array, scales: Array, divisors: Array) -> Array:
    """Weights that are all zero or normal numbers."""
    quotients = [_rounded(quotient, scales) for quotient in _quotients(scales, split_normal(divisors))]
    lanes = split_groups(codes, NVFP4.group_size).astype(jnp.uint32)
    magnitudes = lanes & 7
    half_more = _is_half_more(magnitudes)
    power = bits_float(((magnitudes >> 1) + 126) << 23)
    weights = jnp.where(half_more, quotients[1][..., None], quotients[0][..., None]) * power
    return _join(jnp.where(magnitudes == 0, jnp.uint32(0), float_bits(weights)), lanes, scales, codes.shape[-1])


def _rounded(quotient: Unrounded, scales: Array) -> Float32[Array, "*lead n groups"]:
    """A quotient in binary32; 0 for a scale of zero.

    It is the significand, rounded, over a power of two. Ending in a division matters for speed alone: XLA never
    recomputes one for each weight of a group, as it does with cheaper operations.
    """
    significand = round_to(quotient._replace(exponent=jnp.zeros_like(quotient.exponent)), BINARY32)
    exponent = jnp.where(scales & 0x7F == 0, 0, quotient.exponent)
    return bits_float(significand) / bits_float((127 - exponent).astype(jnp.uint32) << 23)


def _decode_any(codes: Array, scales: Array, divisors: Array) -> Array:
    """Weights that may be subnormal or infinite."""
    # One pair of quotients a group, not one for each of its weights.
    whole, half_more = lax.optimization_barrier(_quotients(scales, split(divisors)))
    lanes = split_groups(codes, NVFP4.group_size).astype(jnp.uint32)
    magnitudes = lanes & 7
    is_half_more = _is_half_more(magnitudes)
    significand = jnp.where(is_half_more, half_more.significand[..., None], whole.significand[..., None])
    exponent = jnp.where(is_half_more, half_more.exponent[..., None], whole.exponent[..., None])
    shift = (magnitudes >> 1).astype(jnp.int32) - 1
    significand = jnp.where(magnitudes == 0, jnp.uint32(0), significand)
    return _join(round_to(Unrounded(significand, exponent + shift), BINARY32), lanes, scales, codes.shape[-1])


def _quotients(scales: Array, divisors: Unrounded) -> tuple[Unrounded, Unrounded]:
    """`scale / d_w` and `1.5 * scale / d_w` of every group."""
    divisors = Unrounded(divisors.significand[..., None, None], divisors.exponent[..., None, None])
    values = e4m3fn_float(scales.astype(jnp.uint32) & 0x7F)
    return (
        divide(split_normal(float_bits(values)), divisors),
        divide(split_normal(float_bits(values * jnp.float32(1.5))), divisors),
    )


def _is_half_more(magnitudes: UInt32[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Code magnitudes 0..7 mean 0, 1/2, 1, 3/2, 2, 3, 4, 6: True for those of significand 1.5."""
    return ((magnitudes & 1) == 1) & (magnitudes > 1)


def _join(magnitudes: Array, lanes: Array, scales: Array, columns: int) -> Array:
    """Signed values of the groups' binary32 magnitude words."""
    sign = ((lanes >> 3) ^ (scales.astype(jnp.uint32) >> 7)[..., None]) << 31
    return join_groups(bits_float(magnitudes | sign), columns)
