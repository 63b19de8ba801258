"""Rows of packed weights: embedding lookup, whole dequantization, and splitting a fused parent.

Rows stay packed until they are asked for; nothing here multiplies.
"""

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from ninfer_jax import codecs
from ninfer_jax._typing import AnyArray
from ninfer_jax.arrays import QuantizedTensor, validate
from ninfer_jax.errors import LayoutError, UnsupportedError
from ninfer_jax.formats import BlockScaledFormat
from ninfer_jax.layouts import slice_rows, unpack
from ninfer_jax.ops import _taking
from ninfer_jax.ops._arguments import float_type
from ninfer_jax.ops.devices import resolve_device
from ninfer_jax.ops.gathers import GATHERS, Gather, XlaRows, choose_gather
from ninfer_jax.ops.registry import Choice


def dequantize(w: QuantizedTensor, dtype: Any = jnp.float32) -> Float[Array, "*lead n k"]:
    """`y = decode(w)`: float32 values exact in every bit, then rounded once to another dtype.

    Args:
        w: a packed weight with any leading axes.
        dtype: float type of the result.

    Raises:
        LayoutError: where the planes do not belong together.
        UnsupportedError: for a dtype that is not a float one.

    Source: tensor-formats §3.3, §3.4, §6.2.
    """
    validate(w)
    dtype = float_type("dtype", dtype)
    return codecs.dequantize(unpack(w.planes, w.format, w.shape[-1]), w.format).astype(dtype)


def take_rows(
    w: QuantizedTensor,
    ids: Integer[AnyArray, "*batch"],
    dtype: Any = jnp.float32,
    *,
    mode: str | None = None,
    fill_value: float | None = None,
    implementation: Choice = None,
) -> Float[Array, "*batch k"]:
    """`y[..., k] = w[ids[...], k]`, dequantizing only the rows asked for.

    Args:
        w: a packed table [N, K].
        ids: row numbers of any shape; negative ones count from the end, as in `jnp.take`.
        dtype: float type of the rows.
        mode: what an id outside [-N, N) gives, as in `jnp.take`: "fill" (also None) gives rows of `fill_value`, "clip"
            the nearest row (0 for negative ids), "wrap" the row modulo N.
        fill_value: for "fill"; None gives NaN.
        implementation: None for "xla"; "mosaic_gpu" or "triton" for a GPU kernel, which has not run on hardware yet, or
            names in order of preference. All give the same bits. A kernel wants the table whole on every device; row
            numbers may be split.

    Returns:
        The rows, [*ids.shape, K].

    Raises:
        LayoutError: for a weight with leading axes (use `jax.vmap`), or ids that are no integers.
        UnsupportedError: for another mode, a dtype that is not a float one, or where no implementation asked for can
            run; the message gives the reasons.

    Source: tensor-formats §6.2, §3.3, §3.4; ops-and-criteria.
    """
    validate(w)
    if len(w.shape) != 2:
        raise LayoutError(f"take_rows takes one table [N, K], not {w!r}; map leading axes with jax.vmap")
    dtype, ids = float_type("dtype", dtype), jnp.asarray(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise LayoutError(f"ids are {ids.dtype}; row numbers are integers")
    n, k = w.shape
    flat, outside = _resolve(ids.reshape(-1), n, mode)
    if not ids.size:
        return jnp.zeros((*ids.shape, k), dtype)
    gather = Gather(w.format, flat.shape[0], n, k, dtype.name)
    rows = _take(w, flat, gather, implementation)
    if outside is not None:
        rows = jnp.where(outside[:, None], jnp.asarray(np.nan if fill_value is None else fill_value, dtype), rows)
    return rows.reshape(*ids.shape, k)


def split(w: QuantizedTensor, sizes: Sequence[int]) -> tuple[QuantizedTensor, ...]:
    """The consecutive row blocks of a fused parent, still packed: `concat(split(w, sizes)) = w`.

    Args:
        w: a packed weight [..., N, K].
        sizes: rows of each part, adding up to N; multiples of 128 for NVFP4.

    Returns:
        One packed weight a size.

    Raises:
        LayoutError: where the planes do not belong together, sizes do not add up, or would cut an NVFP4 tile.

    Source: storage-layouts (row views).
    """
    validate(w)
    n = w.shape[-2]
    try:
        sizes = [operator.index(size) for size in sizes]
    except TypeError:
        raise LayoutError(f"sizes {sizes!r}: give a list of integers, the rows of each part") from None
    step = 128 if isinstance(w.spec, BlockScaledFormat) else 1
    if sum(sizes) != n or any(size <= 0 or size % step for size in sizes):
        raise LayoutError(
            f"{w!r} cannot be split into rows {sizes}; allowed: positive multiples of {step} adding to {n}"
        )
    bounds = itertools.pairwise(itertools.accumulate(sizes, initial=0))
    return tuple(_row_block(w, start, stop) for start, stop in bounds)


def _row_block(w: QuantizedTensor, start: int, stop: int) -> QuantizedTensor:
    return QuantizedTensor(slice_rows(w.planes, w.format, start, stop), w.format, w.k)


def _resolve(ids: Array, n: int, mode: str | None) -> tuple[Array, Array | None]:
    """Row numbers in [0, n), and where the fill value belongs."""
    if ids.dtype.itemsize < 4:
        ids = ids.astype(jnp.int32)  # a narrower type may have no room for n, which would wrap around
    if mode == "clip":
        return jnp.clip(ids, 0, n - 1), None
    if mode == "wrap":
        return ids % n, None
    if mode not in (None, "fill"):
        raise UnsupportedError(f"mode {mode!r}; allowed: 'fill', 'clip', 'wrap' or None, as in jnp.take")
    if jnp.issubdtype(ids.dtype, jnp.unsignedinteger):  # has no room for -n either
        outside = ids >= n
        return jnp.where(outside, 0, ids), outside
    outside = (ids < -n) | (ids >= n)
    return jnp.where(outside, 0, jnp.where(ids < 0, ids + n, ids)), outside


def _take(w: QuantizedTensor, ids: Array, gather: Gather, implementation: Choice) -> Array:
    """Rows of w by the implementation chosen, for ids in [0, N)."""
    name = choose_gather(gather, resolve_device(None, jax.tree.leaves(w.planes)[0]), implementation)
    if name == XlaRows.name:
        return GATHERS[name].take(w.planes, ids, gather)
    named = isinstance(implementation, str) or XlaRows.name not in (implementation or ())
    return _taking.take(name, gather, ids, w.planes, named)
