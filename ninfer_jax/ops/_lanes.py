"""One row of x times a packed weight on a CPU, without ever forming a row of float weights.

A row of packed bytes is walked in units of a few groups. A unit of every row is one vector of `lanes` partial sums,

    sums[n, lane] += scale[n, group(lane)] * sum_i field_i(byte[n, lane]) * x[column(lane, i)],

so every byte is loaded once, its fields need no interleaving (x is permuted instead) and temporaries are [N, lanes].
The loop over units is unrolled in Python and cut into steps by optimization barriers: with a traced index XLA's CPU
back end does not vectorize, and without the barriers it hoists the integer conversions of all units out of the fusions
into whole-weight temporaries. 32 or 64 lanes are what the loop vectorizer turns into vector code on every jax tested.
The last sum over lanes is a dot, because a reduction would swallow the last step into scalar code.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32

from ninfer_jax.formats import BlockScaledFormat, GroupedFormat, QuantizedFormat
from ninfer_jax.ops._words_float import E2M1_UNIT, E4M3_UNIT, binary16_values, e2m1_values, e4m3_values

_BASE_NBYTES = 32
_GROUPS_PER_STEP = 16
_LANES = 64

Operands = tuple[Array, ...]
Term = Callable[[Operands, int], Float32[Array, "n lanes"]]


def row_product(x: Float32[Array, " columns"], planes: Any, spec: QuantizedFormat) -> Float32[Array, " n"]:
    """`y[n] = sum_k x[k] * inner[n, k]` over the stored columns of natural planes, without the outer scale."""
    if isinstance(spec, GroupedFormat):
        if spec.bits == 8:
            return _bytes_product(x, planes, spec)
        y = _nibbles_product(x, planes, signed=spec.bits == 4)
        return y if planes.high is None else y + _high_product(x, planes, spec.bits - 4)
    if isinstance(spec, BlockScaledFormat):
        return _nvfp4_product(x, planes)
    return _fp8_product(x, planes)


def _sum_units(operands: Operands, units: int, per_step: int, term: Term) -> Float32[Array, " n"]:
    """`sum over units and lanes of term(operands, unit)`."""
    sums = None
    for first in range(0, units, per_step):
        sums, operands = lax.optimization_barrier((sums, operands))
        for unit in range(first, min(first + per_step, units)):
            part = term(operands, unit)
            sums = part if sums is None else sums + part
    return _sum_lanes(sums)


def _sum_lanes(sums: Any) -> Float32[Array, " n"]:
    ones = jnp.ones((1, sums.shape[1]), jnp.float32)
    return lax.dot_general(ones, sums, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)[0]


def _spread(scales: Array, unit: int, groups: int, lanes: int) -> Float32[Array, "n lanes"]:
    """Scales of the groups of one unit, each repeated over its lanes."""
    part = scales[:, unit * groups : (unit + 1) * groups]
    if groups == 1:
        return part
    return jnp.broadcast_to(part[:, :, None], (*part.shape, lanes // groups)).reshape(part.shape[0], lanes)


def _columns(plane: Array, unit: int, width: int) -> Array:
    return plane[:, unit * width : (unit + 1) * width]


def _nibbles_product(x: Array, planes: Any, signed: bool) -> Array:
    """Base plane of Q4 (signed codes) or the low four bits, unsigned, of Q5 and Q6; one group a unit."""
    groups = planes.scales.shape[1]
    even, odd = x[0::2].reshape(groups, -1), x[1::2].reshape(groups, -1)

    def term(operands: Operands, unit: int) -> Array:
        base, scales, even, odd = operands
        byte = _columns(base, unit, _BASE_NBYTES)
        if signed:
            wide = byte.astype(jnp.int8).astype(jnp.int32)
            low, high = (wide << 28) >> 28, wide >> 4
        else:
            wide = byte.astype(jnp.int32)
            low, high = wide & 15, wide >> 4
        sums = low.astype(jnp.float32) * even[unit, None] + high.astype(jnp.float32) * odd[unit, None]
        return sums * scales[:, unit : unit + 1]

    return _sum_units((planes.base, binary16_values(planes.scales), even, odd), groups, _GROUPS_PER_STEP, term)


def _high_product(x: Array, planes: Any, bits: int) -> Array:
    """High plane of Q5 (1 bit a lane, weight -16) or Q6 (2 bits, signed, weight 16)."""
    groups, fields = planes.scales.shape[1], 8 // bits
    unit_groups = 2 if bits == 2 or groups % 4 else 4  # 32 lanes where the groups divide
    lanes, units = unit_groups * 8 * bits, groups // unit_groups
    by_field = x.reshape(units, lanes, fields).transpose(0, 2, 1)
    weights = 16.0 * jnp.ones(fields) if bits == 2 else -16.0 * 2.0 ** -jnp.arange(fields, dtype=jnp.float32)
    by_field = by_field * weights[None, :, None]

    def term(operands: Operands, unit: int) -> Array:
        high, scales, by_field = operands
        wide = _columns(high, unit, lanes).astype(jnp.int32)
        sums = jnp.zeros((), jnp.float32)
        for i in range(fields):
            # One bit is used where it stands, its place value folded into x; two bits are sign-extended.
            field = wide & (1 << i) if bits == 1 else (wide << (30 - 2 * i)) >> 30
            sums = sums + field.astype(jnp.float32) * by_field[unit, i, None]
        return sums * _spread(scales, unit, unit_groups, lanes)

    operands = (planes.high, binary16_values(planes.scales), by_field)
    return _sum_units(operands, units, max(1, _GROUPS_PER_STEP // unit_groups), term)


def _bytes_product(x: Array, planes: Any, spec: GroupedFormat) -> Array:
    """W8: one code a byte, two groups a unit."""
    units = planes.base.shape[1] // _LANES
    unit_groups = _LANES // spec.group_size

    def term(operands: Operands, unit: int) -> Array:
        base, scales, x = operands
        codes = _columns(base, unit, _LANES).astype(jnp.int8).astype(jnp.float32)
        return codes * x[unit, None] * _spread(scales, unit, unit_groups, _LANES)

    operands = (planes.base, binary16_values(planes.scales), x.reshape(units, _LANES))
    return _sum_units(operands, units, _GROUPS_PER_STEP // unit_groups, term)


def _nvfp4_product(x: Array, planes: Any) -> Array:
    """E2M1 pairs, eight groups of 8 bytes a unit (four where the columns are an odd number of 64)."""
    groups = planes.codes.shape[1] // 8
    unit_groups = 8 if groups % 8 == 0 else 4
    lanes, units = 8 * unit_groups, groups // unit_groups
    even, odd = x[0::2].reshape(units, lanes), x[1::2].reshape(units, lanes)
    scales = e4m3_values(planes.scales) * (E4M3_UNIT * E2M1_UNIT)

    def term(operands: Operands, unit: int) -> Array:
        codes, scales, even, odd = operands
        low, high = e2m1_values(_columns(codes, unit, lanes))
        return (low * even[unit, None] + high * odd[unit, None]) * _spread(scales, unit, unit_groups, lanes)

    return _sum_units((planes.codes, scales, even, odd), units, 8, term)


def _fp8_product(x: Array, planes: Any) -> Array:
    """One E4M3FN code a byte, 64 a unit, and the columns left over as one narrower unit."""
    whole = x.shape[0] // _LANES * _LANES
    parts = []

    def term(operands: Operands, unit: int) -> Array:
        codes, x = operands
        return e4m3_values(_columns(codes, unit, x.shape[1])) * x[unit, None]

    if whole:
        units = whole // _LANES
        parts.append(_sum_units((planes.codes[:, :whole], x[:whole].reshape(units, _LANES)), units, 8, term))
    if whole != x.shape[0]:
        parts.append(_sum_units((planes.codes[:, whole:], x[None, whole:]), 1, 1, term))
    return sum(parts[1:], parts[0]) * E4M3_UNIT
