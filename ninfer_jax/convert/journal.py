"""The journal of an unfinished conversion: which blocks are durable, one JSON line each, one file a process.

A journal lies beside the partial file. Its first line binds it to plan, recipe and sources; a block's line is
appended only after the bytes of the block were flushed to disk, and carries their CRC-32 and error sums, so that a
resumed run can check and report them. Later lines say how the process ended. A line cut short by a kill is ignored.
This module leaves out who reads which journal (`ninfer_jax.convert.resume`, `ninfer_jax.convert.remains`).
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ninfer_jax.convert.totals import ErrorTotals
from ninfer_jax.errors import ConversionError

JOURNAL_VERSION = 1
FLUSH_SECONDS = 1.0
"""A kill loses at most about this much work."""


@dataclass(frozen=True)
class Fingerprint:
    """What a journal belongs to: SHA-256 digests in hexadecimal.

    Attributes:
        plan: of the artifact's header: names, shapes, formats, offsets.
        recipe: of the recipe.
        sources: of the names, sizes, times and sampled contents of the source files.
    """

    plan: str
    recipe: str
    sources: str


@dataclass(frozen=True)
class BlockRecord:
    """One finished block.

    Attributes:
        position: index of the object in the artifact.
        start: first row (byte of a resource).
        stop: one past the last row.
        crc: CRC-32 of the bytes written, plane after plane.
        errors: error sums of its rows.
    """

    position: int
    start: int
    stop: int
    crc: int
    errors: ErrorTotals = field(default_factory=ErrorTotals)


@dataclass
class JournalContents:
    """What a journal says.

    Attributes:
        fingerprint: what it belongs to.
        records: finished blocks of all its runs, oldest first.
        ended: stage times where the last run finished all its blocks, else None.
        failed: why the last run stopped and what to do, where it could still say so.
    """

    fingerprint: Fingerprint
    records: list[BlockRecord] = field(default_factory=list)
    ended: dict[str, float] | None = None
    failed: str | None = None


def journal_path(partial: Path, process: int) -> Path:
    """Where the journal of a process lies."""
    return partial.with_name(f"{partial.name}.journal-{process}")


def find_journals(partial: Path) -> tuple[Path, ...]:
    """Every journal beside a partial file, by process."""
    prefix = f"{partial.name}.journal-"
    found = (path for path in partial.parent.iterdir() if path.name.startswith(prefix))
    numbered = [path for path in found if path.name[len(prefix) :].isdigit()]
    return tuple(sorted(numbered, key=lambda path: int(path.name[len(prefix) :])))


def read_journal(path: Path) -> JournalContents:
    """Read a journal, up to the last complete line.

    Raises:
        ConversionError: it cannot be read or is not a journal of this version.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise ConversionError(f"the journal {path.name} cannot be read: {error.strerror}") from error
    contents: JournalContents | None = None
    try:
        for line in lines:
            contents = _apply(contents, json.loads(line))
    except (ValueError, KeyError, TypeError) as error:
        raise ConversionError(f"the journal {path.name} is damaged; start again with --force") from error
    if contents is None:
        raise ConversionError(f"the journal {path.name} is empty: nothing was finished; start again with --force")
    return contents


def _apply(contents: JournalContents | None, entry: dict[str, Any]) -> JournalContents:
    if "journal" in entry:
        if entry["journal"] != JOURNAL_VERSION:
            raise ValueError("unknown version")
        fingerprint = Fingerprint(entry["plan"], entry["recipe"], entry["sources"])
        records = contents.records if contents and contents.fingerprint == fingerprint else []
        return JournalContents(fingerprint, records)
    if contents is None:
        raise ValueError("no first line")
    if "end" in entry:
        contents.ended = entry["end"]
    elif "failed" in entry:
        contents.failed = str(entry["failed"])
    else:
        errors = ErrorTotals(*entry["errors"])
        contents.records.append(BlockRecord(entry["object"], entry["start"], entry["stop"], entry["crc"], errors))
    return contents


class JournalWriter:
    """Appends to the journal of this process; used from one thread at a time.

    Args:
        path: the journal.
        fingerprint: what it belongs to.
        sync: waits until everything written to the partial file is on disk.
        flush_seconds: how long finished blocks may wait for a flush, seconds.
    """

    def __init__(
        self, path: Path, fingerprint: Fingerprint, sync: Callable[[], None], flush_seconds: float = FLUSH_SECONDS
    ) -> None:
        self.path = path
        self._sync = sync
        self._flush_seconds = flush_seconds
        self._waiting: list[dict[str, Any]] = []
        self._flushed = time.monotonic()
        # Appending in binary: a line cut short by a kill is cut off first, or the next line would join it.
        self._file = open(path, "ab")  # noqa: SIM115 - closed by close()
        self._cut_torn_line()
        self._append({"journal": JOURNAL_VERSION, **asdict(fingerprint)})

    def add(self, record: BlockRecord) -> None:
        """Note a written block; it counts as finished after the next flush."""
        errors = record.errors
        self._waiting.append(
            {
                "object": record.position,
                "start": record.start,
                "stop": record.stop,
                "crc": record.crc,
                "errors": [errors.signal, errors.noise, errors.worst],
            }
        )
        if time.monotonic() - self._flushed >= self._flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Flush the partial file, then the lines of the blocks in it."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._sync()
            self._append(*waiting)
        self._flushed = time.monotonic()

    def end(self, times: dict[str, float]) -> None:
        """Say that all blocks of this process are finished."""
        self.flush()
        self._append({"end": times})

    def fail(self, reason: str) -> None:
        """Say why this process stops and what to do; blocks not flushed yet are left out."""
        self._append({"failed": reason})

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()

    def _append(self, *entries: dict[str, Any]) -> None:
        for entry in entries:
            self._file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _cut_torn_line(self) -> None:
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            self._file.truncate(data.rfind(b"\n") + 1)
            self._file.seek(0, os.SEEK_END)
