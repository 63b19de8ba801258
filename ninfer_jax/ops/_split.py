"""How one product is split over mesh axes: which operand lies where, and what is added or exchanged.

Rows of a weight split over an axis give outputs split over it, columns split over an axis give partial sums that are
added over it, and so do the experts of a ragged product. Halves of a gated result are exchanged, weights never.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec

from ninfer_jax.arrays import QuantizedTensor, partition_specs
from ninfer_jax.arrays.sharding import check_split
from ninfer_jax.errors import LayoutError
from ninfer_jax.ops._call import Call, planes_of


@dataclasses.dataclass(frozen=True)
class Split:
    """One product over a mesh; the first four are entries of a PartitionSpec.

    Attributes:
        batch: of the rows of x.
        bank: of the weights of a bank.
        rows: of the rows of a weight.
        columns: of the columns of a weight.
        sizes: shards along each mesh axis.
    """

    batch: Any
    bank: Any
    rows: Any
    columns: Any
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, call: Call, x_spec: PartitionSpec, codes_spec: PartitionSpec, mesh: Any) -> "Split":
        """Banks, rows and columns as the weight lies; the rows of x keep the axes that the weight does not use."""
        lead = call.form != "matrix"
        codes = (*codes_spec, None, None, None)
        bank, (rows, columns) = codes[0] if lead else None, codes[lead : lead + 2]
        used = {*names(bank), *names(rows), *names(columns)}
        batch = tuple(name for name in names((*x_spec, None, None)[call.form == "bank"]) if name not in used)
        return cls(batch or None, bank, rows, columns, dict(mesh.shape))

    def ways(self, entry: Any) -> int:
        """Shards along an entry."""
        product = 1
        for name in names(entry):
            product *= self.sizes[name]
        return product

    def check(self, call: Call, leaves: tuple[Any, ...]) -> None:
        """Raise LayoutError where the split would cut a group, a block, a tile or a weight."""
        check_split(call.spec, leaves[0].shape[-2], call.k, self.ways(self.rows), self.ways(self.columns))
        count = 1 if call.form == "matrix" else leaves[0].shape[0]
        if count % self.ways(self.bank):
            possible = ", ".join(str(ways) for ways in range(1, count + 1) if count % ways == 0)
            raise LayoutError(
                f"a bank of {count} {call.format} weights cannot be split into {self.ways(self.bank)};"
                f" possible shard counts: {possible}"
            )

    def specs(self, call: Call, arrays: tuple[Any, ...]) -> tuple[tuple[PartitionSpec, ...], PartitionSpec]:
        """PartitionSpecs of x and of the arrays behind it, and of the result."""
        leaves, _ = call.divide(arrays)
        lead = () if call.form == "matrix" else (self.bank,)
        w = QuantizedTensor(planes_of(call, leaves), call.format, call.k)
        planes = jax.tree.leaves(
            partition_specs(w, PartitionSpec(*lead, self.rows, self.columns)),
            is_leaf=lambda p: isinstance(p, PartitionSpec),
        )
        kept = self.columns if call.transposed else self.rows
        result = PartitionSpec(
            *self._batch(call), kept if self.halves_fit(call, leaves[0].shape[-2] // self.ways(self.rows)) else None
        )
        bias = [PartitionSpec(kept)] if call.epilogue.bias else []
        residual = [result] if call.epilogue.residual else []
        sizes = [PartitionSpec()] if call.form == "ragged" else []
        return (self.x_spec(call), *planes, *bias, *residual, *sizes), result

    def x_spec(self, call: Call) -> PartitionSpec:
        """PartitionSpec of x, whose columns lie like what they are multiplied with."""
        return PartitionSpec(*self._batch(call), self.rows if call.transposed else self.columns)

    def _batch(self, call: Call) -> tuple[Any, ...]:
        return (self.bank, self.batch) if call.form == "bank" else (self.batch,)

    def sum_axes(self, call: Call) -> tuple[str, ...]:
        """Mesh axes to add partial results over."""
        weights = names(self.bank) if call.form == "ragged" else ()
        return (*weights, *names(self.rows if call.transposed else self.columns))

    def parts_gate(self, call: Call) -> bool:
        """Whether gate and up of one output lie on different devices."""
        return call.epilogue.activation is not None and self.ways(self.rows) > 1

    def halves_fit(self, call: Call, shard_rows: int) -> bool:
        """Whether the result keeps the split of the rows; a gated one needs pairs of shards of an even number each."""
        return not self.parts_gate(call) or (self.ways(self.rows) % 2 == 0 and shard_rows % 2 == 0)

    def shard(self, call: Call) -> Call:
        """The call of one shard; columns that are split have no padding, so a shard is a whole, narrower weight."""
        return dataclasses.replace(call, k=call.k // self.ways(self.columns))


def names(entry: Any) -> tuple[str, ...]:
    """Mesh axes of a PartitionSpec entry."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
