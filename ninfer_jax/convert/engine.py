"""Converting a checkpoint: the plan's blocks through the pipeline into the partial file, then publishing it.

Host reads, device work and writes overlap; memory is bounded by a few blocks. An interruption, a full disk or a read
error keeps the partial file for a resumed run; data that cannot be encoded removes it, because trying again would not
help. This module leaves out what is done to a block (`ninfer_jax.convert.work`). Specification: container.
"""

import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from ninfer_jax.convert.blocks import Block
from ninfer_jax.convert.devices import DeviceMesh
from ninfer_jax.convert.distributed import current_group
from ninfer_jax.convert.fingerprint import fingerprint
from ninfer_jax.convert.group import Group
from ninfer_jax.convert.hashing import SourceHasher
from ninfer_jax.convert.journal import BlockRecord, find_journals, read_journal
from ninfer_jax.convert.plan import ConversionPlan
from ninfer_jax.convert.preflight import check_destination
from ninfer_jax.convert.report import ConversionReport, tensor_reports
from ninfer_jax.convert.resume import partial_path, unfinished
from ninfer_jax.convert.settings import PathLike, Settings, planned
from ninfer_jax.convert.stages import Pipeline, StageTimes
from ninfer_jax.convert.totals import ErrorTotals
from ninfer_jax.convert.work import Work, work_for
from ninfer_jax.convert.workspace import Workspace, open_workspace
from ninfer_jax.errors import CastError, ConversionError, EncodeError, FormatError, InvalidWordsError, SourceError
from ninfer_jax.recipes import Recipe
from ninfer_jax.sources import SourceFile

_HOPELESS = (CastError, EncodeError, FormatError, InvalidWordsError)
"""Errors that a resumed run would meet again."""


def convert(
    source: PathLike,
    destination: PathLike,
    recipe: str | Path | Recipe,
    settings: Settings | None = None,
    *,
    dialect: str | None = None,
) -> ConversionReport:
    """Convert a checkpoint into a `.ninfer` artifact: `payload(t) = pack(quantize(rows(t)))` for every tensor.

    Call it in every process of a `jax.distributed` group to convert together on a shared file system.

    Args:
        source: a safetensors file, a Hugging Face folder or a GGUF file.
        destination: where the artifact appears, complete, or not at all.
        recipe: a built-in recipe's name, a TOML file, or a recipe.
        settings: how to run; the defaults where None.
        dialect: explicit dialect of a quantized checkpoint.

    Returns:
        The report; that of process 0 covers all processes.

    Raises:
        NinferError: any of its kinds; nothing is published then.
    """
    chosen = settings or Settings()
    with planned(source, recipe, chosen, dialect=dialect) as (plan, checkpoint, loaded):
        report = execute(plan, checkpoint.files, Path(destination), chosen)
        report.recipe, report.recipe_sha256 = loaded.name, loaded.digest
        return report


def execute(
    plan: ConversionPlan,
    files: tuple[SourceFile, ...],
    destination: Path,
    settings: Settings,
) -> ConversionReport:
    """Execute a plan; see `convert`.

    Args:
        plan: what to write.
        files: the source files that the plan reads.
        destination: where the artifact appears.
        settings: how to run.
    """
    begun = time.perf_counter()
    group = current_group(settings.peer_timeout)
    check_destination(plan, destination, overwrite=settings.overwrite, resume=settings.resume)
    group.barrier("checked")
    expected = fingerprint(plan.artifact, plan.resolution, files)
    workspace = open_workspace(plan, destination, expected, group, settings)
    hasher = _start_hashing(files, group, settings)
    try:
        run = _Run(plan, workspace, group, settings)
        run.convert_blocks()
        records = run.finish()
        digests = hasher.digests() if hasher else {}
    except BaseException as error:
        _stop(workspace, group, error)
        raise _explained(error, destination) from error
    finally:
        if hasher:
            hasher.cancel()
        group.close()
        workspace.close()
    report = _report(plan, destination, records)
    report.sources = tuple(
        {"file": file.name, "bytes": file.nbytes, "sha256": digests.get(file.path)} for file in files
    )
    report.stage_seconds = run.stage_seconds
    report.processes, report.devices, report.resumed = group.count, run.mesh.size, settings.resume
    report.elapsed_seconds = time.perf_counter() - begun
    return report


class _Run:
    """The blocks of this process on their way through the pipeline."""

    def __init__(self, plan: ConversionPlan, workspace: Workspace, group: Group, settings: Settings) -> None:
        self.plan = plan
        self.workspace = workspace
        self.group = group
        self.settings = settings
        self.mesh = DeviceMesh(settings.devices)
        self.stage_seconds: dict[str, float] = {}
        self._work: tuple[int, Work] | None = None
        owned = plan.owned(group.index, group.count)
        self._todo = unfinished(owned, workspace.restored)
        self._total = sum(block.nbytes for block in owned)
        self._done = self._total - sum(block.nbytes for block in self._todo)

    def convert_blocks(self) -> None:
        """Read, encode and write every unfinished block of this process."""
        self.group.watch(Path(self.workspace.writer.partial), self.workspace.journal.touch)
        pipeline = Pipeline(self._read, self._launch, self._collect, self._write, check=self.group.check)
        times = pipeline.run(self._todo)
        self.workspace.journal.end({**vars(times)})

    def finish(self) -> list[BlockRecord]:
        """Wait for the other processes and publish; the finished blocks of all of them."""
        self.group.wait_for_all()
        self.group.barrier("blocks written")
        journals = [read_journal(path) for path in find_journals(Path(self.workspace.writer.partial))]
        records = _distinct([*self.workspace.restored, *(record for journal in journals for record in journal.records)])
        total = StageTimes()
        for journal in journals:
            if journal.ended is not None:
                total.add(StageTimes(**journal.ended))
        self.stage_seconds = {**vars(total)}
        self.group.barrier("journals merged")
        if self.group.index == 0:
            self.workspace.publish(records)
        self.group.barrier("published")
        return records

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


def _start_hashing(files: tuple[SourceFile, ...], group: Group, settings: Settings) -> SourceHasher | None:
    if not settings.hash_sources or group.index != 0:
        return None
    hasher = SourceHasher([file.path for file in files])
    hasher.start()
    return hasher


def _stop(workspace: Workspace, group: Group, error: BaseException) -> None:
    """Leave the files as the error asks: removed where resuming cannot help, else kept with the reason."""
    # The journal may be on the disk that failed; the error itself is told to the user.
    with suppress(OSError, ValueError):
        workspace.journal.fail(str(error) or type(error).__name__)
    group.linger()
    if isinstance(error, _HOPELESS) and group.count == 1:
        workspace.discard()


def _explained(error: BaseException, destination: Path) -> BaseException:
    """The error to raise: interruptions and system errors become one clear line that says how to continue."""
    kept = f"the finished part is kept in {partial_path(destination).name}; continue with --resume"
    if isinstance(error, KeyboardInterrupt):
        return ConversionError(f"interrupted; {kept}")
    if isinstance(error, ConversionError | SourceError):
        return type(error)(f"{error}; {kept}")
    if isinstance(error, OSError):
        return ConversionError(f"{error.strerror or error}; {kept}")
    if isinstance(error, MemoryError):
        return ConversionError(f"out of memory; give a smaller --memory-budget; {kept}")
    return error


def _distinct(records: list[BlockRecord]) -> list[BlockRecord]:
    """Records without repeated rows: a resumed run with another block size may overlap what was finished before."""
    return list({(record.position, record.start, record.stop): record for record in records}.values())


def _report(plan: ConversionPlan, destination: Path, records: list[BlockRecord]) -> ConversionReport:
    errors: dict[int, ErrorTotals] = {}
    for record in records:
        errors.setdefault(record.position, ErrorTotals()).add(record.errors)
    identity = plan.resolution.identity
    return ConversionReport(
        artifact=destination.name,
        identity=(identity.model_id, identity.weights_id),
        artifact_bytes=plan.artifact.file_size,
        header_sha256=plan.artifact.digest,
        sources=(),
        source_bytes=plan.source_bytes,
        tensors=tensor_reports(plan, errors),
        resources=tuple({"name": spec.name, "bytes": spec.nbytes} for spec in plan.resolution.resources),
        dropped=tuple(plan.resolution.dropped),
        notes=tuple(plan.resolution.notes),
        versions={"ninfer-jax": _version(), "jax": jax.__version__},
    )


def _version() -> str:
    try:
        return version("ninfer-jax")
    except PackageNotFoundError:
        return "uninstalled"
