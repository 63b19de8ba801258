"""Settings of a conversion, and the recipe applied to its checkpoint.

Everything here happens before a file is created, so it also serves dry runs and comparisons with a source.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ninfer_jax.convert.blocks import DEFAULT_BLOCK_BYTES
from ninfer_jax.convert.budget import block_bytes_for, check_budget
from ninfer_jax.convert.devices import Devices
from ninfer_jax.convert.journal import FLUSH_SECONDS
from ninfer_jax.convert.plan import ConversionPlan, plan_conversion
from ninfer_jax.convert.preflight import Preflight
from ninfer_jax.convert.progress import Progress, silent
from ninfer_jax.errors import ConversionError
from ninfer_jax.recipes import Recipe, load_recipe, resolve
from ninfer_jax.sources import Checkpoint, open_checkpoint

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Settings:
    """How a conversion runs; none of it changes the bytes of the artifact.

    Attributes:
        block_bytes: source bytes of a block; None takes it from the budget, or the default.
        memory_budget: resident memory that a process may use, bytes; None does not limit it.
        overwrite: replace a file at the destination.
        resume: continue an interrupted conversion.
        hash_sources: compute SHA-256 of the source files for the report.
        devices: devices to lay row blocks over; None takes all local ones.
        progress: called after every block.
        announce: called once, before the first byte is written.
        flush_seconds: finished blocks are flushed to disk and journalled at least this often; a kill loses no more.
    """

    block_bytes: int | None = None
    memory_budget: int | None = None
    overwrite: bool = False
    resume: bool = False
    hash_sources: bool = True
    devices: Devices | None = None
    progress: Progress = silent
    announce: Callable[[Preflight], None] = lambda _: None
    flush_seconds: float = FLUSH_SECONDS

    def __post_init__(self) -> None:
        """Refuse sizes that are no whole numbers, as of `2.5e9`.

        Raises:
            ConversionError: naming the setting.
        """
        for name in ("block_bytes", "memory_budget"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise ConversionError(f"Settings({name}={value!r}): an integer number of bytes or None is needed")

    def resolved_block_bytes(self) -> int:
        """The block size: as given, or as the budget allows.

        Raises:
            ConversionError: the budget is too small.
        """
        if self.block_bytes is not None:
            return self.block_bytes
        if self.memory_budget is not None:
            return min(DEFAULT_BLOCK_BYTES, block_bytes_for(self.memory_budget))
        return DEFAULT_BLOCK_BYTES


class Planned(NamedTuple):
    """A recipe applied to an open checkpoint."""

    plan: ConversionPlan
    checkpoint: Checkpoint
    recipe: Recipe


@contextmanager
def planned(
    source: PathLike, recipe: str | Path | Recipe, settings: Settings, *, dialect: str | None = None
) -> Iterator[Planned]:
    """Open a checkpoint, apply a recipe to it and plan the artifact; the checkpoint is closed at the end.

    Args:
        source: a safetensors file, a Hugging Face folder or a GGUF file.
        recipe: a built-in recipe's name, a TOML file, or a recipe.
        settings: block size and budget.
        dialect: explicit dialect of a quantized checkpoint; that of the recipe where None.

    Raises:
        SourceError: the checkpoint cannot be read.
        RecipeError: the recipe is malformed or does not fit.
        ConversionError: the block or the budget is too small.
    """
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    with open_checkpoint(Path(source), dialect=dialect or loaded.dialect) as checkpoint:
        plan = plan_conversion(resolve(loaded, checkpoint), block_bytes=settings.resolved_block_bytes())
        if settings.memory_budget is not None:
            check_budget(plan, settings.memory_budget)
        yield Planned(plan, checkpoint, loaded)
