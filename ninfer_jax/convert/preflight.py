"""Checks before the first byte is written: destination, leftovers, free disk; and an estimate of the time.

Source tensors and their shapes were checked when the recipe was resolved, the memory budget when the plan was made
(`ninfer_jax.convert.budget`). All checks only read, so every process of a group makes them and fails alike.
"""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ninfer_jax.convert.blocks import Block, needs_whole_matrix
from ninfer_jax.convert.devices import DeviceMesh
from ninfer_jax.convert.journal import find_journals
from ninfer_jax.convert.outputs import check_output
from ninfer_jax.convert.plan import ConversionPlan
from ninfer_jax.convert.resume import partial_path
from ninfer_jax.convert.work import work_for
from ninfer_jax.errors import ConversionError
from ninfer_jax.sources import SourceFile

ESTIMATED_BLOCKS = 32
"""Shorter conversions are not estimated: timing a block would take a good part of their time."""


class Preflight(NamedTuple):
    """What is known before the first byte is written.

    Attributes:
        objects: objects that will be stored.
        file_size: bytes of the artifact.
        free: bytes free on the disk of the destination.
        seconds: estimated time of this process; None for short conversions.
    """

    objects: int
    file_size: int
    free: int
    seconds: float | None


def preflight(plan: ConversionPlan, blocks: Sequence[Block], destination: Path, mesh: DeviceMesh) -> Preflight:
    """Sum up a plan whose destination has been checked, and estimate the time.

    Args:
        plan: what will be written.
        blocks: the blocks of this process.
        destination: where the artifact will appear.
        mesh: devices to lay row blocks over.
    """
    free = shutil.disk_usage(destination.parent).free
    return Preflight(len(plan.specs), plan.artifact.file_size, free, _estimated_seconds(plan, blocks, mesh))


def _estimated_seconds(plan: ConversionPlan, blocks: Sequence[Block], mesh: DeviceMesh) -> float | None:
    """Time the first block of the object that reads most, which also compiles its program, and scale it up."""
    totals: dict[int, int] = {}
    for block in blocks:
        totals[block.position] = totals.get(block.position, 0) + block.nbytes
    known = {position: total for position, total in totals.items() if not needs_whole_matrix(plan.specs[position])}
    if len(blocks) < ESTIMATED_BLOCKS or not known:
        return None
    position = max(known, key=lambda candidate: known[candidate])
    block = next(block for block in blocks if block.position == position)
    work = work_for(plan.specs[position], mesh, plan.block_bytes)
    seconds = []
    for _ in range(2):
        begun = time.perf_counter()
        work.collect(block.start, block.stop, work.launch(work.read(block.start, block.stop)))
        seconds.append(time.perf_counter() - begun)
    return seconds[-1] / max(1, block.nbytes) * sum(totals.values())


def check_destination(
    plan: ConversionPlan, files: Sequence[SourceFile], destination: Path, *, overwrite: bool, resume: bool
) -> None:
    """Check the destination, what an earlier run left there, and the free disk.

    Args:
        plan: what will be written.
        files: the weight files that are read.
        destination: where the artifact will appear.
        overwrite: a file there may be replaced and an interrupted conversion discarded.
        resume: an interrupted conversion will be continued.

    Raises:
        ConversionError: any of them does not allow the conversion; nothing was written.
    """
    if not destination.name:
        raise ConversionError(f"the destination {destination} is a folder; name a file in it")
    resources = (spec.path for spec in plan.resolution.resources if spec.path is not None)
    inputs = (*(file.path for file in files), *resources)
    partial = partial_path(destination)
    if resume and not overwrite and destination.is_file() and not partial.exists():
        raise ConversionError(
            f"nothing is left to resume: {destination.name} exists and nothing unfinished lies beside it; "
            "use it, or convert again with --force instead of --resume"
        )
    check_output(destination, "destination", overwrite=overwrite, inputs=inputs)
    if resume:
        return
    if partial.exists() and find_journals(partial) and not overwrite:
        raise ConversionError(
            f"an interrupted conversion to {destination.name} is there; continue it with --resume, "
            "or start again with --force"
        )
    leftover = partial.stat().st_blocks * 512 if partial.exists() else 0
    free = shutil.disk_usage(destination.parent).free + leftover
    if free < plan.artifact.file_size:
        raise ConversionError(
            f"the artifact needs {plan.artifact.file_size} bytes, the disk of the destination has {free} free; "
            "free space or choose another destination"
        )
