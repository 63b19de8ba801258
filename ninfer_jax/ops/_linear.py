"""The differentiable, batchable, shardable products that every operator on packed weights goes through.

`apply` maps [M, columns] to [M, N] or back, with an epilogue on the way to the result. The derivative of a product is
the other direction, from the same packed planes, to any order; one with an epilogue is differentiated as the product
in float32 and the epilogue in plain JAX. Packed words are integers: nothing flows back to them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from ninfer_jax.ops import _blocks, _partition
from ninfer_jax.ops._call import Call, planes_of
from ninfer_jax.ops._manual import vary_like, varying_axes
from ninfer_jax.ops.epilogue import Epilogue
from ninfer_jax.ops.mosaic_gpu import MosaicGpu
from ninfer_jax.ops.mosaic_w4a4 import MosaicNvfp4W4A4
from ninfer_jax.ops.registry import Implementation, Problem
from ninfer_jax.ops.triton import Triton
from ninfer_jax.ops.xla import Xla

IMPLEMENTATIONS: Mapping[str, Implementation] = MappingProxyType(
    {i.name: i for i in (MosaicGpu(), Triton(), Xla(), MosaicNvfp4W4A4())}
)
"""Every implementation by name, in order of preference; always all of them."""

Product = Callable[..., Array]
"""`product(x, *arrays)` of one call."""


def _local(call: Call, x: Array, *arrays: Array) -> Array:
    """The product of arrays that are whole here; a bank is one product after another, each of packed planes."""
    if call.form == "bank":
        return lax.map(lambda each: _local(dataclasses.replace(call, form="matrix"), *each), (x, *arrays))
    leaves, operands = call.divide(arrays)
    planes = planes_of(call, leaves)
    if call.transposed:
        y = _blocks.transposed_product(x, planes, call.spec, call.platform)
        return y.astype(jnp.dtype(call.out_dtype))
    problem = Problem(call.format, x.shape[0], leaves[0].shape[0], call.k, x.dtype.name, call.out_dtype, call.epilogue)
    y = IMPLEMENTATIONS[call.implementation].product(x, planes, problem, call.platform, operands)
    # On axes that shard_map checks, the result of a kernel does not say by itself what it varies over.
    return vary_like(y, x, arrays)


@cache
def _whole(call: Call) -> Product:
    """The product of arrays that may be sharded over automatic mesh axes."""
    run = _partition.partitioned(call, partial(_partition.product_body, _local), partial(_local, call))
    return _mappable(call, run)


@cache
def _shard(call: Call) -> Product:
    """The product of arrays on manual mesh axes."""
    return _mappable(call, partial(_local, call))


def _mappable(call: Call, run: Product) -> Product:
    """`run` with a rule for vmap, which neither automatic partitioning nor a kernel has."""
    mapped = custom_vmap(run)

    @mapped.def_vmap
    def batched(size: int, in_batched: list[bool], *arrays: Array) -> tuple[Array, bool]:
        spread = lambda array, batched: array if batched else jnp.broadcast_to(array, (size, *array.shape))
        if call.form == "bank":  # a longer bank
            merged = [spread(a, b) for a, b in zip(arrays, in_batched, strict=True)]
            y = mapped(*(a.reshape(-1, *a.shape[2:]) for a in merged))
            return y.reshape(size, -1, *y.shape[1:]), True
        if not any(in_batched[1:]):  # more rows of x for the same weight
            y = mapped(arrays[0].reshape(-1, arrays[0].shape[-1]), *arrays[1:])
            return y.reshape(size, -1, y.shape[-1]), True
        if call.epilogue:
            apart = lambda x, *rest: _apart(call, x, *call.divide(rest))
            return jax.vmap(apart, [0 if b else None for b in in_batched])(*arrays), True
        if call.transposed or call.implementation == Xla.name:  # XLA maps its own operations
            return jax.vmap(partial(_local, call), [0 if b else None for b in in_batched])(*arrays), True
        x, *leaves = (spread(a, b) for a, b in zip(arrays, in_batched, strict=True))
        return _run(dataclasses.replace(call, form="bank"), x, tuple(leaves)), True

    return mapped


def _run(call: Call, x: Array, arrays: tuple[Array, ...]) -> Array:
    if varying_axes(x, arrays):
        # Inside shard_map the operands are the caller's own shards; a shard of the columns gives a partial sum.
        return _shard(call)(x, *arrays)
    explicit = _partition.explicit_split(call, x, arrays)
    if explicit is None:
        return _whole(call)(x, *arrays)
    body = lambda call, split, *shards: _partition.product_body(lambda c, *a: _shard(c)(*a), call, split, *shards)
    return _partition.explicit_product(call, *explicit, body, x, arrays)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(call: Call, back: Call, x: Array, leaves: tuple[Array, ...]) -> Array:
    return _run(call, x, leaves)


def _forward(call: Call, back: Call, x: Array, leaves: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
    return _product(call, back, x, leaves), leaves  # not _run: a second derivative passes through here


def _backward(call: Call, back: Call, leaves: tuple[Array, ...], dy: Array) -> tuple[Array, None]:
    return _product(back, call, dy, leaves), None


_product.defvjp(_forward, _backward)


def _apart(call: Call, x: Array, leaves: tuple[Array, ...], operands: tuple[Array, ...]) -> Array:
    """The product in float32, then the epilogue in plain JAX."""
    sums: Any = _product(call.plain, _back(call, x), x, leaves)
    return call.epilogue.finish(sums, operands, jnp.dtype(call.out_dtype))


def _back(call: Call, x: Array) -> Call:
    """The derivative of a plain product."""
    return dataclasses.replace(
        call, transposed=not call.transposed, implementation=Xla.name, out_dtype=x.dtype.name, epilogue=Epilogue()
    )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(call: Call, x: Array, leaves: tuple[Array, ...], operands: tuple[Array, ...]) -> Array:
    return _run(call, x, (*leaves, *operands))


def _fused_forward(call: Call, x: Array, leaves: tuple[Array, ...], operands: tuple[Array, ...]) -> tuple[Array, Any]:
    # The derivative of a gate needs the sums, which the kernel does not keep.
    return jax.vjp(lambda x, operands: _apart(call, x, leaves, operands), x, operands)


def _fused_backward(call: Call, pull: Any, dy: Array) -> tuple[Array, None, tuple[Array, ...]]:
    dx, d_operands = pull(dy)
    return dx, None, d_operands


_fused.defvjp(_fused_forward, _fused_backward)


@partial(jax.jit, static_argnums=(0, 1))
def _apply(call: Call, fused: bool, x: Array, leaves: tuple[Array, ...], operands: tuple[Array, ...]) -> Array:
    if not call.epilogue:
        return _product(call, _back(call, x), x, leaves)
    if fused and _partition.explicit_split(call, x, leaves) is None:
        return _fused(call, x, leaves, operands)
    return _apart(call, x, leaves, operands)


def apply(call: Call, x: Array, planes: Any, operands: tuple[Array, ...] = (), *, fused: bool = False) -> Array:
    """`y = x @ w.T` and the epilogue, or `y = x @ w` where `call.transposed`, for x [M, columns or N] of a float type.

    Args:
        call: the product.
        x: [M, columns or N].
        planes: of the weight.
        operands: of the epilogue, in the order of `Epilogue.terms`.
        fused: whether the implementation has the epilogue in its kernel.
    """
    leaves = tuple(jnp.asarray(leaf) for leaf in jax.tree.leaves(planes))
    _partition.check_placed(call, leaves)
    if not call.transposed:
        x = _partition.pad(x, leaves, call)
    # Made to vary like the weight before the derivative is taken, so that a gradient is added over the manual axes.
    x = vary_like(_partition.lay_explicit(call, x, leaves), leaves)
    return _apply(call, fused, x, leaves, operands)
