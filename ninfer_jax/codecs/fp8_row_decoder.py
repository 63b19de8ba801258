"""Exact decoder of FP8_E4M3FN_ROW_BF16S: `w = binary32(code * scale)` (tensor-formats §3.4).

Gradual underflow and overflow to infinity are kept: a subnormal scale or product survives. Code and scale words outside
the valid language (NaN codes, non-finite scales) have no defined value.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float32

from ninfer_jax.codecs.float_words import (
    BINARY32,
    Unrounded,
    bits_float,
    e4m3fn_float,
    float_bits,
    round_to,
    split,
    split_normal,
)
from ninfer_jax.words import RowScaledWords


def decode_fp8_row(words: RowScaledWords) -> Float32[Array, "*lead n k"]:
    """`w[..., n, k] = round_f32(code[..., n, k] * scale[..., n])`, signed zeros kept."""
    codes = jnp.asarray(words.codes).astype(jnp.uint32)
    scale_words = jnp.asarray(words.scales).astype(jnp.uint32)
    scales = split((scale_words & 0x7FFF) << 16)
    # Twelve bits hold the product of the significands; with the exponent of the scale set aside it is a normal float32.
    unit_scale = jnp.where(scales.significand == 0, jnp.uint32(0), (scales.significand >> 2 & 0x7FFFFF) | 0x3F800000)
    product = split_normal(float_bits(e4m3fn_float(codes & 0x7F) * bits_float(unit_scale)[..., None]))
    magnitude = round_to(Unrounded(product.significand, product.exponent + scales.exponent[..., None]), BINARY32)
    sign = ((codes >> 7) ^ (scale_words >> 15)[..., None]) << 31
    return bits_float(magnitude | sign)
