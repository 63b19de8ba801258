"""Rows taken by a kernel under `vmap`, differentiation and `jit` with sharded arguments.

Row numbers may be batched and split over devices; each takes its own rows of a table that it has whole. A split table
is refused: its rows would be gathered onto every device first, which is what sharding it was to prevent. `xla`, whose
parts jax itself transforms, never comes here unless it stands in for a kernel.
"""

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

from ninfer_jax.errors import UnsupportedError
from ninfer_jax.ops._manual import varying_axes
from ninfer_jax.ops.gathers import GATHERS, Gather, XlaRows


@dataclasses.dataclass(frozen=True)
class Taking:
    """The static part of one call.

    Attributes:
        implementation: name of the one chosen.
        format: canonical name of the table's format.
        k: columns of the table.
        out_dtype: dtype name of the rows.
        tree: how the planes are put together from their leaves.
        named: whether the caller named implementations without `xla`, so that falling back to it is an error.
    """

    implementation: str
    format: str
    k: int
    out_dtype: str
    tree: Any
    named: bool


def _local(call: Taking, ids: Array, *leaves: Array) -> Array:
    """The rows of arrays that are whole here."""
    gather = Gather(call.format, ids.shape[0], leaves[0].shape[0], call.k, call.out_dtype)
    return GATHERS[call.implementation].take(jax.tree.unflatten(call.tree, leaves), ids, gather)


def _partition(call: Taking, mesh: Any, arguments: Any, result: Any) -> Any:
    ids, *leaves = (argument.sharding.spec for argument in arguments)
    if any(entry is not None for spec in leaves for entry in spec):
        raise UnsupportedError(
            f"{call.implementation} takes rows of a table that every device has whole, and this one is split over a"
            " mesh: pass implementation='xla', or replicate the table"
        )
    rows = PartitionSpec(*ids)
    placed = tuple(NamedSharding(mesh, PartitionSpec(*spec)) for spec in (rows, *leaves))
    return mesh, partial(_local, call), NamedSharding(mesh, PartitionSpec(*rows, None)), placed


def _partitioned(call: Taking, ranks: tuple[int, ...]) -> Callable:
    # Every dimension of the planes is a factor of its own, so that none is ever split for the sake of the result.
    planes = (" ".join(f"p{i}d{j}" for j in range(rank)) for i, rank in enumerate(ranks))
    run = custom_partitioning(partial(_local, call))
    run.def_partition(partial(_partition, call), sharding_rule=f"t, {', '.join(planes)} -> t k")
    return run


@cache
def _batchable(call: Taking, ranks: tuple[int, ...]) -> Callable:
    """The partitioned gather with rules for vmap and for derivatives, which automatic partitioning does not have."""
    partitioned = _partitioned(call, ranks)
    run = custom_vmap(partitioned)

    @run.def_vmap
    def batched(size: int, in_batched: list[bool], ids: Array, *leaves: Array) -> tuple[Array, bool]:
        if in_batched[0] and not any(in_batched[1:]):  # more rows of the same table
            rows = run(ids.reshape(-1), *leaves)
            return rows.reshape(size, -1, call.k), True
        plain = _fall_back(call, "vmap over tables")
        axes = [0 if batched else None for batched in in_batched]
        return jax.vmap(partial(_local, plain), in_axes=axes)(ids, *leaves), True

    constant = jax.custom_jvp(run)  # packed words and row numbers are integers: no derivative comes through them

    @constant.defjvp
    def derivative(primals: tuple[Array, ...], tangents: Any) -> tuple[Array, Array]:
        rows = run(*primals)
        return rows, jnp.zeros_like(rows)

    return constant


def _fall_back(call: Taking, where: str) -> Taking:
    """The call with `xla`, which runs where kernels do not.

    Raises:
        UnsupportedError: where the caller named another implementation.
    """
    if call.named:
        raise UnsupportedError(
            f"{call.implementation} does not take rows under {where}, and implementation= names nothing that does;"
            f" add {XlaRows.name!r} to it, or leave it out"
        )
    return dataclasses.replace(call, implementation=XlaRows.name)


def take(implementation: str, gather: Gather, ids: Array, planes: Any, named: bool) -> Array:
    """`y[t, k] = w[ids[t], k]` for ids in [0, n), by a kernel, or by `xla` where kernels do not run.

    Args:
        implementation: name of the one chosen.
        gather: what is taken.
        ids: row numbers.
        planes: the table.
        named: as in `Taking`.
    """
    leaves, tree = jax.tree.flatten(jax.tree.map(jnp.asarray, planes))
    call = Taking(implementation, gather.format, gather.k, gather.out_dtype, tree, named)
    if varying_axes(ids, leaves):
        return _local(_fall_back(call, "axes that shard_map checks (check_vma)"), ids, *leaves)
    if any(_split_by_type(array) for array in (ids, *leaves)):
        return _local(_fall_back(call, "explicitly typed axes"), ids, *leaves)
    return _batchable(call, tuple(leaf.ndim for leaf in leaves))(ids, *leaves)


def _split_by_type(array: Array) -> bool:
    sharding = jax.typeof(array).sharding
    return any(entry is not None for entry in sharding.spec) and AxisType.Explicit in sharding.mesh.axis_types
