"""`ninfer-jax convert`: a checkpoint into an artifact, or the plan of it."""

from dataclasses import replace
from pathlib import Path

import click

from ninfer_jax.cli.failure import print_failure
from ninfer_jax.cli.options import (
    FILE,
    block_option,
    budget_option,
    chosen_recipe,
    dialect_option,
    quiet_option,
    recipe_option,
    set_option,
)
from ninfer_jax.cli.plan import print_dry_run
from ninfer_jax.cli.progress import progress_display
from ninfer_jax.cli.summary import print_preflight, print_report
from ninfer_jax.convert import ConversionReport, Settings, abandon, convert, join, leave
from ninfer_jax.convert.outputs import check_output
from ninfer_jax.errors import NinferError
from ninfer_jax.recipes import Recipe


@click.command("convert")
@click.argument("source", type=FILE, required=False, metavar="[SRC]")
@click.argument("out", type=FILE, required=False, metavar="[OUT]")
@recipe_option(required=True)
@set_option
@dialect_option
@click.option("--dry-run", is_flag=True, help="Print the whole plan and write nothing.")
@click.option("--config", type=FILE, help="With --dry-run: plan from a config.json alone, without weights.")
@click.option("--force", is_flag=True, help="Replace OUT, and discard an interrupted conversion to it.")
@click.option("--resume", is_flag=True, help="Continue an interrupted conversion to OUT.")
@click.option("--report", "report_file", type=FILE, help="Write a JSON report: errors, sizes, sources with SHA-256.")
@click.option(
    "--no-digests", is_flag=True, help="Leave SHA-256 of the sources out of the report; saves reading them twice."
)
@quiet_option
@block_option
@budget_option
@click.option("--coordinator", metavar="HOST:PORT", help="Convert with several processes; address of process 0.")
@click.option("--processes", type=click.IntRange(min=1), help="Number of processes that convert together.")
@click.option("--process-id", type=click.IntRange(min=0), help="Index of this process, from 0.")
@click.option("--peer-timeout", type=float, default=30.0, show_default=True, help="Seconds until a process is dead.")
def convert_command(
    source: Path | None,
    out: Path | None,
    recipe_name: str,
    recipe_options: tuple[str, ...],
    dialect: str | None,
    dry_run: bool,
    config: Path | None,
    force: bool,
    resume: bool,
    report_file: Path | None,
    no_digests: bool,
    quiet: bool,
    block_size: int | None,
    memory_budget: int | None,
    coordinator: str | None,
    processes: int | None,
    process_id: int | None,
    peer_timeout: float,
) -> None:
    """Convert the checkpoint SRC into the artifact OUT.

    SRC is a safetensors file, a Hugging Face folder (one file, or shards with an index) or a GGUF file. OUT appears
    complete or not at all. An interrupted conversion keeps OUT.partial and is continued with --resume.

    Several processes, one for each host, convert together on a shared file system: start the same command on each with
    --coordinator, --processes and its own --process-id.
    """
    if force and resume:
        raise click.UsageError("--force starts again and --resume continues; give one of them")
    if block_size is not None and memory_budget is not None:
        raise click.UsageError("--memory-budget chooses the block size; give one of --block-size and --memory-budget")
    recipe = chosen_recipe(recipe_name, recipe_options)
    settings = Settings(
        block_size,
        memory_budget,
        overwrite=force,
        resume=resume,
        hash_sources=report_file is not None and not no_digests,
        peer_timeout=peer_timeout,
    )
    if dry_run:
        print_dry_run(source, config, recipe, settings, dialect)
        return
    if config is not None:
        raise click.UsageError("--config is for --dry-run; a conversion reads the config.json beside the weights")
    if source is None or out is None:
        raise click.UsageError("SRC and OUT are needed")
    index = _join(coordinator, processes, process_id, peer_timeout)
    _run(source, out, recipe, settings, dialect, report_file, quiet, index, grouped=(processes or 1) > 1)


def _convert(
    source: Path, out: Path, recipe: Recipe, settings: Settings, dialect: str | None, grouped: bool
) -> ConversionReport:
    """Convert; a process of a group ends at once when it fails."""
    try:
        return convert(source, out, recipe, settings, dialect=dialect)
    except NinferError as error:
        if not grouped:
            raise
        print_failure(str(error))
        abandon()


def _join(coordinator: str | None, processes: int | None, process_id: int | None, peer_timeout: float) -> int:
    """Join the other processes; the index of this one."""
    given = [value is not None for value in (coordinator, processes, process_id)]
    if not any(given):
        return 0
    if coordinator is None or processes is None or process_id is None:
        raise click.UsageError("give all of --coordinator, --processes and --process-id, or none")
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.UsageError(f"--coordinator {coordinator!r}: write HOST:PORT, such as host0:1234")
    if process_id >= processes:
        raise click.UsageError(f"--process-id {process_id} of {processes} processes; indices start at 0")
    if processes > 1:
        join(coordinator, process_id, processes, peer_timeout=peer_timeout)
    return process_id


def _check_report(report: Path, source: Path, out: Path) -> None:
    """Check, before a conversion that may take hours, that its report can be written and replaces nothing it needs."""
    if report.is_char_device() or report.is_fifo():
        return
    inputs = (out, source, *(source.iterdir() if source.is_dir() else ()))
    check_output(report, "report", overwrite=True, inputs=inputs)


def _run(
    source: Path,
    out: Path,
    recipe: Recipe,
    settings: Settings,
    dialect: str | None,
    report_file: Path | None,
    quiet: bool,
    index: int,
    grouped: bool,
) -> None:
    if report_file is not None:
        _check_report(report_file, source, out)
    with progress_display("converting", quiet=quiet or index != 0) as progress:
        chosen = replace(settings, progress=progress, assembled=leave if grouped else settings.assembled)
        if not quiet and index == 0:
            chosen = replace(chosen, announce=print_preflight)
        report = _convert(source, out, recipe, chosen, dialect, grouped)
    if index != 0:
        return
    if report_file is not None:
        report.write(report_file)
    if not quiet:
        print_report(report)
