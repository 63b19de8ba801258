"""Products of two-dimensional operands under `jit` with sharded arguments, `shard_map` and `vmap`.

A weight is never moved: rows split over an axis give outputs split over it, columns split over an axis give partial
sums that are added over it (psum). Three ways lead there: automatic partitioning through a partitioning rule,
explicitly typed shardings through `shard_map`, and manual axes, where the caller's own shard is just a smaller product.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

from ninfer_jax.arrays import QuantizedTensor, partition_specs, quantized_format
from ninfer_jax.arrays.sharding import check_split
from ninfer_jax.formats import BlockScaledFormat, GroupedFormat, QuantizedFormat
from ninfer_jax.layouts import layout_of
from ninfer_jax.ops import _blocks, _rows

Local = Callable[[Array, Any], Array]
"""A product of local arrays: (x or dy, planes) to float32 or the output type."""


@dataclasses.dataclass(frozen=True)
class Call:
    """The static part of one product.

    Attributes:
        format: canonical format name.
        k: logical columns of the weight, or of the caller's shard inside `shard_map`.
        transposed: False for x [M, columns] to y [M, N], True for dy [M, N] to dx [M, columns].
        whole: name of the implementation for a weight that is not split.
        platform: where it runs.
        out_dtype: dtype name of the result.
        named: whether the caller named implementations without `xla`, so that falling back to it is an error.
    """

    format: str
    k: int
    transposed: bool
    whole: str
    platform: str
    out_dtype: str
    named: bool = False

    @property
    def spec(self) -> QuantizedFormat:
        """The spec of `format`."""
        return quantized_format(self.format)


def planes_of(call: Call, leaves: tuple[Any, ...]) -> Any:
    """The planes tuple of flat leaves, None where the format has no such plane."""
    planes_type = cast(Any, layout_of(call.format).planes_type)
    if isinstance(call.spec, GroupedFormat) and len(leaves) == 2:
        return planes_type(leaves[0], None, leaves[1])
    return planes_type(*leaves)


def summed(call: Call, axes: Any, x: Array, leaves: tuple[Array, ...]) -> Array:
    """The product of one shard, in float32, added over the mesh axes that split the sum."""
    product = _blocks.transposed_product if call.transposed else _blocks.product
    y = product(x, planes_of(call, leaves), call.spec, call.platform)
    y = lax.psum(y, axes) if axes else y
    return y.astype(jnp.dtype(call.out_dtype))


@dataclasses.dataclass(frozen=True)
class Split:
    """How one product is split over mesh axes; each entry is a PartitionSpec entry.

    Attributes:
        batch: of the rows of x.
        rows: of the rows of the weight.
        columns: of the columns of the weight.
    """

    batch: Any
    rows: Any
    columns: Any

    @classmethod
    def of(cls, call: Call, x_spec: PartitionSpec, codes_spec: PartitionSpec) -> "Split":
        """Rows and columns as the weight lies; the rows of x keep the axes that the weight does not use."""
        rows, columns = (*codes_spec, None, None)[:2]
        used = {*_names(rows), *_names(columns)}
        batch = tuple(name for name in _names((*x_spec, None)[0]) if name not in used)
        return cls(batch or None, rows, columns)

    def specs(self, call: Call, leaves: tuple[Any, ...]) -> tuple[PartitionSpec, tuple[Any, ...], PartitionSpec]:
        """PartitionSpecs of x, of the planes' leaves and of the result."""
        w = QuantizedTensor(planes_of(call, leaves), call.format, call.k)
        planes = jax.tree.leaves(
            partition_specs(w, PartitionSpec(self.rows, self.columns)), is_leaf=lambda p: isinstance(p, PartitionSpec)
        )
        contracted, kept = (self.rows, self.columns) if call.transposed else (self.columns, self.rows)
        return PartitionSpec(self.batch, contracted), tuple(planes), PartitionSpec(self.batch, kept)

    def sum_axes(self, call: Call) -> tuple[str, ...]:
        """Mesh axes to add partial results over."""
        return _names(self.rows if call.transposed else self.columns)


def _names(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _partition(local: Callable, call: Call, mesh: Any, args: Any, result: Any) -> Any:
    x, *leaves = args
    split = Split.of(call, x.sharding.spec, leaves[0].sharding.spec)
    ways = [_size(mesh, entry) for entry in (split.rows, split.columns)]
    check_split(call.spec, leaves[0].shape[0], call.k, *ways)
    x_spec, plane_specs, y_spec = split.specs(call, tuple(leaves))
    axes = split.sum_axes(call)

    def lower(x: Array, *leaves: Array) -> Array:
        if not axes:
            return local(shard_call(call, ways[1]), x, *leaves)
        y = local(dataclasses.replace(shard_call(call, ways[1]), out_dtype="float32"), x, *leaves)
        return lax.psum(y, axes).astype(jnp.dtype(call.out_dtype))

    shard = partial(NamedSharding, mesh)
    return mesh, lower, shard(y_spec), tuple(shard(spec) for spec in (x_spec, *plane_specs))


def shard_call(call: Call, column_shards: int) -> Call:
    """The call of one shard; columns that are split have no padding, so a shard is a whole, narrower weight."""
    return dataclasses.replace(call, k=call.k // column_shards)


def _size(mesh: Any, entry: Any) -> int:
    size = 1
    for name in _names(entry):
        size *= mesh.shape[name]
    return size


def _rule(spec: QuantizedFormat, transposed: bool) -> tuple[str, dict[str, Any]]:
    """Partitioning rule: factors n (rows), g (groups or columns) and m; and the sizes of what is never split."""
    sizes: dict[str, Any] = {}
    if isinstance(spec, GroupedFormat):
        columns, rows, planes = "(g a)", "n", "n (g b), n g"
        sizes = {"a": spec.group_size, "b": 32}
        if spec.bits in (5, 6):
            planes, sizes["h"] = "n (g b), n (g h), n g", 8 * (spec.bits - 4)
    elif isinstance(spec, BlockScaledFormat):
        columns, rows, planes = "(g a)", "(n r)", "(n r) (g b), n g u v w, "
        sizes = {"a": 64, "b": 32, "r": 128}
    else:
        columns, rows, planes = "g", "n", "n g, n"
    given, kept = (rows, columns) if transposed else (columns, rows)
    return f"m {given}, {planes} -> m {kept}", {**sizes, "reduction_factors": ("n" if transposed else "g",)}


def partitioned(local: Callable, spec: QuantizedFormat, transposed: bool) -> Callable:
    """`local(call, x, *leaves)` with the partitioning rule of a format."""
    rule, sizes = _rule(spec, transposed)
    wrapped = custom_partitioning(local, static_argnums=(0,))
    wrapped.def_partition(partial(_partition, local), sharding_rule=rule, **sizes)
    return wrapped


def explicit_split(call: Call, x: Array, leaves: tuple[Array, ...]) -> Split | None:
    """The split that explicitly typed shardings ask for, or None where no operand is split by an explicit axis."""
    shardings = [jax.typeof(leaf).sharding for leaf in (x, *leaves)]
    if all(entry is None for sharding in shardings for entry in sharding.spec):
        return None
    mesh = shardings[1].mesh if any(shardings[1].spec) else shardings[0].mesh
    if AxisType.Explicit not in mesh.axis_types:
        return None
    return Split.of(call, shardings[0].spec, shardings[1].spec)


def explicit_product(call: Call, split: Split, x: Array, leaves: tuple[Array, ...]) -> Array:
    """The product through `shard_map` over the mesh of the operands."""
    mesh = next(t.sharding.mesh for t in map(jax.typeof, (*leaves, x)) if any(t.sharding.spec))
    check_split(call.spec, leaves[0].shape[0], call.k, _size(mesh, split.rows), _size(mesh, split.columns))
    x_spec, plane_specs, y_spec = split.specs(call, leaves)
    body = lambda x, *leaves: summed(call, split.sum_axes(call), x, leaves)
    return jax.shard_map(body, mesh=mesh, in_specs=(x_spec, *plane_specs), out_specs=y_spec)(x, *leaves)


def pad(x: Array, leaves: tuple[Array, ...], call: Call) -> Array:
    """x with zero columns up to the stored columns, which is what the rule splits."""
    return _rows.pad_columns(x, _rows.columns_of(planes_of(call, leaves), call.spec))
