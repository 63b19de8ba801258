"""The files of a running conversion: the partial artifact and the journal of this process, opened anew or resumed.

Process 0 owns the partial file and publishes or discards it; the others attach to it. Nothing appears at the
destination before `publish`. Specification: container.
"""

import errno
import fcntl
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ninfer_jax.container import ArtifactWriter, PartWriter, TensorObject
from ninfer_jax.convert.blocks import Block
from ninfer_jax.convert.group import Group
from ninfer_jax.convert.journal import (
    BlockRecord,
    Fingerprint,
    JournalWriter,
    find_journals,
    journal_path,
)
from ninfer_jax.convert.plan import ConversionPlan
from ninfer_jax.convert.resume import bytes_crc, partial_path, restore
from ninfer_jax.convert.settings import Settings
from ninfer_jax.convert.totals import ErrorTotals
from ninfer_jax.errors import ConversionError, NinferError
from ninfer_jax.layouts import plane_row_bytes


@dataclass
class Workspace:
    """Open files of one process in one conversion. Made by `open_workspace`.

    Attributes:
        plan: what is converted.
        writer: the partial artifact.
        journal: the journal of this process.
        restored: blocks that earlier runs finished.
    """

    plan: ConversionPlan
    writer: PartWriter
    journal: JournalWriter
    restored: list[BlockRecord] = field(default_factory=list)

    def write(self, block: Block, planes: Any, errors: ErrorTotals) -> None:
        """Write the planes of a block at their place and note it in the journal."""
        stored = self.plan.artifact.objects[block.position]
        if isinstance(stored, TensorObject):
            self.writer.write_rows(stored.name, block.start, planes)
            crc = bytes_crc(plane_row_bytes(planes))
        else:
            self.writer.write(stored.name, block.start, planes)
            crc = bytes_crc((planes,))
        self.journal.add(BlockRecord(block.position, block.start, block.stop, crc, errors))

    def publish(self, records: list[BlockRecord]) -> None:
        """Publish the artifact once every process's blocks are in the file, and remove the journals.

        Args:
            records: finished blocks of all processes.
        """
        if not isinstance(self.writer, ArtifactWriter):
            raise ConversionError("only process 0 publishes; this process has attached to its file")
        for record in records:
            self.writer.mark_written(self.plan.artifact.objects[record.position].name, record.start, record.stop)
        self.writer.publish()
        self._remove_journals()

    def discard(self) -> None:
        """Remove the partial file and the journals, where this process owns them."""
        if isinstance(self.writer, ArtifactWriter):
            with suppress(NinferError):
                self.writer.abort()
            self._remove_journals()

    def close(self) -> None:
        """Close all files and leave them where they are."""
        self.journal.close()
        self.writer.close()

    def _remove_journals(self) -> None:
        for path in find_journals(Path(self.writer.partial)):
            path.unlink(missing_ok=True)


def open_workspace(
    plan: ConversionPlan, destination: Path, expected: Fingerprint, group: Group, settings: Settings
) -> Workspace:
    """Open the partial file and the journal of this process; `check_destination` has passed in every process.

    Args:
        plan: what is converted.
        destination: where the artifact will appear.
        expected: the fingerprint of this run.
        group: the processes that convert together.
        settings: whether to resume or overwrite, and how often to flush.

    Raises:
        ConversionError: nothing to resume, a changed source or recipe, or a file that cannot be opened.
        ArtifactError: another run is writing to the destination.
    """
    partial = partial_path(destination)
    # Every process reads the journals before any process appends to one, so that all agree on what is left to do.
    restored = restore(partial, plan.artifact, expected) if settings.resume else []
    group.barrier("journals read")
    owner = _open_owned(plan, destination, partial, settings) if group.index == 0 else None
    group.barrier("partial file ready")
    writer = owner or ArtifactWriter.attach(partial, plan.artifact)
    try:
        journal = JournalWriter(journal_path(partial, group.index), expected, writer.sync, settings.flush_seconds)
    except OSError as error:
        writer.close()
        raise ConversionError(f"the journal beside {partial.name} cannot be written: {error.strerror}") from error
    group.barrier("journals open")
    return Workspace(plan, writer, journal, restored)


def _open_owned(plan: ConversionPlan, destination: Path, partial: Path, settings: Settings) -> ArtifactWriter:
    """Take over the partial file, or create it after removing what an abandoned conversion left."""
    overwrite = settings.overwrite
    if settings.resume:
        return ArtifactWriter.resume(destination, plan.artifact, partial=partial, overwrite=overwrite)
    _remove_abandoned(partial)
    return ArtifactWriter.create(destination, plan.artifact, partial=partial, overwrite=overwrite)


def _remove_abandoned(partial: Path) -> None:
    """Remove what an earlier conversion left, unless it still runs: its process holds a lock on the partial file."""
    if partial.exists():
        with partial.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConversionError(
                    f"another process is writing {partial.name}; wait for it, or choose another destination"
                ) from None
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL):
                    raise  # some network file systems have no locks
    for path in (*find_journals(partial), partial):
        path.unlink(missing_ok=True)
