"""float32 products and quotients of words, rounded to nearest even by integers: what the twins of PTX's `.rn` run on.

    multiply(a, b) = round(a * b),    divide(a, b) = round(a / b)

XLA's CPU backend flushes subnormal operands and results and may divide by multiplying; a GPU does neither, so that a
twin of it cannot use XLA's own arithmetic. Infinities and NaNs do. Never part of a compiled kernel. Source:
xla-numerics.
"""

import jax
import jax.numpy as jnp
from jax import lax

#: Exponent of the lowest bit of a subnormal; the same of a word's significand is its field less 150.
_LOWEST = -149
_INFINITY = 0x7F800000


def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
    """The float32 word of the product of two words."""
    (a_significand, a_exponent), (b_significand, b_exponent) = map(_normalize, (a, b))
    a_high, a_low, b_high, b_low = (
        part for s in (a_significand, b_significand) for part in (s >> 12, s & jnp.uint32(0xFFF))
    )
    middle = a_high * b_low + a_low * b_high
    low = a_low * b_low + ((middle & 0xFFF) << 12)
    high = a_high * b_high + (middle >> 12) + (low >> 24)
    low = low & 0xFFFFFF
    word = _round(high << 7 | low >> 17, a_exponent + b_exponent + 17, low & 0x1FFFF != 0)
    return _finish(a, b, word, _float(a) * _float(b))


def divide(a: jax.Array, b: jax.Array) -> jax.Array:
    """The float32 word of the quotient of two words, the second not zero."""
    (dividend, a_exponent), (divisor, b_exponent) = map(_normalize, (a, b))
    # A quotient good to 20 bits; what it leaves fits in 32 bits, and the quotient of that is off by one at most.
    quotient = (dividend.astype(jnp.float32) / divisor.astype(jnp.float32) * 2.0**26).astype(jnp.uint32)
    rest = lax.bitcast_convert_type((dividend << 26) - quotient * divisor, jnp.int32)
    divisor = jnp.maximum(divisor, 1).astype(jnp.int32)
    more = jnp.floor(rest.astype(jnp.float32) / divisor.astype(jnp.float32)).astype(jnp.int32)
    remainder = rest - more * divisor
    more = more + (remainder >= divisor) - (remainder < 0)
    remainder = rest - more * divisor
    quotient = quotient + lax.bitcast_convert_type(more, jnp.uint32)
    word = _round(quotient, a_exponent - b_exponent - 26, remainder != 0)
    return _finish(a, b, word, _float(a) / _float(b))


def to_bfloat16(word: jax.Array) -> jax.Array:
    """The bfloat16 word, in the low half, of a float32 word."""
    is_nan = word & 0x7FFFFFFF > _INFINITY
    return jnp.where(is_nan, jnp.uint32(0x7FFF), (word + 0x7FFF + (word >> 16 & 1)) >> 16)


def _float(word: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(word, jnp.float32)


def _normalize(word: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Significand, with bit 23 set but for zero, and the exponent of its lowest bit, int32."""
    field = (word >> 23 & 0xFF).astype(jnp.int32)
    significand = (word & 0x7FFFFF) | (field > 0).astype(jnp.uint32) << 23
    shift = jnp.where(significand == 0, 0, lax.clz(significand) - 8)
    return significand << shift, jnp.maximum(field, 1) + _LOWEST - 1 - shift.astype(jnp.int32)


def _round(significand: jax.Array, exponent: jax.Array, further: jax.Array) -> jax.Array:
    """The word, without a sign, of significand * 2^exponent, `further` saying whether it is more than that."""
    length = 32 - lax.clz(significand).astype(jnp.int32)
    drop = jnp.maximum(length - 24, _LOWEST - exponent)
    right = jnp.clip(drop, 1, 31).astype(jnp.uint32)
    kept, rest = significand >> right, significand & ((jnp.uint32(1) << right) - 1)
    half = jnp.uint32(1) << right - 1
    up = (rest > half) | ((rest == half) & (further | (kept & 1 == 1)))
    rounded = jnp.where(drop > 31, 0, kept + up)
    kept = jnp.where(drop > 0, rounded, significand << jnp.clip(-drop, 0, 31).astype(jnp.uint32))
    # A significand of 2^24 carries into the exponent; one below 2^23 is a subnormal, whose field is 0.
    field = jnp.where(significand == 0, 0, exponent + drop - _LOWEST).astype(jnp.uint32)
    return jnp.minimum((field << 23) + kept, _INFINITY)


def _finish(a: jax.Array, b: jax.Array, word: jax.Array, plain: jax.Array) -> jax.Array:
    """The word with its sign, or the plain result where an operand is no finite number."""
    special = (a & _INFINITY == _INFINITY) | (b & _INFINITY == _INFINITY)
    return jnp.where(special, lax.bitcast_convert_type(plain, jnp.uint32), word | (a ^ b) & jnp.uint32(0x80000000))
