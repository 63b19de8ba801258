"""Memory budgets: the block size that fits in one, and plans that do not.

A block's working set is a multiple of its source bytes; everything else of the process is reserved as a constant. Both
were measured and have room to spare (`benchmarks/bench_convert.py`).
"""

from ninfer_jax.convert.plan import ConversionPlan
from ninfer_jax.errors import ConversionError

RESERVED_BYTES = 640 << 20
"""Memory of the interpreter, XLA and its compiler, measured with some room: what a budget must hold besides blocks."""

BLOCK_COPIES = 24
"""Bytes of memory for each source byte of a block: queued copies, planes, and the encoder's binary32 temporaries."""

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
    largest = max(plan.blocks, key=lambda block: block.nbytes, default=None)
    if largest is None or RESERVED_BYTES + BLOCK_COPIES * largest.nbytes <= memory_budget:
        return
    name = plan.specs[largest.position].name
    needed = RESERVED_BYTES + BLOCK_COPIES * largest.nbytes
    raise ConversionError(
        f"tensor {name!r}: its smallest block of rows has {largest.nbytes} source bytes and needs about {needed} bytes "
        f"of memory; the budget is {memory_budget} bytes"
    )
