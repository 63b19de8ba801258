"""`ninfer-jax report`: a conversion report as one self-contained HTML page."""

from pathlib import Path

import click

from ninfer_jax.cli.options import FILE, force_option
from ninfer_jax.convert import write_html


@click.command("report", short_help="Draw the JSON report FILE of a conversion as one page.")
@click.argument("file", type=FILE)
@click.option("--html", "out", type=FILE, required=True, help="The page to write.")
@force_option
def report_command(file: Path, out: Path, force: bool) -> None:
    """Draw the JSON report FILE of a conversion: sizes by format, error by tensor, bits per weight, stages.

    The page needs no network and no other file. Needs the extra `report` (matplotlib).
    """
    write_html(file, out, overwrite=force)
    click.echo(f"wrote {out.name}")
