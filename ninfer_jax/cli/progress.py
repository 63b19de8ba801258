"""Progress on standard error: a bar with rate and remaining time on a terminal, a line every few seconds otherwise."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress as Bar,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column

from ninfer_jax.cli.sizes import human
from ninfer_jax.cli.text import printable
from ninfer_jax.convert import Progress, silent

_LINE_SECONDS = 5.0


@contextmanager
def progress_display(verb: str, *, quiet: bool = False) -> Iterator[Progress]:
    """Show the progress of one run.

    Args:
        verb: what is being done, such as `converting`.
        quiet: show nothing.

    Yields:
        The callback to hand to the run.
    """
    if quiet:
        yield silent
    elif sys.stderr.isatty():
        with _bar(verb) as shown:
            yield shown
    else:
        yield _Lines(verb)


@contextmanager
def _bar(verb: str) -> Iterator[Progress]:
    fixed, name = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
    columns = (
        TextColumn("{task.description}", table_column=fixed),
        BarColumn(bar_width=20),
        DownloadColumn(table_column=fixed),
        TransferSpeedColumn(table_column=fixed),
        TimeRemainingColumn(table_column=fixed),
        TextColumn("{task.fields[name]}", style="dim", markup=False, table_column=name),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
        task = bar.add_task(verb, total=None, name="")

        def show(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, name=printable(name))

        yield show


class _Lines:
    """Prints a line at most every few seconds, and one at the end."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._begun = self._printed = time.monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int, name: str) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = done  # what a resumed run found done says nothing about the rate
        if done < total and now - self._printed < _LINE_SECONDS:
            return
        self._printed = now
        rate = (done - self._first) / max(now - self._begun, 1e-9)
        left = f", {(total - done) / rate:.0f} s left" if rate > 0 and done < total else ""
        share = 100 * done // max(total, 1)
        with suppress(OSError):  # a full disk under a log ends no conversion
            click.echo(f"{self._verb}: {share}% ({human(done)} of {human(total)}), {human(rate)}/s{left}", err=True)
