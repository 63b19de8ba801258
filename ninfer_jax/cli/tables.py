"""Tables on standard output: drawn on a terminal, aligned plain columns in a pipe or a file.

Plain columns are never cut or wrapped, so that they can be searched.
"""

import sys
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table

from ninfer_jax.cli.text import printable

Cell = str | int | float | None


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table; numbers are aligned to the right.

    Args:
        title: printed above the table.
        headers: a heading for each column.
        rows: cells; None prints as a dash.
    """
    cells = [[_text(cell) for cell in row] for row in rows]
    right = [any(isinstance(row[index], int | float) for row in rows) for index in range(len(headers))]
    if sys.stdout.isatty():
        table = Table(title=printable(title), title_justify="left")
        for header, align in zip(headers, right, strict=True):
            table.add_column(header, justify="right" if align else "left", overflow="fold")
        for row in cells:
            table.add_row(*row)
        Console(markup=False, emoji=False).print(table)  # names are no markup
        return
    lines = [list(headers), *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(headers))]
    click.echo(printable(title))
    for line in lines:
        parts = [
            cell.rjust(width) if align else cell.ljust(width)
            for cell, width, align in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(parts).rstrip())


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:.2f}" if isinstance(cell, float) else printable(str(cell))
