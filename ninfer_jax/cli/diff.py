"""`ninfer-jax diff`: what differs between two artifacts."""

from pathlib import Path

import click

from ninfer_jax.cli.options import FILE, block_option
from ninfer_jax.cli.text import printable
from ninfer_jax.convert import DEFAULT_BLOCK_BYTES, diff_artifacts


@click.command("diff", short_help="Compare the artifacts FIRST and SECOND.")
@click.argument("first", type=FILE)
@click.argument("second", type=FILE)
@block_option
@click.pass_context
def diff_command(ctx: click.Context, first: Path, second: Path, block_size: int | None) -> None:
    """Compare the artifacts FIRST and SECOND: identity, objects, and the first differing word of every tensor.

    Exits with 0 where they hold the same and with 1 where they differ.
    """
    differences = diff_artifacts(first, second, block_bytes=block_size or DEFAULT_BLOCK_BYTES)
    for difference in differences:
        click.echo(printable(f"{difference.name}: {difference.what}" if difference.name else difference.what))
    if differences:
        ctx.exit(1)
    click.echo("both hold the same objects and the same words")
