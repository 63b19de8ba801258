"""The plan of a conversion: every object, offset and row block, decided before a byte is written.

Built from a resolved recipe; the same resolution gives the same artifact plan on every machine. This module leaves out
execution (`ninfer_jax.convert.engine`). Specification: container.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ninfer_jax.container import ArtifactPlan, Identity, ResourceEntry, TensorEntry, plan_artifact
from ninfer_jax.convert.blocks import (
    DEFAULT_BLOCK_BYTES,
    Block,
    check_block_bytes,
    object_blocks,
    owned_blocks,
)
from ninfer_jax.errors import ConversionError
from ninfer_jax.recipes import ObjectSpec, Resolution, TensorSpec


@dataclass(frozen=True)
class ConversionPlan:
    """What will be written, and in which blocks.

    Attributes:
        resolution: the recipe applied to its checkpoint.
        artifact: offsets and sizes of every object.
        blocks: row blocks in stored order.
        block_bytes: source bytes of a full block.
    """

    resolution: Resolution
    artifact: ArtifactPlan
    blocks: tuple[Block, ...]
    block_bytes: int

    @property
    def specs(self) -> tuple[ObjectSpec, ...]:
        """The objects in stored order; `artifact.objects` has the same order."""
        return self.resolution.objects

    @cached_property
    def source_bytes(self) -> int:
        """Source bytes that the blocks read."""
        return sum(block.nbytes for block in self.blocks)

    def owned(self, process: int, processes: int) -> tuple[Block, ...]:
        """The blocks of one of several processes."""
        return owned_blocks(self.specs, self.blocks, process, processes)


def plan_conversion(resolution: Resolution, *, block_bytes: int = DEFAULT_BLOCK_BYTES) -> ConversionPlan:
    """Plan the artifact of a resolved recipe.

    Args:
        resolution: from `ninfer_jax.recipes.resolve`.
        block_bytes: source bytes of a block; memory is bounded by a multiple of it.

    Raises:
        ConversionError: the block is too small, or a resource has no known size.
        ArtifactError: the objects do not make a valid artifact.
    """
    check_block_bytes(block_bytes)
    artifact = plan_artifact(Identity(*resolution.identity), _entries(resolution.objects))
    blocks = tuple(
        block
        for position, spec in enumerate(resolution.objects)
        for block in object_blocks(position, spec, block_bytes)
    )
    return ConversionPlan(resolution, artifact, blocks, block_bytes)


def _entries(specs: Iterable[ObjectSpec]) -> Iterable[TensorEntry | ResourceEntry]:
    for spec in specs:
        if isinstance(spec, TensorSpec):
            yield TensorEntry(spec.name, spec.shape, spec.format)
        elif spec.nbytes is None:
            raise ConversionError(
                f"resource {spec.name!r}: the size of {spec.file} is unknown without the checkpoint; "
                "give the checkpoint as the source"
            )
        else:
            yield ResourceEntry(spec.name, spec.nbytes)
