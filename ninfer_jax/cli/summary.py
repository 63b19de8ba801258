"""What is printed after a conversion."""

from contextlib import suppress

import click

from ninfer_jax.cli.plan import print_totals
from ninfer_jax.cli.sizes import human
from ninfer_jax.cli.text import printable
from ninfer_jax.convert import ConversionReport, Preflight


def print_preflight(found: Preflight) -> None:
    """Print what is known before the first byte is written, on standard error.

    Args:
        found: from the checks before a conversion.
    """
    about = "" if found.seconds is None else f"; about {max(1, round(found.seconds))} s"
    text = f"{found.objects} objects, {human(found.file_size)} to write, {human(found.free)} free on the disk{about}"
    with suppress(OSError):  # as for progress
        click.echo(text, err=True)


def print_report(report: ConversionReport) -> None:
    """Print totals by format, the rate and what each stage took.

    Args:
        report: of the finished conversion.
    """
    print_totals(report.by_format())
    click.echo(
        f"wrote {report.artifact}: {human(report.artifact_bytes)} from {human(report.source_bytes)} of weights in "
        f"{report.elapsed_seconds:.1f} s ({human(report.source_rate)}/s)"
    )
    wall = max(report.stage_seconds.get("wall", 0.0), 1e-9)
    shares = ", ".join(
        f"{stage} {100 * seconds / wall / report.processes:.0f}%"
        for stage, seconds in report.stage_seconds.items()
        if stage != "wall"
    )
    click.echo(f"busy share of each stage (they overlap): {shares}")
    for name in report.dropped:
        click.echo(f"dropped: {printable(name)}")
    for note in report.notes:
        click.echo(f"note: {printable(note)}")
