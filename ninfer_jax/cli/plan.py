"""The dry run: every object of a plan with its shape, format, place and size, and totals by format.

Works from a checkpoint, or from a config.json alone where the recipe allows it; then resources have no known size and
offsets are left out.
"""

from pathlib import Path

import click

from ninfer_jax.cli.sizes import human
from ninfer_jax.cli.tables import print_table
from ninfer_jax.cli.text import printable
from ninfer_jax.convert import FormatTotals, Settings, planned, totals_by_format
from ninfer_jax.layouts import encoded_size
from ninfer_jax.recipes import Recipe, Resolution, ResourceSpec, resolve
from ninfer_jax.sources import open_config


def print_dry_run(
    source: Path | None, config: Path | None, recipe: Recipe, settings: Settings, dialect: str | None
) -> None:
    """Print the plan of a conversion.

    Args:
        source: the checkpoint.
        config: a config.json, where there is no checkpoint.
        recipe: the recipe.
        settings: block size and budget.
        dialect: explicit dialect of a quantized checkpoint.
    """
    if (source is None) == (config is None):
        raise click.UsageError("--dry-run needs SRC, or --config FILE")
    if source is not None:
        with planned(source, recipe, settings, dialect=dialect) as (plan, _, _):
            offsets = [stored.offset for stored in plan.artifact.objects]
            _print_objects(plan.resolution, offsets)
            click.echo(f"payload offset {plan.artifact.payload_offset}, file size {plan.artifact.file_size} bytes")
        return
    with open_config(config or Path()) as checkpoint:
        _print_objects(resolve(recipe, checkpoint), None)


def _print_objects(resolution: Resolution, offsets: list[int] | None) -> None:
    rows = []
    for position, spec in enumerate(resolution.objects):
        offset = offsets[position] if offsets else None
        if isinstance(spec, ResourceSpec):
            rows.append((position, spec.name, "-", "raw-bytes-v1", offset, spec.nbytes, "file"))
        else:
            how = spec.encoder or (f"cast {spec.cast}" if spec.cast else "words")
            nbytes = encoded_size(spec.format, spec.shape)
            rows.append((position, spec.name, str(list(spec.shape)), spec.format, offset, nbytes, how))
    headers = ("#", "name", "shape", "format", "offset", "bytes", "how")
    print_table(f"{'/'.join(resolution.identity)}: {len(rows)} objects", headers, rows)
    tensors = [(spec.format, spec.shape, encoded_size(spec.format, spec.shape)) for spec in resolution.tensors]
    print_totals(totals_by_format(tensors))
    for name in resolution.dropped:
        click.echo(f"dropped: {printable(name)}")
    for note in resolution.notes:
        click.echo(f"note: {printable(note)}")


def print_totals(totals: dict[str, FormatTotals]) -> None:
    """Print sizes and bits per weight by format."""
    rows = [
        (name, entry.tensors, entry.elements, entry.nbytes, round(entry.bits_per_weight, 2))
        for name, entry in totals.items()
    ]
    count = sum(entry.tensors for entry in totals.values())
    elements = sum(entry.elements for entry in totals.values())
    nbytes = sum(entry.nbytes for entry in totals.values())
    rows.append(("all tensors", count, elements, nbytes, round(8 * nbytes / max(1, elements), 2)))
    print_table(f"totals ({human(nbytes)})", ("format", "tensors", "weights", "bytes", "bits/weight"), rows)
