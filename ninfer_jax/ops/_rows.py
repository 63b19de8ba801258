"""Rows of planes: slices of two-dimensional planes, and their float32 values without the outer scale.

A weight is `outer * inner`: the outer scale is the row multiplier of FP8 and the divisor of NVFP4, applied to a product
once instead of to every weight; the grouped formats have none. Whole-row decoding only; see `_lanes` for products that
never form a row.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32

from ninfer_jax.formats import BlockScaledFormat, GroupedFormat, QuantizedFormat
from ninfer_jax.layouts import unswizzle_scales
from ninfer_jax.ops._words_float import (
    E2M1_UNIT,
    E4M3_UNIT,
    binary16_values,
    e2m1_values,
    e4m3_values,
    over_word,
    times_word,
)
from ninfer_jax.planes import NVFP4Planes


def natural(planes: Any) -> Any:
    """The planes with NVFP4 scales [N, K / 16] in natural order, so that rows of every format are one axis."""
    if isinstance(planes, NVFP4Planes):
        return planes._replace(scales=jnp.asarray(unswizzle_scales(planes.scales)))
    return planes


def slice_rows(planes: Any, start: Any, count: int) -> Any:
    """Rows `[start, start + count)` of natural planes; `start` may be traced."""
    rows = [p if p is None or not p.ndim else lax.dynamic_slice_in_dim(p, start, count) for p in planes]
    return type(planes)(*rows)


def inner_parts(planes: Any, spec: QuantizedFormat) -> tuple[Float32[Array, "n columns_over_parts"], ...]:
    """Values of natural [N, columns] planes before the outer scale, in parts: part i holds columns i, i + parts, ...

    Columns include padding, whose values are 0. There are as many parts as fields in the byte that has most of them, so
    that no value has to be moved between lanes: x is split the same way instead (`split_columns`).
    """
    if isinstance(spec, GroupedFormat):
        codes, scales = _grouped_codes(planes, spec.bits), binary16_values(planes.scales)
    elif isinstance(spec, BlockScaledFormat):
        codes = e2m1_values(planes.codes)
        scales = e4m3_values(planes.scales) * (E2M1_UNIT * E4M3_UNIT)
    else:
        return (e4m3_values(planes.codes) * E4M3_UNIT,)
    return tuple((_by_groups(c, scales) * scales[..., None]).reshape(c.shape) for c in codes)


def _by_groups(codes: Array, scales: Array) -> Array:
    return codes.astype(jnp.float32).reshape(*scales.shape, -1)


def _grouped_codes(planes: Any, bits: int) -> tuple[Array, ...]:
    if bits == 8:
        return (planes.base.astype(jnp.int8),)
    if planes.high is None:
        signed = planes.base.astype(jnp.int8).astype(jnp.int32)
        return (signed << 28) >> 28, signed >> 4
    width = bits - 4
    fields = 8 // width
    base = planes.base.reshape(*planes.high.shape, fields // 2).astype(jnp.int32)
    high, sign = planes.high.astype(jnp.int32), 1 << (bits - 1)
    codes = []
    for i in range(fields):
        low = (base[..., i // 2] >> (4 * (i % 2))) & 15
        top = (high >> (width * i)) & ((1 << width) - 1)
        codes.append(((low | (top << 4)) ^ sign) - sign)
    return tuple(codes)


def part_count(spec: QuantizedFormat) -> int:
    """Number of parts of `inner_parts`."""
    if isinstance(spec, GroupedFormat):
        return {4: 2, 5: 8, 6: 4, 8: 1}[spec.bits]
    return 2 if isinstance(spec, BlockScaledFormat) else 1


def split_columns(x: Array, parts: int) -> tuple[Array, ...]:
    """Columns i, i + parts, ... of x, for every i."""
    return tuple(x[..., i::parts] for i in range(parts))


def join_columns(parts: tuple[Array, ...]) -> Array:
    """The inverse of `split_columns`."""
    *lead, columns = parts[0].shape
    return parts[0] if len(parts) == 1 else jnp.stack(parts, axis=-1).reshape(*lead, len(parts) * columns)


def scale_outputs(y: Float32[Array, "m n"], planes: Any, spec: QuantizedFormat) -> Float32[Array, "m n"]:
    """`y * outer` for products y with whole rows."""
    if isinstance(spec, GroupedFormat):
        return y
    if isinstance(spec, BlockScaledFormat):
        return over_word(y, planes.divisor)
    return times_word(y, _row_words(planes))


def scale_rows_in(dy: Float32[Array, "m n"], planes: Any, spec: QuantizedFormat) -> Float32[Array, "m n"]:
    """The row part of the outer scale, applied to what multiplies the rows; `scale_sums` does the rest."""
    if isinstance(spec, GroupedFormat | BlockScaledFormat):
        return dy
    return times_word(dy, _row_words(planes))


def scale_sums(dx: Float32[Array, "m columns"], planes: Any, spec: QuantizedFormat) -> Float32[Array, "m columns"]:
    """The part of the outer scale that all rows share, applied to sums over rows."""
    return over_word(dx, planes.divisor) if isinstance(spec, BlockScaledFormat) else dx


def _row_words(planes: Any) -> Array:
    return planes.scales.astype(jnp.uint32) << 16


def columns_of(planes: Any, spec: QuantizedFormat) -> int:
    """Columns that the planes hold, padding included."""
    if isinstance(spec, GroupedFormat):
        return planes.scales.shape[-1] * spec.group_size
    return planes.codes.shape[-1] * (2 if isinstance(spec, BlockScaledFormat) else 1)


def pad_columns(x: Array, columns: int) -> Array:
    """x with zero columns up to the stored columns of a weight."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, columns - x.shape[-1])]) if x.shape[-1] != columns else x
