"""Row gathers on a GPU, as a session runs them: every gather checked before it is timed, results kept after every case.

    python -m benchmarks.bench_embedding_gpu [--seconds 30] [--json results.json [--append]]

The tables and columns are bench_embedding's, the largest table and number of rows first. A case that fails is named and
costs the others nothing; what there is no time for is named too. With `--append` the copy bandwidth and matrix rate are
those of the file. `--interpret` takes the same way on a CPU, with a tiny table and the interpreter; its times mean
nothing. Exit status 1 where there is no GPU or a case failed. Has not run on a GPU.
"""

import argparse
import functools
import pathlib
import sys
import time
from collections.abc import Callable, Sequence

import jax.numpy as jnp

from benchmarks import bench_embedding
from benchmarks.bench_embedding import Table, gathers_of, make_table, records_of
from benchmarks.bench_matmul_gpu import machine_of
from benchmarks.cases import EMBEDDING_CASES, WeightCase
from benchmarks.gpu_checks import Session, open_session
from benchmarks.harness import environment
from benchmarks.peers import first_line
from benchmarks.records import OURS, Record, Results, merged, read_results, write_results
from ninfer_jax.ops.mosaic_gpu import kernel_planes
from pallas_kernels import mosaic_gpu

TOKENS, TINY_TOKENS = (1024, 1, 64), (3,)
TINY_CASES = (WeightCase("tiny head", "q6", 256, 256),)


def _gathers(session: Session, table: Table, tokens: int, refusals: dict[str, str]) -> dict[str, Callable]:
    """Packed gathers by name; of a dry run, the default and the interpreted kernel."""
    if session.interpret is False:
        return gathers_of(table, tokens, refusals)
    n, k = table.packed.shape

    def interpreted(w, ids):
        return mosaic_gpu.take_rows(
            kernel_planes(w.planes), ids, kind=table.case.kind, n=n, k=k, out_dtype=jnp.bfloat16,
            interpret=session.interpret,
        )  # fmt: skip

    return {OURS: gathers_of(table, tokens, {})[OURS], "mosaic_gpu": interpreted}


def run(
    session: Session, cases: Sequence[WeightCase], tokens: Sequence[int], seconds: float,
    report: Callable[[list[Record], dict[str, str]], None], start: float,
) -> dict[str, str]:  # fmt: skip
    """Check and time the cases as far as there is time; what failed, and why.

    Args:
      session: clock and device.
      cases: tables.
      tokens: numbers of rows.
      seconds: how long to go on.
      report: called with records and refusals after every case.
      start: when the seconds began, of `time.monotonic`.
    """
    dry = session.interpret is not False
    sweep = 0 if dry else 2 * session.hardware.l2_bytes
    time_all = functools.partial(bench_embedding.by_the_device, clock=session.clock, sweep=sweep)
    records: list[Record] = []
    refusals: dict[str, str] = {}
    failed: dict[str, str] = {}
    for case in cases:
        table = None
        for count in tokens:
            name = f"{case.name} tokens={count}"
            if time.monotonic() - start > seconds:
                refusals[name] = "not timed for want of time"
                continue
            print(f"  {name}", file=sys.stderr, flush=True)  # the last one named is the one that never ended
            faults: dict[str, str] = {}
            try:
                table = table or make_table(case, case.n)
                calls = 1 if dry else bench_embedding.GPU_CALLS
                gathers = _gathers(session, table, count, refusals)
                for record in records_of(table, count, gathers, time_all, faults, calls):
                    records.append(record)
                    print(line(record), flush=True)
            except Exception as error:  # whatever a compiler or a device says against a case: the others go on
                faults[name] = first_line(error)
            failed |= faults
            report(records, refusals | failed)
    report(records, refusals | failed)
    return failed


def line(record: Record) -> str:
    """One record as a line of the table."""
    return f"{record.case:45} {record.implementation:12} {record.seconds * 1e6:9.2f} us {record.rate:8.0f} GB/s"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=pathlib.Path, help="where to write the results")
    parser.add_argument("--append", action="store_true", help="to what the results file has already")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--interpret", action="store_true", help="dry run on the CPU with a tiny table")
    options = parser.parse_args(arguments)
    session = open_session(options.interpret)
    before = None
    if options.append and options.json is not None and options.json.exists():
        before = read_results(options.json)
    machine = machine_of(session, before)
    described = {**environment(), "clock": session.clock.name, "interpreted": options.interpret}

    def report(records: list[Record], refusals: dict[str, str]) -> None:
        if options.json is not None:
            now = Results(described, machine, tuple(records), refusals=dict(refusals))
            write_results(options.json, now if before is None else merged(before, now))

    cases, tokens = (TINY_CASES, TINY_TOKENS) if options.interpret else (EMBEDDING_CASES, TOKENS)
    failed = run(session, cases, tokens, options.seconds, report, start)
    if failed:
        raise SystemExit("failed, not timed:\n" + "\n".join(f"  {name}: {why}" for name, why in failed.items()))


if __name__ == "__main__":
    sys.exit(main())
