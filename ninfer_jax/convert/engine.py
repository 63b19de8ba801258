"""Converting a checkpoint: the plan's blocks through the pipeline into the partial file, then publishing it.

Host reads, device work and writes overlap; memory is bounded by a few blocks. An interruption, a full disk or a read
error keeps the partial file for a resumed run; data that cannot be encoded removes it, because trying again would not
help. This module leaves out what is done to a block (`ninfer_jax.convert.work`) and the order of steps
(`ninfer_jax.convert.block_run`). Specification: container.
"""

import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax

from ninfer_jax.convert.block_run import BlockRun
from ninfer_jax.convert.devices import DeviceMesh
from ninfer_jax.convert.distributed import current_group
from ninfer_jax.convert.fingerprint import fingerprint
from ninfer_jax.convert.group import Group
from ninfer_jax.convert.hashing import SourceHasher
from ninfer_jax.convert.journal import BlockRecord
from ninfer_jax.convert.plan import ConversionPlan
from ninfer_jax.convert.preflight import check_destination, preflight
from ninfer_jax.convert.remains import Remains
from ninfer_jax.convert.report import ConversionReport, tensor_reports
from ninfer_jax.convert.settings import PathLike, Settings, planned
from ninfer_jax.convert.totals import ErrorTotals
from ninfer_jax.convert.workspace import Workspace, open_workspace
from ninfer_jax.errors import (
    ArtifactError,
    CastError,
    ConversionError,
    EncodeError,
    FormatError,
    InvalidWordsError,
    LostProcessError,
    SourceChangedError,
    SourceError,
)
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

    Call it in every process of a `jax.distributed` group to convert together on a shared file system. Where a process
    dies, the others get `LostProcessError` in a barrier; at any other time JAX's runtime ends them with its own
    messages, after the heartbeat timeout of `jax.distributed.initialize`. `ninfer-jax convert` says it in one line.

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
        report = execute(plan, checkpoint.files, destination, chosen)
        report.recipe, report.recipe_sha256 = loaded.name, loaded.digest
        return report


def execute(
    plan: ConversionPlan,
    files: tuple[SourceFile, ...],
    destination: PathLike,
    settings: Settings | None = None,
) -> ConversionReport:
    """Execute a plan; see `convert`.

    Args:
        plan: what to write, made with the block size of the plan and not that of the settings.
        files: the source files that the plan reads, `checkpoint.files`; the checkpoint stays open meanwhile.
        destination: where the artifact appears.
        settings: how to run; the defaults where None.

    Returns:
        The report; it names no recipe.

    Raises:
        NinferError: any of its kinds; nothing is published then.
    """
    settings, destination = settings or Settings(), Path(destination)
    begun = time.perf_counter()
    group = current_group()
    check_destination(plan, files, destination, overwrite=settings.overwrite, resume=settings.resume)
    mesh = DeviceMesh(settings.devices)
    settings.announce(preflight(plan, plan.owned(group.index, group.count), destination, mesh))
    expected = fingerprint(plan.artifact, plan.resolution, files)
    group.barrier("all is checked", f"{expected} {plan.block_bytes} {settings.resume}")
    remains = Remains(destination)
    inputs = (*files, *_resource_files(plan))
    hasher = _start_hashing(inputs, group, settings)
    workspace: Workspace | None = None
    try:
        workspace = open_workspace(plan, destination, expected, group, settings)
        run = BlockRun(plan, workspace, group, settings, mesh)
        run.convert_blocks()
        digests = hasher.digests() if hasher else {}
        records = run.finish()
    except BaseException as error:
        explained = _explained(error, remains, group, begun=workspace is not None)
        if workspace is not None:
            _stop(workspace, group, explained)
        raise explained from error
    finally:
        if hasher:
            hasher.cancel()
        if workspace is not None:
            workspace.close()
    report = _report(plan, destination, records)
    report.sources = tuple(
        {"file": file.name, "bytes": file.nbytes, "sha256": digests.get(file.path)} for file in inputs
    )
    report.stage_seconds = run.stage_seconds
    report.processes, report.devices, report.resumed = group.count, mesh.size, settings.resume
    report.elapsed_seconds = time.perf_counter() - begun
    return report


def _resource_files(plan: ConversionPlan) -> tuple[SourceFile, ...]:
    """Files of the checkpoint that are stored as they are, each once."""
    found = {spec.path: spec for spec in plan.resolution.resources if spec.path is not None}
    return tuple(SourceFile(spec.file, spec.nbytes or 0, path) for path, spec in found.items())


def _start_hashing(files: tuple[SourceFile, ...], group: Group, settings: Settings) -> SourceHasher | None:
    if not settings.hash_sources or group.index != 0:
        return None
    hasher = SourceHasher([file.path for file in files])
    hasher.start()
    return hasher


def _stop(workspace: Workspace, group: Group, error: BaseException) -> None:
    """Leave the files as the error asks: removed where resuming cannot help, else kept with the reason."""
    # The journal may be on the disk that failed; the error itself is told to the user. Whoever lost a process has
    # nothing to tell the others, who lost it too.
    if not isinstance(error, LostProcessError):
        with suppress(OSError, ValueError):
            workspace.journal.fail(str(error) or type(error).__name__)
    if isinstance(error, _HOPELESS) and group.count == 1:
        workspace.discard()


def _explained(error: BaseException, remains: Remains, group: Group, *, begun: bool) -> BaseException:
    """The error to raise: one clear line that says what to do."""
    if isinstance(error, _HOPELESS):
        again = " with --force" if group.count > 1 else ""
        return type(error)(f"{error}; correct the source, or store the tensor otherwise, and start again{again}")
    if isinstance(error, SourceChangedError):
        advice = "restore it and continue with --resume, or start again with --force" if begun else "start again"
        return type(error)(f"{error}; {advice}")
    if isinstance(error, KeyboardInterrupt):
        what, kind = "interrupted", ConversionError
    elif isinstance(error, ArtifactError | ConversionError | SourceError):
        what, kind = str(error), type(error)
    elif isinstance(error, OSError):
        file = f"{Path(error.filename).name}: " if error.filename else ""
        what, kind = f"{file}{error.strerror or error}", ConversionError
    elif isinstance(error, MemoryError):
        what, kind = "out of memory; give a smaller --memory-budget", ConversionError
    else:
        return error
    advice = remains.advice() if begun or isinstance(error, KeyboardInterrupt) else None
    return kind(what if advice is None else f"{what}; {advice}")


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
