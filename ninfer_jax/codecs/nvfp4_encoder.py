"""The encoder profile NVFP4_MAXABS_V1 of NVFP4 (tensor-formats §3.3, §8).

The profile, for a matrix whose values are rounded to binary32 first; every rounding is to nearest, ties to even, with
gradual underflow, and `round_f32` is to binary32:

1. The encoder fails if any value is not finite. `amax = max |x|` over the matrix.
2. `d_w = round_f32(2688 / amax)`, 2688 = 448 * 6. A quotient beyond the largest finite binary32 becomes that word,
   0x7F7FFFFF (amax below about 2^-116.6); for amax = 0, `d_w = 1`.
3. For a group of 16 columns: `y = round_f32(max |x[i]| * d_w)`. `scale = RNE_e4m3fn(y / 6)` of the real quotient.
   A group of zeros has scale zero. Rescue: any other scale that rounds to zero becomes 0x01 (2^-9).
4. Overflow: with the divisor of its own matrix, `y / 6` never rounds above 448. With a divisor given by the caller (for
   a row block of a larger matrix) the encoder fails if `y > 2784`, which is where `y / 6` rounds above 448; and the
   divisor must be a positive normal binary32 number.
5. For each value: `z = round_f32(|x| * d_w)`; the code magnitude is `RNE_e2m1(z / scale)` of the real quotient,
   saturating at 6; ties go to the even code word. The code has the sign of its source, so negative zero gives 0x8.

Nothing is flushed, whatever the size of the values.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, UInt32

from ninfer_jax._typing import AnyArray
from ninfer_jax.codecs.boundary import integer_words
from ninfer_jax.codecs.float_words import (
    BINARY32,
    E4M3FN,
    bits_float,
    divide,
    divide_by_integer,
    e4m3fn_scale,
    float_bits,
    round_to,
    split,
    split_normal,
)
from ninfer_jax.codecs.grouping import join_groups, split_groups
from ninfer_jax.codecs.sources import (
    INFINITY_WORD,
    binary32_words,
    device_source,
    last_axis_maximum,
    magnitude_words,
    widen_words,
)
from ninfer_jax.formats import NVFP4
from ninfer_jax.words import NVFP4Words

NVFP4_MAXABS_V1 = "NVFP4_MAXABS_V1"
LARGEST_SCALED = 0x452E0000  # 2784 = 464 * 6: the tie above the largest E4M3FN scale 448
_WORD_2688 = 0x45280000
_SCALE_ONE = 0x38
_WORD_ONE = 0x3F800000
LARGEST_DIVISOR = 0x7F7FFFFF
SMALLEST_DIVISOR = 0x00800000


@jax.jit
def matrix_amax(x: AnyArray) -> UInt32[Array, "*lead"]:
    """`max |x|` over the last two axes as binary32 words; at least 0x7F800000 if any value is not finite.

    Args:
        x: source [..., n, k], float32, bfloat16 or float16. Maxima of row blocks combine by an integer maximum.
    """
    source = device_source(x, 2)
    maxima = last_axis_maximum(magnitude_words(source))
    return widen_words(jnp.max(maxima, axis=-1), source.dtype)


@jax.jit
def nvfp4_divisor(amax: AnyArray | np.generic) -> UInt32[Array, "*lead"]:
    """`d_w = round_f32(2688 / amax)` as binary32 words, for words of finite maxima (profile step 2)."""
    words = integer_words(amax, "uint32", "amax")
    quotient = divide(split_normal(jnp.uint32(_WORD_2688)), split(jnp.where(words == 0, jnp.uint32(_WORD_ONE), words)))
    divisor = jnp.minimum(round_to(quotient, BINARY32), jnp.uint32(LARGEST_DIVISOR))
    return jnp.where(words == 0, jnp.uint32(_WORD_ONE), divisor)


def encode_nvfp4(x: jax.Array, divisor: AnyArray | None = None) -> tuple[NVFP4Words, Bool[Array, ""]]:
    """`code = RNE_e2m1(round_f32(x * d_w) / scale)`, and whether every value and scale is legal.

    Args:
        x: finite source [..., n, k], float32, bfloat16 or float16.
        divisor: binary32 words of d_w, uint32 [...]; None takes that of `x` itself.

    Returns:
        The words, and False where a value is not finite or too large for the divisor, or the divisor is not a positive
        normal number (the words are then meaningless).
    """
    group_amax = widen_words(last_axis_maximum(split_groups(magnitude_words(x), NVFP4.group_size)), x.dtype)
    divisors = nvfp4_divisor(jnp.max(group_amax, axis=(-2, -1))) if divisor is None else jnp.asarray(divisor)
    scaled_amax = float_bits(_scale(group_amax, divisors[..., None, None]))
    scales = jnp.maximum(divide_by_integer(scaled_amax, 6, E4M3FN), (group_amax != 0).astype(jnp.uint32))
    units = e4m3fn_scale(jnp.where(scales == 0, jnp.uint32(_SCALE_ONE), scales))  # a group of zeros has codes 0
    words = binary32_words(x)
    scaled = _scale(split_groups(words & 0x7FFFFFFF, NVFP4.group_size), divisors[..., None, None, None])
    codes = join_groups(_e2m1_magnitudes(scaled, units), x.shape[-1]) | ((words >> 31) << 3)
    ok = jnp.all(group_amax < INFINITY_WORD) & jnp.all(scaled_amax <= LARGEST_SCALED)
    ok &= jnp.all((divisors >= SMALLEST_DIVISOR) & (divisors <= LARGEST_DIVISOR))
    return NVFP4Words(codes.astype(jnp.uint8), scales.astype(jnp.uint8), divisors), ok


def _scale(magnitudes: UInt32[Array, "*#shape"], divisors: UInt32[Array, "*#shape"]) -> Float32[Array, "*#shape"]:
    """`round_f32(x * d_w)`, from words; a result below 2^-126 may become zero, and its code is 0 either way."""
    normal = bits_float(magnitudes) * bits_float(divisors)
    # A subnormal is `magnitude * 2^-149`: the power moves to the divisor, where it is exact.
    lowered = jnp.where(divisors >= (150 << 23), divisors - jnp.uint32(149 << 23), jnp.uint32(0))
    subnormal = magnitudes.astype(jnp.int32).astype(jnp.float32) * bits_float(lowered)
    return jnp.where(magnitudes < (1 << 23), subnormal, normal)


def _e2m1_magnitudes(
    scaled: Float32[Array, "*lead groups 16"], units: Float32[Array, "*lead groups"]
) -> UInt32[Array, "*lead groups 16"]:
    """`RNE_e2m1(z / scale)`, a bit at a time from the top: a midpoint times a scale is exact in binary32.

    A midpoint above an odd code belongs to the even code above it, one above an even code to that code.
    """
    quarter, three_quarters, five_quarters, seven_quarters, half_five, half_seven, five = (
        (units * jnp.float32(midpoint))[..., None] for midpoint in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
    )
    top = scaled >= seven_quarters
    middle = scaled >= jnp.where(top, half_seven, three_quarters)
    low = scaled > jnp.where(top, jnp.where(middle, five, half_five), jnp.where(middle, five_quarters, quarter))
    return jnp.where(top, jnp.uint32(4), 0) + jnp.where(middle, jnp.uint32(2), 0) + low.astype(jnp.uint32)
