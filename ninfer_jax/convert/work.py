"""What is done to the blocks of one object: the three steps that the pipeline runs, by kind of object.

`work_for` chooses: grouped formats go through tiles, row-scaled and block-scaled formats keep their rows, quantized
sources are packed word for word, direct tensors and resources are copied or cast. This module leaves out threads,
files and progress. Specification: tensor-formats §3, §7; storage-layouts.
"""

from typing import Any, Protocol, runtime_checkable

from ninfer_jax.convert.devices import DeviceMesh
from ninfer_jax.convert.totals import ErrorTotals
from ninfer_jax.convert.work_direct import DirectCast, DirectCopy, ResourceCopy
from ninfer_jax.convert.work_grouped import GroupedCopy, GroupedEncode
from ninfer_jax.convert.work_rows import BlockScaledCopy, BlockScaledEncode, RowScaledCopy, RowScaledEncode
from ninfer_jax.formats import get_format
from ninfer_jax.recipes import ObjectSpec, ResourceSpec


@runtime_checkable
class Work(Protocol):
    """Steps for the blocks of one object; `rows` are bytes for a resource."""

    def read(self, start: int, stop: int) -> Any:
        """Copy source rows into host memory, padded for the device."""
        ...

    def launch(self, data: Any) -> Any:
        """Start the device work of one block without waiting for it."""
        ...

    def collect(self, start: int, stop: int, result: Any) -> tuple[Any, ErrorTotals]:
        """Wait for the device work; the planes of the block (bytes of a resource) and its error sums."""
        ...


_ENCODERS = {"grouped": GroupedEncode, "row-scaled": RowScaledEncode, "block-scaled": BlockScaledEncode}
_COPIERS = {"grouped": GroupedCopy, "row-scaled": RowScaledCopy, "block-scaled": BlockScaledCopy}


def work_for(spec: ObjectSpec, mesh: DeviceMesh, block_bytes: int, *, measured: bool = True) -> Work:
    """The steps for one object of a resolved recipe.

    Args:
        spec: a tensor or a resource.
        mesh: devices to lay row blocks over.
        block_bytes: source bytes of a full block.
        measured: also sum the errors of encoders; else their totals are zero.
    """
    if isinstance(spec, ResourceSpec):
        return ResourceCopy(spec)
    category = get_format(spec.format).category
    if category == "direct":
        return DirectCopy(spec) if spec.cast is None else DirectCast(spec)
    if spec.word_exact:
        return _COPIERS[category](spec, mesh, block_bytes)
    return _ENCODERS[category](spec, mesh, block_bytes, measured)
