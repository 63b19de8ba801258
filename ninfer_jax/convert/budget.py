"""Memory budgets: the block size that fits in one, and plans that do not.

A block's working set is a multiple of its source bytes; everything else of the process is reserved as a constant. Both
were measured and have room to spare (`benchmarks/bench_convert.py`).
"""

from ninfer_jax.convert.blocks import Block
from ninfer_jax.convert.plan import ConversionPlan
from ninfer_jax.errors import ConversionError
from ninfer_jax.formats import DirectFormat, get_format
from ninfer_jax.recipes import TensorSpec

RESERVED_BYTES = 448 << 20
"""Memory of the interpreter, XLA and its compiler, measured with some room: what a budget must hold besides blocks."""

BLOCK_COPIES = 14
"""Bytes of memory for each source byte of a block: queued copies, planes, and the encoder's binary32 temporaries."""

DIRECT_COPIES = 8
"""The same for a block whose words are copied: only queued copies."""

_SMALLEST_BLOCK = 1 << 18


def block_bytes_for(memory_budget: int) -> int:
    """Largest power-of-two block whose work fits in a memory budget.

    Args:
        memory_budget: resident memory that the process may use, bytes.

    Raises:
        ConversionError: the budget cannot hold the interpreter and the smallest block.
    """
    available = (memory_budget - RESERVED_BYTES) // BLOCK_COPIES
    if available < _SMALLEST_BLOCK:
        smallest = RESERVED_BYTES + BLOCK_COPIES * _SMALLEST_BLOCK
        raise ConversionError(
            f"a memory budget of {memory_budget} bytes is too small; give at least {smallest} bytes "
            f"({-(-smallest >> 20)} MiB)"
        )
    return 1 << (available.bit_length() - 1)


def check_budget(plan: ConversionPlan, memory_budget: int) -> None:
    """Refuse a plan whose largest unit, one row or 128 NVFP4 rows, does not fit in the budget.

    Raises:
        ConversionError: naming the tensor and the memory it needs.
    """
    needs = ((_needed(plan, block), block) for block in plan.blocks)
    needed, block = max(needs, key=lambda need: need[0], default=(0, None))
    if block is None or needed <= memory_budget:
        return
    raise ConversionError(
        f"tensor {plan.specs[block.position].name!r}: its smallest block of rows has {block.nbytes} source bytes and "
        f"needs about {needed} bytes of memory; the budget is {memory_budget} bytes"
    )


def _needed(plan: ConversionPlan, block: Block) -> int:
    """Memory that the process needs to handle a block, bytes."""
    spec = plan.specs[block.position]
    coded = isinstance(spec, TensorSpec) and not isinstance(get_format(spec.format), DirectFormat)
    return RESERVED_BYTES + (BLOCK_COPIES if coded else DIRECT_COPIES) * block.nbytes
