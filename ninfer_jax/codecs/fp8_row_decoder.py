"""Exact decoder of FP8_E4M3FN_ROW_BF16S: `w = binary32(code * scale)` (tensor-formats §3.4).

Gradual underflow and overflow to infinity are kept: a subnormal scale or product survives. Code and scale words outside
the valid language (NaN codes, non-finite scales) have no defined value.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32

from ninfer_jax.codecs.float_words import bits_float, e4m3fn_float, float_bits, split
from ninfer_jax.words import RowScaledWords

_INFINITY_WORD = 0x7F800000
_SMALLEST_NORMAL_WORD = 0x00800000


def decode_fp8_row(words: RowScaledWords) -> Float32[Array, "*lead n k"]:
    """`w[..., n, k] = round_f32(code[..., n, k] * scale[..., n])`, signed zeros kept.

    With the exponent of the scale set aside the product is a normal number of at most 12 bits, so exact. The exponent
    is then added to its word, or, where the result is subnormal, the product is rounded to multiples of 2^-149.
    """
    codes = jnp.asarray(words.codes).astype(jnp.uint32)
    scale_words = jnp.asarray(words.scales).astype(jnp.uint32)
    scales = split((scale_words & 0x7FFF) << 16)
    exponent = scales.exponent[..., None]
    unit_scale = jnp.where(scales.significand == 0, jnp.uint32(0), (scales.significand >> 2 & 0x7FFFFF) | 0x3F800000)
    product = e4m3fn_float(codes & 0x7F) * bits_float(unit_scale)[..., None]
    normal = lax.bitcast_convert_type(product, jnp.int32) + (exponent << 23)
    # Every subnormal result has an exponent below -100; the bound keeps the others in range.
    unit = bits_float((jnp.minimum(exponent, -100) + (149 + 127)).astype(jnp.uint32) << 23)
    subnormal = float_bits(product * unit + jnp.float32(2**23)) - jnp.uint32(0x4B000000)
    overflow = (normal < 0) & (exponent > 0)
    bounded = jnp.minimum(lax.bitcast_convert_type(normal, jnp.uint32), jnp.uint32(_INFINITY_WORD))
    magnitude = jnp.where((normal >= _SMALLEST_NORMAL_WORD) | overflow, bounded, subnormal)
    magnitude = jnp.where(product == 0, jnp.uint32(0), magnitude)
    sign = ((codes >> 7) ^ (scale_words >> 15)[..., None]) << 31
    return bits_float(magnitude | sign)
