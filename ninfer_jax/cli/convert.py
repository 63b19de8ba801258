"""`ninfer-jax convert`: a checkpoint into an artifact, or the plan of it."""

from dataclasses import replace
from pathlib import Path

import click

from ninfer_jax.cli.group import Place, convert_in_group
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
from ninfer_jax.convert import Settings, convert
from ninfer_jax.convert.outputs import check_output
from ninfer_jax.convert.resume import partial_path
from ninfer_jax.errors import ConversionError
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
@click.option(
    "--peer-timeout",
    type=click.IntRange(min=2),
    default=20,
    show_default=True,
    help="Seconds after which all stop when one of several processes died.",
)
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
    peer_timeout: int,
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
    )
    if dry_run:
        print_dry_run(source, config, recipe, settings, dialect)
        return
    if config is not None:
        raise click.UsageError("--config is for --dry-run; a conversion reads the config.json beside the weights")
    if source is None or out is None:
        raise click.UsageError("SRC and OUT are needed")
    if report_file is not None:
        _check_report(report_file, source, out)
    place = _place(coordinator, processes, process_id, peer_timeout)
    first = place is None or place.index == 0
    shown = replace(settings, announce=print_preflight) if first and not quiet else settings

    def run() -> None:
        _run(source, out, recipe, shown, dialect, report_file, quiet=quiet, first=first)

    if place is None:
        run()
    else:
        click.get_current_context().exit(convert_in_group(place, out, run))


def _place(coordinator: str | None, processes: int | None, process_id: int | None, peer_timeout: int) -> Place | None:
    """The place of this process among several; None where it is alone."""
    given = [value is not None for value in (coordinator, processes, process_id)]
    if not any(given):
        return None
    if coordinator is None or processes is None or process_id is None:
        raise click.UsageError("give all of --coordinator, --processes and --process-id, or none")
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.UsageError(f"--coordinator {coordinator!r}: write HOST:PORT, such as host0:1234")
    if process_id >= processes:
        raise click.UsageError(f"--process-id {process_id} of {processes} processes; indices start at 0")
    return Place(coordinator, process_id, processes, peer_timeout) if processes > 1 else None


def _check_report(report: Path, source: Path, out: Path) -> None:
    """Check, before a conversion that may take hours, that its report can be written and replaces nothing it needs."""
    if report.is_char_device() or report.is_fifo():
        return
    inputs = (out, partial_path(out), source, *(source.iterdir() if source.is_dir() else ()))
    check_output(report, "report", overwrite=True, inputs=inputs)


def _run(
    source: Path,
    out: Path,
    recipe: Recipe,
    settings: Settings,
    dialect: str | None,
    report_file: Path | None,
    *,
    quiet: bool,
    first: bool,
) -> None:
    with progress_display("converting", quiet=quiet or not first) as progress:
        report = convert(source, out, recipe, replace(settings, progress=progress), dialect=dialect)
    if not first:
        return
    try:
        if report_file is not None:
            report.write(report_file)
        if not quiet:
            print_report(report)
    except BrokenPipeError:
        raise
    except (ConversionError, OSError) as error:
        what = f"the summary cannot be printed: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise ConversionError(f"{what}; {out.name} is complete") from error
