"""Source values of the encoders: which types are taken, and their magnitudes as integers.

Comparing and maximizing integer magnitudes sees subnormals, which XLA flushes, and NaNs, which `max` hides. This module
leaves out everything specific to a format (tensor-formats §7.1).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, UInt32

from ninfer_jax._typing import AnyArray
from ninfer_jax.codecs.float64_words import narrow_words
from ninfer_jax.codecs.float_words import float_bits
from ninfer_jax.codecs.grouping import split_groups
from ninfer_jax.errors import FormatError

INFINITY_WORD = 0x7F800000
_CHUNK, _LANES = 64, 8  # elements reduced to eight in the first step
_SOURCE_DTYPES = ("float32", "bfloat16", "float16")


def host_source(x: object) -> AnyArray:
    """A concrete source that JAX takes by value: float64 rounded to float32, other byte orders made the host's.

    Raises:
        FormatError: for a traced array, for anything but an array, and for a dtype that no encoder takes.
    """
    if isinstance(x, Tracer):
        raise FormatError("quantize() looks at values, so it cannot be traced; under jit or vmap use try_quantize()")
    if isinstance(x, np.ndarray) and not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))  # JAX would take the bytes as they are
    if isinstance(x, jax.Array | np.ndarray) and x.dtype == np.float64:
        return narrow_words(np.asarray(x))[0].view(np.float32)
    return _checked(x)


def device_source(x: object, rank: int) -> jax.Array:
    """Check the dtype and shape of a source and return it as a JAX array.

    Raises:
        FormatError: for a dtype other than float32, bfloat16 and float16, too few axes, or one of the last `rank` axes
            empty.
    """
    source = _checked(x)
    if source.ndim < rank or 0 in source.shape[-rank:]:
        nonempty = "a last axis of K >= 1" if rank == 1 else "a matrix [N, K] of N >= 1 and K >= 1 in the last two"
        raise FormatError(f"cannot quantize shape {list(source.shape)}; give at least {rank} axes and {nonempty}")
    return jnp.asarray(source)


def _checked(x: object) -> AnyArray:
    if not isinstance(x, jax.Array | np.ndarray):
        raise FormatError(f"cannot quantize a {type(x).__name__}; give a NumPy or JAX array")
    if x.dtype not in _SOURCE_DTYPES:
        raise FormatError(
            f"cannot quantize a {x.dtype} source; allowed are {', '.join(_SOURCE_DTYPES)} (quantize() also takes "
            "float64 and rounds it to float32): convert it first"
        )
    return x


def magnitude_words(x: jax.Array) -> jax.Array:
    """`|x|` as integer words of the source's own width; they order like the magnitudes, and NaNs come last."""
    if x.dtype == jnp.float32:
        return float_bits(x) & 0x7FFFFFFF
    return lax.bitcast_convert_type(x, jnp.uint16) & jnp.uint16(0x7FFF)


def last_axis_maximum(words: jax.Array) -> jax.Array:
    """`max(words, axis=-1)` of unsigned words in two steps.

    XLA's CPU backend reduces the last axis one element at a time, fifty times slower than a short axis before it, which
    it unrolls and vectorizes. The barrier keeps it from fusing the two again. What fills no chunk is reduced apart,
    because padding it would keep the rest from vectorizing.
    """
    k = words.shape[-1]
    whole = k // _CHUNK * _CHUNK
    if whole not in (0, k):
        return jnp.maximum(last_axis_maximum(words[..., :whole]), last_axis_maximum(words[..., whole:]))
    lanes = jnp.max(split_groups(split_groups(words, min(k, _CHUNK)), _LANES), axis=-2)
    return jnp.max(lax.optimization_barrier(lanes), axis=(-2, -1))


def widen_words(words: jax.Array, dtype: jnp.dtype) -> UInt32[Array, "*shape"]:
    """Words of a source type as binary32 words, exact, subnormals included; the sign bit may be set."""
    if dtype == jnp.float32:
        return words
    if dtype == jnp.bfloat16:
        return words.astype(jnp.uint32) << 16
    return float_bits(lax.bitcast_convert_type(words, jnp.float16).astype(jnp.float32))


def binary32_words(x: jax.Array) -> UInt32[Array, "*shape"]:
    """Binary32 words of source values, exact, subnormals included.

    A bfloat16 array is only ever read as integers: XLA's CPU backend otherwise moves it through float32 and back.
    """
    words = float_bits(x) if x.dtype == jnp.float32 else lax.bitcast_convert_type(x, jnp.uint16)
    return widen_words(words, x.dtype)
