"""Error sums of a block on the device, by row and without a float32 copy of the block.

Sums over rows are in `ninfer_jax.convert.totals`, in float64. A row is summed by itself, in an order that its length
alone decides, so that nothing reported depends on blocks, devices or processes.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32

_CHUNK, _LANES = 128, 32  # columns reduced to 32 in the first step

_Sums = tuple[Array, Array, Array]


class ErrorSums(NamedTuple):
    """Per padded row: sum of squared values, sum of squared errors, largest absolute error."""

    signal: Float32[Array, "rows"]
    noise: Float32[Array, "rows"]
    worst: Float32[Array, "rows"]


def error_sums(values: Float[Array, "rows k"], decoded: Float32[Array, "rows k"]) -> ErrorSums:
    """Sums of `x^2` and `(x - w)^2` and the maximum of `|x - w|`, by row; a non-finite error stays visible in `worst`.

    One reduction of three operands, in two steps: XLA's CPU backend hands a sum or maximum of its own to a routine that
    reads its operand from memory, and reduces a long last axis one element at a time. Columns that fill no chunk are
    reduced apart, because padding them would keep the rest from vectorizing.

    Args:
        values: source of the block.
        decoded: what its words mean.
    """
    rows, columns = values.shape
    whole = columns // _CHUNK * _CHUNK
    parts = []
    if whole:
        shape = (rows, whole // _CHUNK, _CHUNK // _LANES, _LANES)
        lanes = _reduce(_terms(values[:, :whole].reshape(shape), decoded[:, :whole].reshape(shape)), (2,))
        parts.append(_reduce(lanes, (1, 2)))
    if whole != columns:
        parts.append(_reduce(_terms(values[:, whole:], decoded[:, whole:]), (1,)))
    signal, noise, worst = parts[0] if len(parts) == 1 else _join(*parts)
    return ErrorSums(signal, noise, lax.bitcast_convert_type(worst, jnp.float32))


def _terms(values: Array, decoded: Array) -> _Sums:
    """What is summed, and the errors as integers, which order like them, vectorize and put NaN last."""
    exact = _float32(values)
    difference = exact - decoded
    magnitude = lax.bitcast_convert_type(difference, jnp.uint32) & jnp.uint32(0x7FFFFFFF)
    return exact * exact, difference * difference, magnitude


def _float32(values: Array) -> Array:
    """Exact; bfloat16 is read as integers, because XLA's CPU backend otherwise takes it through memory as float32."""
    if values.dtype != jnp.bfloat16:
        return values.astype(jnp.float32)
    words = lax.bitcast_convert_type(values, jnp.uint16).astype(jnp.uint32)
    return lax.bitcast_convert_type(words << 16, jnp.float32)


def _reduce(operands: _Sums, axes: tuple[int, ...]) -> _Sums:
    return lax.reduce(operands, (np.float32(0), np.float32(0), np.uint32(0)), _join, axes)


def _join(one: _Sums, other: _Sums) -> _Sums:
    return one[0] + other[0], one[1] + other[1], jnp.maximum(one[2], other[2])
