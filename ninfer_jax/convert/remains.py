"""What a conversion that stopped has left, in words: what to do next, and what the other processes said.

Only looks at files, so it also serves a process that watched a conversion in its child. This module leaves out what is
kept and what is removed (`ninfer_jax.convert.engine`).
"""

import os
from collections.abc import Iterable
from pathlib import Path

from ninfer_jax.convert.journal import find_journals, read_journal
from ninfer_jax.convert.resume import partial_path
from ninfer_jax.errors import ConversionError


class Remains:
    """What lies at a destination, remembered before a conversion and compared after it stopped.

    Args:
        destination: where the artifact is to appear.
    """

    def __init__(self, destination: Path) -> None:
        self._destination = destination
        self._artifact = _mark(destination)
        self._journals = self._journal_marks()

    def reason(self, process: int) -> str | None:
        """Why another process stopped during the conversion and what to do, where one could still say so.

        Args:
            process: index of the process that asks; its own journal is left out.
        """
        for path, mark in self._journal_marks().items():
            index = int(path.name.rpartition("-")[2])
            if index == process or mark == self._journals.get(path):  # an earlier run's words mean nothing now
                continue
            try:
                failed = read_journal(path).failed
            except ConversionError:
                continue
            if failed is not None:
                return f"process {index} stopped: {failed}"
        return None

    def advice(self) -> str | None:
        """What to do now; None where the conversion left nothing."""
        partial = partial_path(self._destination)
        if partial.exists() and find_journals(partial):
            return f"the finished part is kept in {partial.name}; continue with --resume"
        mark = _mark(self._destination)
        if mark is None or mark == self._artifact:
            return None
        return f"{self._destination.name} was published before that and is complete"

    def _journal_marks(self) -> dict[Path, tuple[int, int, int] | None]:
        partial = partial_path(self._destination)
        paths: Iterable[Path] = find_journals(partial) if partial.parent.is_dir() else ()
        return {path: _mark(path) for path in paths}


def _mark(path: Path) -> tuple[int, int, int] | None:
    """What tells one state of a file from another; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
