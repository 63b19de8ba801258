"""Checks before the first byte is written: destination, leftovers, free disk, memory; and an estimate of the time.

Source tensors and their shapes were checked when the recipe was resolved. All checks only read, so every process of a
group makes them and fails alike.
"""

import os
import shutil
from pathlib import Path

from ninfer_jax.convert.journal import find_journals
from ninfer_jax.convert.plan import ConversionPlan
from ninfer_jax.convert.resume import partial_path
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


def check_destination(plan: ConversionPlan, destination: Path, *, overwrite: bool, resume: bool) -> None:
    """Check the destination, what an earlier run left there, and the free disk.

    Args:
        plan: what will be written.
        destination: where the artifact will appear.
        overwrite: a file there may be replaced and an interrupted conversion discarded.
        resume: an interrupted conversion will be continued.

    Raises:
        ConversionError: any of them does not allow the conversion; nothing was written.
    """
    folder = destination.parent
    if destination.is_dir():
        raise ConversionError(f"the destination {destination.name} is a folder; name a file in it")
    if not folder.is_dir():
        raise ConversionError(f"the folder {folder} of the destination does not exist; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConversionError(f"the folder {folder} of the destination cannot be written: permission denied")
    if os.path.lexists(destination) and not overwrite:
        raise ConversionError(f"the destination {destination.name} exists; remove it, or replace it with --force")
    partial = partial_path(destination)
    if resume:
        return
    if partial.exists() and find_journals(partial) and not overwrite:
        raise ConversionError(
            f"an interrupted conversion to {destination.name} is there; continue it with --resume, "
            "or start again with --force"
        )
    leftover = partial.stat().st_blocks * 512 if partial.exists() else 0
    free = shutil.disk_usage(folder).free + leftover
    if free < plan.artifact.file_size:
        raise ConversionError(
            f"the artifact needs {plan.artifact.file_size} bytes, the disk of the destination has {free} free; "
            "free space or choose another destination"
        )
