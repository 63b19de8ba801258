"""`grouped_matmul`: the ragged product over a bank of packed experts, each row of x times its own expert.

A tile of rows of one expert is one visit; only experts that have rows are visited, one packed expert at a time is
sliced out of the bank and none is ever whole in float. Over a mesh every shard visits what is its own: its experts for
its rows. Routing and sorting of rows are the caller's.
"""

import dataclasses
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int32, Integer

from ninfer_jax._typing import AnyArray
from ninfer_jax.arrays import QuantizedTensor, validate
from ninfer_jax.errors import LayoutError
from ninfer_jax.ops import _blocks, _partition, _rows
from ninfer_jax.ops._arguments import activations, float_type
from ninfer_jax.ops._call import Call, planes_of
from ninfer_jax.ops._manual import varying_axes, varying_zeros
from ninfer_jax.ops._split import Split, names
from ninfer_jax.ops.devices import resolve_device
from ninfer_jax.ops.xla import Xla

_MIN_TILE = 8
_MAX_TILE = 128


def grouped_matmul(
    x: Float[AnyArray, "m k"],
    w: QuantizedTensor,
    group_sizes: Integer[AnyArray, " experts"],
    *,
    preferred_element_type: Any = None,
) -> Float[Array, "m n"]:
    """`y[m, n] = sum_k x[m, k] * w[e(m), n, k]`, as `jax.lax.ragged_dot`, accumulated in float32.

    e(m) is the expert of row m: the first `group_sizes[0]` rows belong to expert 0, and so on; rows behind the last
    group give 0. Differentiable in x. Under jit with sharded arguments no bank is moved: a split of the rows of the
    experts gives outputs split alike, one of the rows of x gives rows of y, and one of the experts or of the columns a
    psum. Inside `shard_map` it works on the shard.

    Args:
        x: float32, bfloat16 or float16, [M, K], rows sorted by expert.
        w: a packed bank [E, N, K].
        group_sizes: rows of each expert, integers [E].
        preferred_element_type: float type of y; None takes the type of x.

    Returns:
        y [M, N], of the type of x unless another is preferred.

    Raises:
        LayoutError: for shapes that do not fit, or group sizes that are no integers.
        UnsupportedError: for an x or a result of another type.

    Source: ops-and-criteria.
    """
    validate(w)
    x, group_sizes = activations(x), jnp.asarray(group_sizes)
    if len(w.shape) != 3 or x.ndim != 2 or x.shape[-1] != w.shape[-1] or group_sizes.shape != w.shape[:1]:
        raise LayoutError(
            f"x {list(x.shape)}, group sizes {list(group_sizes.shape)} and {w!r} do not fit; needed [M, K], [E] and"
            " [E, N, K]"
        )
    if not jnp.issubdtype(group_sizes.dtype, jnp.integer):
        raise LayoutError(f"group sizes are {group_sizes.dtype}; numbers of rows are integers")
    out = float_type("preferred_element_type", preferred_element_type or x.dtype).name
    call = Call(w.format, w.shape[-1], False, Xla.name, resolve_device(None, x).platform, out, form="ragged")
    back = dataclasses.replace(call, transposed=True, out_dtype=x.dtype.name)
    leaves = tuple(jnp.asarray(leaf) for leaf in jax.tree.leaves(w.planes))
    _partition.check_placed(call, leaves)
    x = _partition.lay_explicit(call, _partition.pad(x, leaves, call), leaves)
    return _ragged_jit(call, back, x, leaves, group_sizes)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _ragged(call: Call, back: Call, x: Array, leaves: tuple[Array, ...], group_sizes: Array) -> Array:
    return _run(call, x, *leaves, group_sizes)


def _forward(call: Call, back: Call, x: Array, leaves: tuple[Array, ...], group_sizes: Array) -> Any:
    return _ragged(call, back, x, leaves, group_sizes), (leaves, group_sizes)


def _backward(call: Call, back: Call, kept: Any, dy: Array) -> tuple[Array, None, None]:
    leaves, group_sizes = kept
    return _ragged(back, call, dy, leaves, group_sizes), None, None


_ragged.defvjp(_forward, _backward)


@partial(jax.jit, static_argnums=(0, 1))
def _ragged_jit(call: Call, back: Call, x: Array, leaves: tuple[Array, ...], group_sizes: Array) -> Array:
    return _ragged(call, back, x, leaves, group_sizes)


def _run(call: Call, x: Array, *arrays: Array) -> Array:
    if varying_axes(x, arrays):
        return _whole(call, x, *arrays)
    explicit = _partition.explicit_split(call, x, arrays)
    if explicit is None:
        return _partitioned(call)(x, *arrays)
    return _partition.explicit_product(call, *explicit, _body, x, arrays)


@cache
def _partitioned(call: Call) -> Any:
    """The product of arrays that may be sharded, with a rule for vmap, which automatic partitioning does not have."""
    run = custom_vmap(_partition.partitioned(call, _body, partial(_whole, call)))

    @run.def_vmap
    def batched(size: int, in_batched: list[bool], *arrays: Array) -> tuple[Array, bool]:
        return jax.vmap(partial(_whole, call), [0 if b else None for b in in_batched])(*arrays), True

    return run


def _whole(call: Call, x: Array, *arrays: Array) -> Array:
    leaves, (group_sizes,) = call.divide(arrays)
    return _visit_all(call, x, leaves, *_bounds(group_sizes)).astype(jnp.dtype(call.out_dtype))


def _body(call: Call, split: Split, x: Array, *arrays: Array) -> Array:
    """One shard: the part of every group that lies in its rows of x, of the experts that it has."""
    leaves, (group_sizes,) = call.divide(arrays)
    row = lax.axis_index(names(split.batch)) * x.shape[0] if split.batch else 0
    expert = lax.axis_index(names(split.bank)) * leaves[0].shape[0] if split.bank else 0
    own = (
        lax.dynamic_slice_in_dim(jnp.clip(bound - row, 0, x.shape[0]), expert, leaves[0].shape[0])
        for bound in _bounds(group_sizes)
    )
    y = _visit_all(split.shard(call), x, leaves, *own)
    axes = split.sum_axes(call)
    return (lax.psum(y, axes) if axes else y).astype(jnp.dtype(call.out_dtype))


def _bounds(group_sizes: Array) -> tuple[Int32[Array, " experts"], Int32[Array, " experts"]]:
    """First row of each group, and the row behind its last."""
    ends = jnp.cumsum(group_sizes.astype(jnp.int32))
    return ends - group_sizes.astype(jnp.int32), ends


def _visit_all(
    call: Call, x: Array, leaves: tuple[Array, ...], starts: Int32[Array, " experts"], ends: Int32[Array, " experts"]
) -> Array:
    """float32 sums: rows [starts[e], ends[e]) of x times expert e, 0 in other rows."""
    m, experts = x.shape[0], leaves[0].shape[0]
    tile = _tile_rows(m, experts)
    visits = -(-(ends - starts) // tile)
    visit_ends = jnp.cumsum(visits)
    x = jnp.pad(x, ((0, tile), (0, 0)))  # so that the last tile may begin anywhere
    product = _blocks.transposed_product if call.transposed else _blocks.product

    def visit(i: Array, y: Array) -> Array:
        expert = jnp.searchsorted(visit_ends, i, side="right")
        start = starts[expert] + (i - (visit_ends - visits)[expert]) * tile
        planes = planes_of(call, tuple(lax.dynamic_index_in_dim(leaf, expert, keepdims=False) for leaf in leaves))
        part = product(lax.dynamic_slice_in_dim(x, start, tile), planes, call.spec, call.platform)
        kept = lax.dynamic_slice_in_dim(y, start, tile)
        mine = start + jnp.arange(tile) < ends[expert]
        return lax.dynamic_update_slice_in_dim(y, jnp.where(mine[:, None], part, kept), start, 0)

    width = _rows.columns_of(planes_of(call, leaves), call.spec) if call.transposed else leaves[0].shape[-2]
    y = varying_zeros((m + tile, width), x, leaves, starts)
    return lax.fori_loop(0, visit_ends[-1], visit, y)[:m]


def _tile_rows(m: int, experts: int) -> int:
    """About the mean rows of an expert, as a power of two: a smaller tile decodes an expert more than once."""
    if m == 1:
        return 1
    mean = -(-m // experts)
    return min(_MAX_TILE, max(_MIN_TILE, 1 << (mean - 1).bit_length()))
