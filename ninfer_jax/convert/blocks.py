"""Row blocks: the unit of reading, encoding, writing, journalling and ownership.

A block is a range of rows of one object, sized by its source bytes, so that memory is bounded by the block and never
by a tensor. Blocks do not depend on devices or processes, and the bytes of an artifact do not depend on blocks. This
module leaves out what is done to a block (`ninfer_jax.convert.work`). Specification: storage-layouts (row views).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from ninfer_jax.errors import ConversionError
from ninfer_jax.formats import get_format
from ninfer_jax.layouts import geometry
from ninfer_jax.recipes import ObjectSpec, ResourceSpec, TensorSpec

MIN_BLOCK_BYTES = 1 << 16
"""Smallest allowed block; below it the cost of a step exceeds the work in it."""

DEFAULT_BLOCK_BYTES = 1 << 22
"""Source bytes in a block unless something else is asked for: hides the fixed cost of a step, and fits in caches."""

_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16}


@dataclass(frozen=True)
class Block:
    """Rows [start, stop) of one object; of a resource, bytes [start, stop).

    Attributes:
        position: index of the object in the artifact.
        start: first row.
        stop: one past the last row.
        nbytes: source bytes that the block reads.
    """

    position: int
    start: int
    stop: int
    nbytes: int


def row_bytes(spec: TensorSpec) -> int:
    """Source bytes of one row, at least one; words of quantized sources count as one byte each."""
    columns = prod(spec.shape[1:]) if spec.shape else 1
    return max(1, columns * _BITS.get(spec.rows.dtype, 8) // 8)


def object_blocks(position: int, spec: ObjectSpec, block_bytes: int) -> tuple[Block, ...]:
    """Cut one object into blocks of about `block_bytes` source bytes.

    Args:
        position: index of the object in the artifact.
        spec: a tensor or a resource.
        block_bytes: wanted source bytes in a block, bytes.

    Returns:
        Blocks that cover every row once, in order; each starts at a multiple of the layout's row block.
    """
    if isinstance(spec, ResourceSpec):
        rows, unit, quantum = spec.nbytes or 0, 1, 1
    else:
        rows = spec.shape[0] if spec.shape else 1
        unit, quantum = row_bytes(spec), geometry(spec.format, spec.shape).row_block
    step = max(1, block_bytes // (unit * quantum)) * quantum
    return tuple(
        Block(position, start, min(start + step, rows), (min(start + step, rows) - start) * unit)
        for start in range(0, rows, step)
    )


def check_block_bytes(block_bytes: int) -> int:
    """Return `block_bytes` when it is usable.

    Raises:
        ConversionError: it is below `MIN_BLOCK_BYTES`.
    """
    if block_bytes < MIN_BLOCK_BYTES:
        raise ConversionError(f"a block of {block_bytes} bytes is too small; give at least {MIN_BLOCK_BYTES} bytes")
    return block_bytes


def owned_blocks(
    objects: Sequence[ObjectSpec], blocks: Sequence[Block], process: int, processes: int
) -> tuple[Block, ...]:
    """Blocks of one process: contiguous shares of equal source bytes, so that a process opens few shards.

    The blocks of a matrix whose encoder needs a whole-matrix maximum stay with one process, which reads it once.

    Args:
        objects: the objects in stored order.
        blocks: every block, in stored order.
        process: index of this process.
        processes: number of processes.
    """
    if processes == 1:
        return tuple(blocks)
    total = sum(block.nbytes for block in blocks)
    chosen: list[Block] = []
    before = 0
    for unit in _units(objects, blocks):
        nbytes = sum(block.nbytes for block in unit)
        middle = before + nbytes / 2
        if min(processes - 1, int(middle * processes / max(1, total))) == process:
            chosen.extend(unit)
        before += nbytes
    return tuple(chosen)


def _units(objects: Sequence[ObjectSpec], blocks: Sequence[Block]) -> Iterable[list[Block]]:
    """Groups of blocks that one process must own together."""
    unit: list[Block] = []
    for block in blocks:
        if unit and not (unit[-1].position == block.position and needs_whole_matrix(objects[block.position])):
            yield unit
            unit = []
        unit.append(block)
    if unit:
        yield unit


def needs_whole_matrix(spec: ObjectSpec) -> bool:
    """True where the encoder of a tensor needs a maximum over the whole matrix before its first row (NVFP4)."""
    return (
        isinstance(spec, TensorSpec) and spec.encoder is not None and get_format(spec.format).category == "block-scaled"
    )
