"""Comparing an artifact with its source: every row block encoded again and compared bit for bit.

A full comparison encodes everything; a sampled one takes seeded random row blocks of every tensor, after a full check
of the structure. Specification: tensor-formats §7, container.
"""

import random
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_jax.container import Artifact, StoredObject, TensorObject, open_artifact
from ninfer_jax.convert.blocks import Block
from ninfer_jax.convert.devices import DeviceMesh
from ninfer_jax.convert.differences import first_difference, same_bytes
from ninfer_jax.convert.plan import ConversionPlan
from ninfer_jax.convert.settings import PathLike, Settings, planned
from ninfer_jax.convert.stages import Pipeline
from ninfer_jax.convert.verify import Verified, check_between_planes
from ninfer_jax.convert.work import Work, work_for
from ninfer_jax.errors import ConversionError, VerifyError
from ninfer_jax.recipes import Recipe

_SAMPLED_BLOCK_BYTES = 1 << 20
"""Smaller blocks make a sample of the same cost reach more places of a tensor."""


def verify_against(
    path: PathLike,
    source: PathLike,
    recipe: str | Path | Recipe,
    settings: Settings | None = None,
    *,
    sample: int | None = None,
    seed: int = 0,
    dialect: str | None = None,
) -> Verified:
    """Compare an artifact with what its source and recipe give, bit for bit.

    Args:
        path: the artifact.
        source: the checkpoint it was converted from.
        recipe: the recipe it was converted with.
        settings: block size, budget, devices and progress.
        sample: row blocks to compare for each tensor; None compares all.
        seed: seed of the sample.
        dialect: explicit dialect of a quantized checkpoint.

    Returns:
        What was compared.

    Raises:
        VerifyError: naming the first object or word that differs.
        ConversionError: a sample of less than one block.
        NinferError: as `convert`, where the source cannot be planned or read.
    """
    if sample is not None and sample < 1:
        raise ConversionError(f"sample = {sample} would compare nothing; give at least 1, or None to compare all")
    begun = time.perf_counter()
    chosen = settings or Settings()
    if sample is not None and chosen.block_bytes is None:
        chosen = replace(chosen, block_bytes=_SAMPLED_BLOCK_BYTES)
    with planned(source, recipe, chosen, dialect=dialect) as (plan, _, _), open_artifact(Path(path)) as artifact:
        check_same_plan(artifact, plan)
        check_between_planes(artifact)
        blocks = plan.blocks if sample is None else sampled_blocks(plan, sample, seed)
        comparison = _Comparison(plan, artifact, chosen, blocks)
        Pipeline(comparison.read, comparison.launch, comparison.collect, comparison.compare).run(blocks)
        return Verified(len(artifact.objects), len(blocks), comparison.done, time.perf_counter() - begun)


def check_same_plan(artifact: Artifact, plan: ConversionPlan) -> None:
    """Compare identity and objects with what the recipe plans.

    Raises:
        VerifyError: naming the first difference.
    """
    expected = plan.artifact
    if artifact.revision != 1 and tuple(artifact.identity) != tuple(expected.identity):
        raise VerifyError(f"the identity is {tuple(artifact.identity)}, expected {tuple(expected.identity)}")
    for found, wanted in zip(artifact.objects, expected.objects, strict=False):
        if _without_offset(found) != _without_offset(wanted):
            raise VerifyError(f"object {found.name!r} is {found.entry()}, expected {wanted.entry()}")
    if len(artifact.objects) != len(expected.objects):
        raise VerifyError(f"there are {len(artifact.objects)} objects, expected {len(expected.objects)}")


def _without_offset(stored: StoredObject) -> dict[str, Any]:
    """A writer may pad between objects as it likes; everything else of an entry must agree."""
    return {key: value for key, value in stored.entry().items() if key != "offset"}


def sampled_blocks(plan: ConversionPlan, count: int, seed: int) -> list[Block]:
    """Up to `count` random blocks of every object, the same for the same seed.

    Args:
        plan: the plan.
        count: blocks of each object.
        seed: seed of the choice.
    """
    by_object: dict[int, list[Block]] = {}
    for block in plan.blocks:
        by_object.setdefault(block.position, []).append(block)
    chosen: list[Block] = []
    for position, blocks in by_object.items():
        # Seeded by name as well, so that a sample of one tensor does not depend on the others.
        generator = random.Random(f"{seed}:{plan.specs[position].name}")
        chosen += sorted(generator.sample(blocks, min(count, len(blocks))), key=lambda block: block.start)
    return chosen


class _Comparison:
    """Steps of the pipeline: encode a block as a conversion does, then compare it with the artifact."""

    def __init__(self, plan: ConversionPlan, artifact: Artifact, settings: Settings, blocks: Iterable[Block]) -> None:
        self.plan = plan
        self.artifact = artifact
        self.progress = settings.progress
        self.mesh = DeviceMesh(settings.devices)
        self.total = sum(block.nbytes for block in blocks)
        self.done = 0
        self._work: tuple[int, Work] | None = None

    def read(self, block: Block) -> tuple[Work, Any]:
        if self._work is None or self._work[0] != block.position:
            spec = self.plan.specs[block.position]
            work = work_for(spec, self.mesh, self.plan.block_bytes, measured=False)
            self._work = (block.position, work)
        work = self._work[1]
        return work, work.read(block.start, block.stop)

    def launch(self, block: Block, data: tuple[Work, Any]) -> tuple[Work, Any]:
        work, host = data
        return work, work.launch(host)

    def collect(self, block: Block, launched: tuple[Work, Any]) -> Any:
        work, result = launched
        return work.collect(block.start, block.stop, result)[0]

    def compare(self, block: Block, expected: Any) -> None:
        stored = self.artifact.objects[block.position]
        if isinstance(stored, TensorObject):
            found = self.artifact.row_planes(stored.name, block.start, block.stop)
            found = found if stored.shape else np.reshape(np.asarray(found), (1,))
            if not same_bytes(expected, found):
                columns = stored.shape[-1] if stored.shape else 1
                what = first_difference(expected, found, stored.format, columns, block.start)
                raise VerifyError(f"tensor {stored.name!r} differs from its source: {what}")
        else:
            found = self.artifact.payload(stored.name)[block.start : block.stop]
            if not np.array_equal(expected, found):
                at = block.start + int(np.flatnonzero(expected != found)[0])
                raise VerifyError(f"resource {stored.name!r} differs from its source at byte {at}")
        self.artifact.release(stored.name)
        self.done += block.nbytes
        self.progress(self.done, self.total, stored.name)
