"""The differentiable, batchable, shardable linear map that every product with a packed weight goes through.

`apply` maps [M, columns] to [M, N] or back. Its derivative is the other direction, from the same packed planes, to any
order. Packed words are integers: nothing flows back to them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from ninfer_jax.errors import UnsupportedError
from ninfer_jax.formats import FORMATS, DirectFormat
from ninfer_jax.ops import _partition
from ninfer_jax.ops._manual import vary_like, varying_axes
from ninfer_jax.ops._partition import Call
from ninfer_jax.ops.mosaic_gpu import MosaicGpu
from ninfer_jax.ops.mosaic_w4a4 import MosaicNvfp4W4A4
from ninfer_jax.ops.registry import Implementation, Problem
from ninfer_jax.ops.triton import Triton
from ninfer_jax.ops.xla import Xla

IMPLEMENTATIONS: Mapping[str, Implementation] = MappingProxyType(
    {i.name: i for i in (MosaicGpu(), Triton(), Xla(), MosaicNvfp4W4A4())}
)
"""Every implementation by name, in order of preference; always all of them."""


def _local(call: Call, x: Array, *leaves: Array) -> Array:
    """The product of arrays that are whole here."""
    if call.transposed or call.whole == Xla.name:
        return _partition.summed(call, (), x, leaves)
    n = leaves[0].shape[0]
    problem = Problem(call.format, x.shape[0], n, call.k, x.dtype.name, call.out_dtype)
    return IMPLEMENTATIONS[call.whole].product(x, _partition.planes_of(call, leaves), problem, call.platform)


_PARTITIONED: Mapping[tuple[str, bool], Callable] = {
    (spec.name, transposed): _partition.partitioned(_local, spec, transposed)
    for spec in FORMATS.values()
    if not isinstance(spec, DirectFormat)
    for transposed in (False, True)
}


@cache
def _batchable(call: Call) -> Callable:
    """The partitioned product with a rule for vmap, which automatic partitioning does not have."""
    local = _PARTITIONED[call.format, call.transposed]
    run = custom_vmap(partial(local, call))

    @run.def_vmap
    def batched(size: int, in_batched: list[bool], x: Array, *leaves: Array) -> tuple[Array, bool]:
        if in_batched[0] and not any(in_batched[1:]):  # more rows of x for the same weight
            y = run(x.reshape(-1, x.shape[-1]), *leaves)
            return y.reshape(size, -1, y.shape[-1]), True
        plain = _fall_back(call, "vmap over weights")
        axes = [0 if batched else None for batched in in_batched]
        return jax.vmap(partial(_local, plain), in_axes=axes)(x, *leaves), True

    return run


def _fall_back(call: Call, where: str) -> Call:
    """The call with `xla`, which runs where kernels do not.

    Raises:
        UnsupportedError: where the caller named another implementation.
    """
    if call.named and call.whole != Xla.name:
        raise UnsupportedError(
            f"{call.whole} does not run under {where}, and implementation= names nothing that does;"
            f" add {Xla.name!r} to it, or leave it out"
        )
    return dataclasses.replace(call, whole=Xla.name)


def _run(call: Call, x: Array, leaves: tuple[Array, ...]) -> Array:
    if varying_axes(x, leaves):
        # Inside shard_map the operands are the caller's own shards; a shard of the columns gives a partial sum.
        return _partition.summed(_fall_back(call, "axes that shard_map checks (check_vma)"), (), x, leaves)
    split = _partition.explicit_split(call, x, leaves)
    if split is not None:
        return _partition.explicit_product(_fall_back(call, "explicitly typed axes"), split, x, leaves)
    return _batchable(call)(x, *leaves)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _apply(call: Call, back: Call, x: Array, leaves: tuple[Array, ...]) -> Array:
    return _run(call, x, leaves)


def _forward(call: Call, back: Call, x: Array, leaves: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
    return _apply(call, back, x, leaves), leaves  # not _run: a second derivative passes through here


def _backward(call: Call, back: Call, leaves: tuple[Array, ...], dy: Array) -> tuple[Array, None]:
    return _apply(back, call, dy, leaves), None


_apply.defvjp(_forward, _backward)


@partial(jax.jit, static_argnums=(0, 1))
def _apply_jit(call: Call, back: Call, x: Array, leaves: tuple[Array, ...]) -> Array:
    return _apply(call, back, x, leaves)


def apply(call: Call, x: Array, planes: Any) -> Array:
    """`y = x @ w.T`, or `y = x @ w` where `call.transposed`, for x [M, columns or N] of a float type."""
    leaves = tuple(jnp.asarray(leaf) for leaf in jax.tree.leaves(planes))
    if not call.transposed:
        x = _partition.pad(x, leaves, call)
    # Made to vary like the weight before the derivative is taken, so that a gradient is added over the manual axes.
    x = vary_like(x, leaves)
    back = dataclasses.replace(call, transposed=not call.transposed, whole=Xla.name, out_dtype=x.dtype.name)
    return _apply_jit(call, back, x, leaves)
