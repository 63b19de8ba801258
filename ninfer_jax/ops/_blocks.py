"""Products with a packed weight, a block of rows at a time: at no moment is the whole weight there in float.

A loop decodes a block of rows to float32 and multiplies it; the block is small against the packed weight. One row of x
on a CPU goes to `_lanes` instead. On an accelerator many rows of x decode the weight once, to the type of x.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32

from ninfer_jax.formats import QuantizedFormat
from ninfer_jax.ops import _lanes, _rows
from ninfer_jax.ops._manual import varying_zeros

_CPU_BLOCK_NBYTES = 4 << 20
_ACCELERATOR_BLOCK_NBYTES = 64 << 20
_WHOLE_FROM_ROWS = 64
_ROW_STEP = 8


def route(m: int, x_dtype: str, platform: str) -> str:
    """In words, how `product` multiplies m rows of x."""
    if platform == "cpu" and m == 1:
        return "packed bytes times x in lanes, no float row is formed"
    if platform != "cpu" and m >= _WHOLE_FROM_ROWS:
        return f"weight decoded once to {_value_dtype(x_dtype, platform).name}, then one product"
    return f"rows decoded block by block to {_value_dtype(x_dtype, platform).name}, one product a block"


def product(x: Float[Array, "m k"], planes: Any, spec: QuantizedFormat, platform: str) -> Float32[Array, "m n"]:
    """`y[m, n] = sum_k x[m, k] * w[n, k]`, accumulated in float32; k may leave out the padding."""
    planes = _rows.natural(planes)
    x = _rows.pad_columns(x, _rows.columns_of(planes, spec))
    if platform == "cpu" and x.shape[0] == 1:
        y = _lanes.row_product(x[0].astype(jnp.float32), planes, spec)[None]
    else:
        y = _by_blocks(x, planes, spec, platform)
    return _rows.scale_outputs(y, planes, spec)


def transposed_product(
    dy: Float[Array, "m n"], planes: Any, spec: QuantizedFormat, platform: str
) -> Float32[Array, "m columns"]:
    """`dx[m, k] = sum_n dy[m, n] * w[n, k]` over the stored columns, accumulated in float32."""
    planes = _rows.natural(planes)
    n, columns = dy.shape[1], _rows.columns_of(planes, spec)
    dy = _rows.scale_rows_in(dy.astype(jnp.float32), planes, spec)
    count = _block_rows(n, columns, planes, platform)

    def step(sums: tuple[Array, ...], start: Any, size: int) -> tuple[Array, ...]:
        parts = _decode(planes, start, size, spec, jnp.dtype(jnp.float32))
        dy_block = lax.dynamic_slice_in_dim(dy, start, size, axis=1)
        return tuple(total + _dot(dy_block, values, 0) for total, values in zip(sums, parts, strict=True))

    blocks, parts = n // count, _rows.part_count(spec)
    sums = tuple(varying_zeros((dy.shape[0], columns // parts), dy, planes) for _ in range(parts))
    sums = lax.fori_loop(0, blocks, lambda i, sums: step(sums, i * count, count), sums)
    if n % count:
        sums = step(sums, blocks * count, n % count)
    return _rows.scale_sums(_rows.join_columns(sums), planes, spec)


def _by_blocks(x: Array, planes: Any, spec: QuantizedFormat, platform: str) -> Array:
    n, columns = planes[0].shape[0], x.shape[1]
    dtype = _value_dtype(x.dtype.name, platform)
    x_parts = _rows.split_columns(x.astype(dtype), _rows.part_count(spec))
    whole = platform != "cpu" and x.shape[0] >= _WHOLE_FROM_ROWS
    count = n if whole else _block_rows(n, columns, planes, platform)
    blocks = n // count

    def block(start: Any, size: int) -> Array:
        parts = _decode(planes, start, size, spec, dtype)
        products = [_dot(x_part, values, 1) for x_part, values in zip(x_parts, parts, strict=True)]
        return sum(products[1:], products[0])

    if blocks == 1:
        y = block(0, count)
    else:
        parts = lax.map(lambda i: block(i * count, count), jnp.arange(blocks))
        y = parts.transpose(1, 0, 2).reshape(x.shape[0], blocks * count)
    return jnp.concatenate([y, block(blocks * count, n % count)], axis=1) if n % count else y


def _value_dtype(x_dtype: str, platform: str) -> jnp.dtype:
    # float16 cannot hold every weight, and CPUs multiply float32 fastest.
    return jnp.dtype(jnp.bfloat16 if platform != "cpu" and x_dtype == "bfloat16" else jnp.float32)


def _decode(planes: Any, start: Any, size: int, spec: QuantizedFormat, dtype: jnp.dtype) -> tuple[Array, ...]:
    rows = _rows.slice_rows(planes, start, size)
    # A traced offset inside the decoding loops keeps XLA's CPU back end from vectorizing them: slice first.
    rows = lax.optimization_barrier(rows)
    parts = tuple(part.astype(dtype) for part in _rows.inner_parts(rows, spec))
    return lax.optimization_barrier(parts)


def _dot(x: Array, values: Array, axis: int) -> Array:
    # Highest keeps float32 operands float32 on devices that would shorten them; bfloat16 operands are not affected.
    return lax.dot_general(
        x, values, (((1,), (axis,)), ((), ())), precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


def _block_rows(n: int, columns: int, planes: Any, platform: str) -> int:
    """Rows whose float32 values take at most a quarter of the packed weight, and a fixed size."""
    packed = sum(math.prod(p.shape) * p.dtype.itemsize for p in jax.tree.leaves(planes))
    limit = _CPU_BLOCK_NBYTES if platform == "cpu" else _ACCELERATOR_BLOCK_NBYTES
    rows = max(1, min(limit, packed // 4) // (4 * columns))
    most = min(n, max(_ROW_STEP, rows // _ROW_STEP * _ROW_STEP))
    # A count that divides N spares the program for a last, smaller block.
    return next((count for count in range(most, most // 2, -_ROW_STEP) if n % count == 0), most)
