"""`ninfer-jax verify`: structure and words of an artifact, and the comparison with its source."""

from pathlib import Path

import click

from ninfer_jax.cli.options import (
    FILE,
    block_option,
    chosen_recipe,
    dialect_option,
    quiet_option,
    recipe_option,
    set_option,
)
from ninfer_jax.cli.progress import progress_display
from ninfer_jax.cli.sizes import human
from ninfer_jax.convert import DEFAULT_BLOCK_BYTES, Settings, verify_against, verify_artifact


@click.command("verify", short_help="Verify the artifact FILE, alone or against its source.")
@click.argument("file", type=FILE)
@click.option("--source", type=FILE, help="Also compare every tensor with this checkpoint, bit for bit.")
@recipe_option(required=False)
@set_option
@dialect_option
@click.option("--sample", type=click.IntRange(min=1), help="With --source: only this many row blocks of each tensor.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the sample.")
@block_option
@quiet_option
def verify_command(
    file: Path,
    source: Path | None,
    recipe_name: str | None,
    recipe_options: tuple[str, ...],
    dialect: str | None,
    sample: int | None,
    seed: int,
    block_size: int | None,
    quiet: bool,
) -> None:
    """Verify the artifact FILE: its structure, then every stored word.

    With --source and --recipe every tensor is encoded again and compared bit for bit; the first difference is named.
    With --sample only seeded random row blocks are encoded and compared, and only the structure is checked in full.
    """
    if (source is None) != (recipe_name is None):
        raise click.UsageError("--source and --recipe belong together")
    if sample is not None and source is None:
        raise click.UsageError("--sample needs --source and --recipe")
    if sample is None:
        with progress_display("verifying words", quiet=quiet) as progress:
            done = verify_artifact(file, block_bytes=block_size or DEFAULT_BLOCK_BYTES, progress=progress)
        if not quiet:
            click.echo(f"{file.name}: structure and all words of {done.objects} objects are valid")
    if source is None or recipe_name is None:
        return
    recipe = chosen_recipe(recipe_name, recipe_options)
    with progress_display("comparing", quiet=quiet) as progress:
        settings = Settings(block_size, progress=progress)
        done = verify_against(file, source, recipe, settings, sample=sample, seed=seed, dialect=dialect)
    if not quiet:
        what = "every row block" if sample is None else f"{done.blocks} sampled row blocks (seed {seed})"
        click.echo(
            f"{file.name}: {what} of {done.objects} objects equal the source bit for bit "
            f"({human(done.nbytes)} in {done.elapsed_seconds:.1f} s)"
        )
