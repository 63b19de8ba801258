"""`ninfer-jax export`: an artifact as a safetensors file."""

from pathlib import Path

import click

from ninfer_jax.cli.options import FILE, block_option, force_option, quiet_option
from ninfer_jax.cli.progress import progress_display
from ninfer_jax.cli.sizes import human
from ninfer_jax.cli.text import printable
from ninfer_jax.convert import DEFAULT_BLOCK_BYTES, export_safetensors


@click.command("export")
@click.argument("file", type=FILE)
@click.argument("out", type=FILE)
@force_option
@block_option
@quiet_option
def export_command(file: Path, out: Path, force: bool, block_size: int | None, quiet: bool) -> None:
    """Export the artifact FILE as the safetensors file OUT.

    Quantized tensors are dequantized to float32; direct tensors keep their words. Resources are left out.
    """
    with progress_display("exporting", quiet=quiet) as progress:
        done = export_safetensors(
            file, out, overwrite=force, block_bytes=block_size or DEFAULT_BLOCK_BYTES, progress=progress
        )
    if quiet:
        return
    click.echo(f"wrote {out.name}: {done.tensors} tensors, {human(done.nbytes)}")
    for name in done.skipped_resources:
        click.echo(f"left out resource: {printable(name)}")
