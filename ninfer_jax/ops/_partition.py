"""Products under `jit` with sharded arguments and with explicitly typed shardings.

A weight is never moved. Two ways lead to a `Split`: a partitioning rule, where shardings are automatic, and
`shard_map`, where they are typed. Manual axes need neither: the caller's own shard is just a smaller product.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

from ninfer_jax.formats import BlockScaledFormat, GroupedFormat
from ninfer_jax.ops import _rows
from ninfer_jax.ops._call import Call, planes_of
from ninfer_jax.ops._split import Split, names

Body = Callable[..., Array]
"""`body(call, split, x, *arrays)` on the arrays of one shard."""


def product_body(local: Callable[..., Array], call: Call, split: Split, x: Array, *arrays: Array) -> Array:
    """The shards of a product of `local(call, x, *arrays)`, with partial sums added and gates brought to their rows."""
    shard, axes = split.shard(call), split.sum_axes(call)
    if not axes and not split.parts_gate(call):
        return local(shard, x, *arrays)
    leaves, operands = call.divide(arrays)
    y = local(shard.plain, x, *leaves)
    y = lax.psum(y, axes) if axes else y
    bias, residual = call.epilogue.terms(operands)
    if split.parts_gate(call):
        y, bias = y if bias is None else y + bias.astype(jnp.float32), None
        y = _own_halves(y, split, split.halves_fit(call, leaves[0].shape[-2]))
    rest = dataclasses.replace(call.epilogue, bias=bias is not None)
    return rest.finish(y, tuple(term for term in (bias, residual) if term is not None), jnp.dtype(call.out_dtype))


def _own_halves(sums: Array, split: Split, fit: bool) -> Array:
    """[gate, up] of the outputs of this shard, from sums [M, N / shards] that are either gate or up."""
    axes, ways = names(split.rows), split.ways(split.rows)
    if not fit:
        return lax.all_gather(sums, axes, axis=1, tiled=True)
    halves = jnp.split(sums, 2, axis=1)

    def part(first: int) -> Array:
        # Shard `first + b` has the outputs of shards 2b and 2b + 1; where nothing is sent, zeros arrive.
        routes = [[(first + b, 2 * b + side) for b in range(ways // 2)] for side in (0, 1)]
        low, high = (lax.ppermute(half, axes, route) for half, route in zip(halves, routes, strict=True))
        return low + high

    return jnp.concatenate([part(0), part(ways // 2)], axis=1)


def partitioned(call: Call, body: Body, whole: Callable[..., Array]) -> Callable[..., Array]:
    """`whole(x, *arrays)` with a partitioning rule that runs `body` on shards."""
    rule, options = _rule(call)
    wrapped = custom_partitioning(whole)
    wrapped.def_partition(partial(_partition, call, body), sharding_rule=rule, **options)
    return wrapped


def _partition(call: Call, body: Body, mesh: Any, args: Any, result: Any) -> Any:
    x, *arrays = args
    split = Split.of(call, x.sharding.spec, arrays[0].sharding.spec, mesh)
    split.check(call, tuple(arrays))
    specs, y_spec = split.specs(call, tuple(arrays))
    shard = partial(NamedSharding, mesh)
    return mesh, partial(body, call, split), shard(y_spec), tuple(shard(spec) for spec in specs)


def _rule(call: Call) -> tuple[str, dict[str, Any]]:
    """Partitioning rule of the factors e (weights), m (rows of x), n (rows of a weight) and g (its columns).

    A factor stands for axes of several lengths, such as columns, their bytes and their groups, or the rows of a gate
    and those of the result: a split of one is a split of all.
    """
    spec, lead = call.spec, "" if call.form == "matrix" else "e "
    if isinstance(spec, GroupedFormat):
        planes = ["n g"] * (3 if spec.bits in (5, 6) else 2)
    else:
        planes = ["n g", "n g u v w", ""] if isinstance(spec, BlockScaledFormat) else ["n g", "n"]
    given, kept = ("n", "g") if call.transposed else ("g", "n")
    batch = "e m" if call.form == "bank" else "m"
    result = f"{batch} {kept}"
    others = ["n"] * call.epilogue.bias + [result] * (call.epilogue.residual is not None)
    others += ["s"] * (call.form == "ragged")  # not e: every device needs all group sizes
    operands = ", ".join([f"{batch} {given}", *(f"{lead}{plane}".strip() for plane in planes), *others])
    added = (given, "e") if call.form == "ragged" else (given,)
    return f"{operands} -> {result}", {"reduction_factors": added}


def explicit_split(call: Call, x: Array, leaves: tuple[Array, ...]) -> tuple[Any, Split] | None:
    """Mesh and split that explicitly typed shardings ask for, or None where no operand is split by an explicit axis."""
    shardings = [jax.typeof(leaf).sharding for leaf in (x, *leaves)]
    if all(entry is None for sharding in shardings for entry in sharding.spec):
        return None
    mesh = next(sharding.mesh for sharding in (*shardings[1:], shardings[0]) if any(sharding.spec))
    if AxisType.Explicit not in mesh.axis_types:
        return None
    return mesh, Split.of(call, shardings[0].spec, shardings[1].spec, mesh)


def lay_explicit(call: Call, x: Array, leaves: tuple[Array, ...]) -> Array:
    """x laid out as its product needs it on explicit axes, where nobody else moves it; the weight stays where it is."""
    explicit = explicit_split(call, x, leaves)
    if explicit is None:
        return x
    mesh, split = explicit
    needed = NamedSharding(mesh, split.x_spec(call))
    return x if jax.typeof(x).sharding.spec == needed.spec else jax.sharding.reshard(x, needed)


def explicit_product(call: Call, mesh: Any, split: Split, body: Body, x: Array, arrays: tuple[Array, ...]) -> Array:
    """The product through `shard_map` over the mesh of the operands."""
    split.check(call, arrays)
    specs, y_spec = split.specs(call, arrays)
    return jax.shard_map(partial(body, call, split), mesh=mesh, in_specs=specs, out_specs=y_spec)(x, *arrays)


def check_placed(call: Call, leaves: tuple[Array, ...]) -> None:
    """Raise LayoutError for a concrete weight split where it cannot be; jit has an error of its own."""
    if isinstance(leaves[0], Tracer) or not isinstance(leaves[0].sharding, NamedSharding):
        return
    sharding = leaves[0].sharding
    Split.of(call, PartitionSpec(), sharding.spec, sharding.mesh).check(call, leaves)


def pad(x: Array, leaves: tuple[Array, ...], call: Call) -> Array:
    """x with zero columns up to the stored columns, which is what the rule splits."""
    return _rows.pad_columns(x, _rows.columns_of(planes_of(call, leaves), call.spec))
