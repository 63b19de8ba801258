"""Shardings of packed weights: from one logical [..., N, K] sharding to those of the planes.

Splitting rows is always possible where their number divides (128-row tiles in NVFP4). Splitting columns must not cut a
group or a 128-column block; `shard_counts` lists what is possible. Nothing is moved here.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jax.sharding import NamedSharding, PartitionSpec

from ninfer_jax.arrays._geometry import column_block, quantized_format, row_block, stored_columns
from ninfer_jax.errors import LayoutError, UnsupportedError
from ninfer_jax.formats import BlockScaledFormat, Format, GroupedFormat, QuantizedFormat

if TYPE_CHECKING:
    from ninfer_jax.arrays.quantized_tensor import QuantizedTensor


def shard_counts(format: str | Format, k: int) -> tuple[int, ...]:
    """Every number of shards that K columns can be split into, ascending.

    A grouped weight whose K is not a multiple of 128 is stored with padding, which no split could share out: (1,).

    Args:
        format: canonical name or spec of a quantized format.
        k: logical columns of the whole weight.
    """
    spec = quantized_format(format)
    if stored_columns(spec, k) != k:
        return (1,)
    blocks = k // column_block(spec)
    return tuple(count for count in range(1, blocks + 1) if blocks % count == 0)


def partition_specs(w: "QuantizedTensor", spec: PartitionSpec) -> "QuantizedTensor":
    """A QuantizedTensor holding the PartitionSpec of each plane, as `in_specs` of `shard_map` takes it.

    Args:
        w: the weight; only its format, k and number of axes are used.
        spec: of the logical axes [..., N, K].

    Raises:
        LayoutError: where `spec` has more entries than the weight has axes.
    """
    entries = tuple(spec) + (None,) * (w.ndim - len(spec))
    if len(entries) > w.ndim:
        raise LayoutError(f"{spec} has more entries than the {w.ndim} axes of {w!r}")
    lead, (rows, columns) = entries[:-2], entries[-2:]
    matrix = PartitionSpec(*lead, rows, columns)
    if isinstance(w.spec, GroupedFormat):
        planes = (matrix, matrix if w.planes.high is not None else None, matrix)
    elif isinstance(w.spec, BlockScaledFormat):
        planes = (matrix, PartitionSpec(*lead, rows, columns, None, None, None), PartitionSpec(*lead))
    else:
        planes = (matrix, PartitionSpec(*lead, rows))
    return type(w)(type(w.planes)(*planes), w.format, w.k)


def shardings(w: "QuantizedTensor", sharding: NamedSharding) -> "QuantizedTensor":
    """A QuantizedTensor holding the sharding of each plane, as `jax.device_put` and `in_shardings` take it.

    Args:
        w: the weight.
        sharding: of the logical axes [..., N, K].

    Raises:
        LayoutError: for a split that would cut a group, a block or a tile; the message says which counts are possible.
        UnsupportedError: for another kind of sharding, which does not say how [N, K] is split.
    """
    if not isinstance(sharding, NamedSharding):
        raise UnsupportedError(f"a packed weight is split by a NamedSharding of [..., N, K], not by {sharding!r}")
    specs = partition_specs(w, sharding.spec)
    entries = tuple(sharding.spec) + (None,) * (w.ndim - len(sharding.spec))
    check_split(w.spec, w.shape[-2], w.k, _ways(sharding, entries[-2]), _ways(sharding, entries[-1]))
    planes = [None if leaf is None else NamedSharding(sharding.mesh, leaf) for leaf in specs.planes]
    return type(w)(type(specs.planes)(*planes), w.format, w.k)


def check_split(spec: QuantizedFormat, n: int, k: int, row_shards: int, column_shards: int) -> None:
    """Raise LayoutError unless [N, K] can be split into that many shards along each axis."""
    counts = shard_counts(spec, k)
    if column_shards not in counts:
        why = (
            "its rows are padded to a multiple of 128" if counts == (1,) else f"blocks of {column_block(spec)} columns"
        )
        raise LayoutError(
            f"{spec.name} [{n}, {k}] cannot be split into {column_shards} along K ({why});"
            f" possible shard counts: {', '.join(map(str, counts))}"
        )
    tiles = n // row_block(spec)
    if n % row_block(spec) or tiles % row_shards:
        possible = [count for count in range(1, tiles + 1) if tiles % count == 0]
        raise LayoutError(
            f"{spec.name} [{n}, {k}] cannot be split into {row_shards} along N (tiles of {row_block(spec)} rows);"
            f" possible shard counts: {', '.join(map(str, possible))}"
        )


def _ways(sharding: NamedSharding, entry: Any) -> int:
    names: Sequence[str] = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
    ways = 1
    for name in names:
        ways *= sharding.mesh.shape[name]
    return ways
