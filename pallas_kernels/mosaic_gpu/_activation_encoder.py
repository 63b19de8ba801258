"""Activations to NVFP4, a factor a row: the encoder of the kernel that multiplies four-bit activations.

Used by nvfp4_w4a4 alone: its scheme is chosen for a multiply that follows at once and is no profile of a persistent
format. Leaves out everything about weights. Source: tensor-formats §5 for the words, storage-layouts for their order.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, UInt8

_BLOCK, _SCALE_TILE, _TILE_ROWS = 16, 64, 128
_LARGEST_CODE, _LARGEST_SCALE = 6.0, 448.0
#: What a row is multiplied by at most, so that the factor of a row of tiny values stays finite.
_LARGEST_FACTOR = 2.0**100


def quantize_activations(
    x: Float[Array, "m k"],
) -> tuple[UInt8[Array, "m half_k"], UInt8[Array, "tiles_m tiles_k 32 4 4"], Float[Array, " m"]]:
    """x[m, k] is about f[m] * scale[m, k // 16] * code[m, k].

    A row's factor maps its largest magnitude to 6 * 448, the largest a code times a scale can be:

        f = amax(row) / 2688,   scale = E4M3FN(amax(block) / f / 6),   code = E2M1(x / f / scale)

    both rounded to nearest, ties to even, 1 / 6 being the float32 next to it; a block whose scale rounds to zero gets
    zero codes. Rows are independent of each other. A row with a value that is not finite gets a factor that is not.

    Args:
      x: [m, k], k a multiple of 64.

    Returns:
      codes: two a byte, the even column in the low nibble.
      scales: as NVFP4 stores them, [m // 128, k // 64, m % 32, m % 128 // 32, k // 16 % 4], zero past m.
      factors: float32 f.
    """
    m, k = x.shape
    blocks = x.astype(jnp.float32).reshape(m, k // _BLOCK, _BLOCK)
    largest = jnp.max(jnp.abs(blocks), axis=(1, 2))
    whole = _LARGEST_CODE * _LARGEST_SCALE
    inverse = jnp.where(largest == 0, 1.0, jnp.minimum(whole / largest, _LARGEST_FACTOR))
    blocks = blocks * inverse[:, None, None]
    # No quotient but the one above: compilers turn others into products with a reciprocal, and halfway points move.
    values = _round_to_e4m3fn(jnp.max(jnp.abs(blocks), axis=2) * (1.0 / _LARGEST_CODE))
    scales, values = values.astype(jnp.float8_e4m3fn), values[:, :, None]
    codes = jnp.where(values > 0, _e2m1_codes(blocks, values), 0).reshape(m, k)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    words = jnp.pad(lax.bitcast_convert_type(scales, jnp.uint8), ((0, -m % _TILE_ROWS), (0, 0)))
    tiles = words.reshape(-1, 4, 32, k // _SCALE_TILE, 4).transpose(0, 3, 2, 1, 4)
    factors = jnp.where(jnp.isfinite(largest), 1.0 / inverse, jnp.nan)
    return packed.astype(jnp.uint8), tiles, factors


def _round_to_e4m3fn(values: jax.Array) -> jax.Array:
    """float32 values from 0 to 448, and a little more, to the nearest E4M3FN value, ties to even.

    Written out because the conversion itself rounds twice on some backends, through binary16.
    """
    binade = lax.bitcast_convert_type(lax.bitcast_convert_type(values, jnp.uint32) & 0x7F800000, jnp.float32)
    step = jnp.maximum(binade, 2.0**-6) * 2.0**-3
    return jnp.minimum(jnp.rint(values / step) * step, _LARGEST_SCALE)


def _e2m1_codes(values: jax.Array, unit: jax.Array) -> jax.Array:
    """The nearest E2M1 code of values / unit, ties to the even code; beyond 6 the largest."""
    size = jnp.abs(values)
    # Halfway points between 0, 0.5, 1, 1.5, 2, 3, 4 and 6, exact times a unit of 4 bits; one whose upper neighbor is
    # even belongs to that one.
    code = sum((size > t * unit).astype(jnp.int32) for t in (0.25, 1.25, 2.5, 5.0))
    code = code + sum((size >= t * unit).astype(jnp.int32) for t in (0.75, 1.75, 3.5))
    return code | jnp.where(values < 0, 8, 0)
