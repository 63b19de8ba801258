"""The front door: `python -m benchmarks [NAME ...]` runs benchmarks, prints a table and writes one results file.

Without names every benchmark runs that can here, at quick sizes. What is left out is named, with the reason. Leaves out
what a benchmark measures (its own module).
"""

import time
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.suite import BENCHMARKS, Benchmark, Settings

_CONSOLE = Console(width=170, highlight=False)


def _list() -> None:
    table = Table("name", "measures", "peers", title="python -m benchmarks NAME ...")
    for one in BENCHMARKS.values():
        table.add_row(one.name, one.summary + (" (needs a GPU)" if one.needs_gpu else ""), ", ".join(one.peers))
    _CONSOLE.print(table)


def _chosen(names: Iterable[str]) -> list[Benchmark]:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise click.UsageError(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    return [BENCHMARKS[name] for name in dict.fromkeys(names)] or list(BENCHMARKS.values())


def _run(chosen: list[Benchmark], full: bool, rounds: int, json_path: Path | None):
    """Results of the benchmarks; the file is written after each, so that a later one that ends the run costs nothing.

    Returns the results, and the names of the benchmarks that failed, whose reasons are among the refusals.
    """
    import jax

    from benchmarks.gpu_timing import launch_singly
    from benchmarks.harness import environment
    from benchmarks.machine import better_of, measure_machine
    from benchmarks.peers import first_line, missing_peers
    from benchmarks.records import Results, write_results

    def keep(results: Results) -> None:
        if json_path is not None:
            write_results(json_path, results)

    launch_singly()
    missing = missing_peers(sorted({peer for one in chosen for peer in one.peers}))
    refusals: dict[str, str] = {}
    records, failed = [], []
    machine = measure_machine()
    backend = jax.default_backend()
    refusals |= {one.name: f"needs a GPU, jax has {backend}" for one in chosen if one.needs_gpu and backend != "gpu"}
    for one in (one for one in chosen if one.name not in refusals):
        started = time.perf_counter()
        peers = tuple(peer for peer in one.peers if peer not in missing)
        try:
            records.extend(one.run(Settings(quick=not full, rounds=rounds, peers=peers, refusals=refusals)))
        except Exception as error:  # one that fails must not cost the others their results
            refusals[one.name] = f"failed: {first_line(error)}"
            failed.append(one.name)
        except KeyboardInterrupt:
            refusals[one.name] = "interrupted; it has the records that were ready"
            keep(Results(environment(), machine, tuple(records), missing, refusals))
            raise
        machine = better_of(machine, measure_machine())
        keep(Results(environment(), machine, tuple(records), missing, refusals))
        _CONSOLE.print(f"{one.name}: {time.perf_counter() - started:.0f} s")
    results = Results(environment(), machine, tuple(records), missing, refusals)
    keep(results)
    return results, failed


def _show(results) -> None:
    machine = results.machine
    title = (
        f"copy {machine['copy_bytes_per_second'] / 1e9:.1f} GB/s, matrix {machine['matrix_flops'] / 1e9:.0f} GFLOP/s"
    )
    table = Table("benchmark", "case", "implementation", title=title)
    for heading in ("best", "median", "rate", "share of floor"):
        table.add_column(heading, justify="right")
    for r in results.records:
        share = results.share_of_floor(r)
        table.add_row(
            *r.key,
            f"{r.best_seconds * 1e3:.3f} ms",
            f"{r.seconds * 1e3:.3f} ms",
            f"{r.rate:.4g} {r.unit}",
            f"{share:.1%}" if share else "",
        )
    _CONSOLE.print(" ".join(f"{name} {value}" for name, value in results.environment.items()))
    _CONSOLE.print(table)
    for name, reason in results.missing_peers.items():
        _CONSOLE.print(f"missing peer {name}: {reason}")
    for name, reason in results.refusals.items():
        _CONSOLE.print(f"left out {name}: {reason}")


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME ...]")
@click.option("--list", "list_only", is_flag=True, help="list the benchmarks and stop")
@click.option("--full", is_flag=True, help="registered sizes instead of quick ones; meant for a GPU or a large machine")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="times every candidate is timed"
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="write the results here")
def main(names: tuple[str, ...], list_only: bool, full: bool, rounds: int, json_path: Path | None) -> None:
    """Run benchmarks; all of them without a NAME."""
    if list_only:
        _list()
        return
    chosen = _chosen(names)
    if json_path is not None and not json_path.parent.is_dir():
        raise click.UsageError(f"{json_path.parent} is no folder; make it first")
    results, failed = _run(chosen, full, rounds, json_path)
    _show(results)
    if failed:
        raise click.ClickException(f"failed: {', '.join(failed)}; the reasons are above")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
