"""The blocks of one process in one conversion: through the pipeline, into the file, until the artifact is published.

Leaves out opening and keeping files (`ninfer_jax.convert.workspace`) and what an error means
(`ninfer_jax.convert.engine`).
"""

import time
from pathlib import Path
from typing import Any

from ninfer_jax.convert.blocks import Block
from ninfer_jax.convert.devices import DeviceMesh
from ninfer_jax.convert.group import Group
from ninfer_jax.convert.journal import BlockRecord, JournalContents, find_journals, journal_path, read_journal
from ninfer_jax.convert.plan import ConversionPlan
from ninfer_jax.convert.resume import unfinished
from ninfer_jax.convert.settings import Settings
from ninfer_jax.convert.stages import Pipeline, StageTimes
from ninfer_jax.convert.totals import ErrorTotals
from ninfer_jax.convert.work import Work, work_for
from ninfer_jax.convert.workspace import Workspace
from ninfer_jax.errors import LostProcessError

_LOOK_SECONDS = 0.5


class BlockRun:
    """The blocks of this process on their way through the pipeline.

    Args:
        plan: what is converted.
        workspace: the open files.
        group: the processes that convert together.
        settings: progress.
        mesh: devices to lay row blocks over.

    Attributes:
        stage_seconds: busy seconds by stage, summed over processes; known after `finish`.
    """

    def __init__(
        self, plan: ConversionPlan, workspace: Workspace, group: Group, settings: Settings, mesh: DeviceMesh
    ) -> None:
        self.plan = plan
        self.workspace = workspace
        self.group = group
        self.settings = settings
        self.mesh = mesh
        self.stage_seconds: dict[str, float] = {}
        self._work: tuple[int, Work] | None = None
        owned = plan.owned(group.index, group.count)
        self._todo = unfinished(owned, workspace.restored)
        self._total = sum(block.nbytes for block in owned)
        self._done = self._total - sum(block.nbytes for block in self._todo)

    def convert_blocks(self) -> None:
        """Read, encode and write every unfinished block of this process."""
        times = Pipeline(self._read, self._launch, self._collect, self._write).run(self._todo)
        self.workspace.journal.end({**vars(times)})

    def finish(self) -> list[BlockRecord]:
        """Publish in process 0 once all have finished; the others return when it has.

        Returns:
            The finished blocks: in process 0 of all processes, else of this one.

        Raises:
            LostProcessError: another process stopped before that.
        """
        own = self.workspace.journal.path
        records = self._merge([read_journal(own)])
        self._wait_for_blocks()
        self.group.barrier("all blocks are written")
        if self.group.index == 0:
            journals = find_journals(Path(self.workspace.writer.partial))
            records = self._merge([read_journal(path) for path in journals])
            self.workspace.publish(records)
        self.group.barrier("the artifact is published")
        return records

    def _wait_for_blocks(self) -> None:
        """Wait until the journals of all processes say so: a barrier gives up after half an hour.

        Nothing is watched here; where a process dies, JAX's runtime ends this one.
        """
        partial = Path(self.workspace.writer.partial)
        for index in range(self.group.count):
            while (journal := read_journal(journal_path(partial, index))).ended is None:
                if journal.failed is not None:
                    raise LostProcessError(f"process {index} stopped: {journal.failed}")
                time.sleep(_LOOK_SECONDS)

    def _merge(self, journals: list[JournalContents]) -> list[BlockRecord]:
        """Records of the journals and of earlier runs; adds up the stage times."""
        total = StageTimes()
        for journal in journals:
            if journal.ended is not None:
                total.add(StageTimes(**journal.ended))
        self.stage_seconds = {**vars(total)}
        return _distinct([*self.workspace.restored, *(record for journal in journals for record in journal.records)])

    def _read(self, block: Block) -> tuple[Work, Any]:
        if self._work is None or self._work[0] != block.position:
            spec = self.plan.specs[block.position]
            self._work = (block.position, work_for(spec, self.mesh, self.plan.block_bytes))
        work = self._work[1]
        return work, work.read(block.start, block.stop)

    def _launch(self, block: Block, data: tuple[Work, Any]) -> tuple[Work, Any]:
        work, host = data
        return work, work.launch(host)

    def _collect(self, block: Block, launched: tuple[Work, Any]) -> tuple[Any, ErrorTotals]:
        work, result = launched
        return work.collect(block.start, block.stop, result)

    def _write(self, block: Block, finished: tuple[Any, ErrorTotals]) -> None:
        planes, errors = finished
        self.workspace.write(block, planes, errors)
        self._done += block.nbytes
        self.settings.progress(self._done, self._total, self.plan.specs[block.position].name)


def _distinct(records: list[BlockRecord]) -> list[BlockRecord]:
    """Records without repeated rows: a resumed run with another block size may overlap what was finished before."""
    return list({(record.position, record.start, record.stop): record for record in records}.values())
