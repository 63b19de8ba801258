"""Packed matmuls on a GPU: correctness of every case first, then time. Has not run on a GPU.

    python -m benchmarks.bench_matmul_gpu [--kinds q4,w8] [--tokens 1,16,1024] [--all] [--json results.json [--append]]

For every weight and number of tokens: microseconds, bytes per second, fraction of the copy bandwidth and of the
bfloat16 matrix rate measured in the same run, and how many times as long XLA's bfloat16 `x @ w.T` and the package's own
`xla` implementation take. A case that is wrong, or does not run, is named and not timed; the results file is written
after each step, so that one that never ends costs only what comes after it. `--interpret` runs the same path on a CPU
with tiny weights and the interpreter; its times mean nothing. Exit status 1 where there is no GPU or a case failed.
Leaves out the checks (gpu_checks), tuning (benchmarks.tune) and the CPU (bench_matmul). Source: ops-and-criteria.
"""

import argparse
import dataclasses
import itertools
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp

from benchmarks import gpu_timing
from benchmarks.cases import TOKENS, WEIGHT_CASES, WeightCase
from benchmarks.gpu_checks import Checked, Session, activations, check, open_session
from benchmarks.harness import Timing, environment
from benchmarks.packed_weights import random_planes
from benchmarks.peers import first_line
from benchmarks.records import OURS, Record, Results, merged, read_results, timed_record, write_results
from pallas_kernels import WEIGHT_KINDS, WeightPlanes
from pallas_kernels.planes import plane_bytes

#: What a session has time for: the two shapes of each kind that differ most, and the figures to beat.
QUICK_NAMES = (
    *("27b gdn query_key", "27b mlp gate_up", "27b attn output", "27b mlp down", "35b head", "27b head"),
    *(
        "27b mtp fusion",
        "27b mtp gate_up",
        "27b nvfp4 output",
        "27b nvfp4 gate_up",
        "27b fp8 output",
        "27b fp8 gate_up",
    ),
)
#: What matters most comes first, for want of time.
QUICK_TOKENS = (1, 1024, 16, 64)
TINY_CASES = tuple(WeightCase(f"tiny {kind}", kind, 128, 256) for kind in WEIGHT_KINDS)
TINY_TOKENS = (1, 17)
#: Part of the time that checks may take.
_CHECKING = 0.6


@dataclasses.dataclass(frozen=True)
class Result:
    """One case: sizes, how wrong and how fast.

    Attributes:
      name, kind, n, k, m: the case.
      relative_error: relative L2 error over the rows checked.
      microseconds: median time of a call.
      bytes_per_second: weight, x and y over that time.
      copy_fraction: that over the copy bandwidth of this run.
      matrix_fraction: 2*m*n*k over the time, over the matrix rate of this run.
      xla_bf16_ratio: XLA's bfloat16 product's time over ours.
      xla_packed_ratio: time of the package's own `xla` implementation, from the same packed weight, over ours.
    """

    name: str
    kind: str
    n: int
    k: int
    m: int
    relative_error: float
    microseconds: float
    bytes_per_second: float
    copy_fraction: float
    matrix_fraction: float
    xla_bf16_ratio: float
    xla_packed_ratio: float


@dataclasses.dataclass
class Outcome:
    """What became of the cases.

    Attributes:
      results: those timed.
      failed: case -> what is wrong with it.
      left: cases for which there was no time.
    """

    results: list[Result] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    left: list[str] = dataclasses.field(default_factory=list)


def time_case(
    session: Session, checked: Checked, planes: WeightPlanes, machine: dict[str, float], dense_seconds: float
) -> Result:
    """The `Result` of a case, whose programs are compiled already."""
    case, m = checked.case, checked.m
    pairs = gpu_timing.copies_of(activations(m, case.k), tuple(planes), checked.copies)
    seconds = session.clock(checked.ours, (pairs,), checked.copies)
    packed = session.clock(checked.packed, (pairs,), checked.copies)
    traffic = plane_bytes(case.kind, case.n, case.k) + 2 * m * (case.k + case.n)
    return Result(
        name=case.name,
        kind=case.kind,
        n=case.n,
        k=case.k,
        m=m,
        relative_error=checked.relative_error,
        microseconds=seconds * 1e6,
        bytes_per_second=traffic / seconds,
        copy_fraction=traffic / seconds / machine["copy_bytes_per_second"],
        matrix_fraction=2.0 * m * case.n * case.k / seconds / machine["matrix_flops"],
        xla_bf16_ratio=dense_seconds / seconds,
        xla_packed_ratio=packed / seconds,
    )


def dense_seconds(session: Session, m: int, n: int, k: int) -> float:
    """Seconds of XLA's bfloat16 `x @ w.T`."""
    dense = jax.random.normal(jax.random.key(0), (n, k), jnp.bfloat16)
    copies = session.copies(dense.nbytes)
    return gpu_timing.seconds_of(session.clock, lambda x, w: x @ w.T, activations(m, k), dense, copies)


def run(
    session: Session, cases: Sequence[WeightCase], tokens: Sequence[int], machine: dict[str, float], seconds: float,
    report: Callable[[Outcome], None], start: float | None = None,
) -> Outcome:  # fmt: skip
    """Check the cases, then time those that are right, as far as there is time.

    Args:
      session: what the cases share.
      cases: weights.
      tokens: numbers of tokens.
      machine: what the machine itself does.
      seconds: how long to go on; checks take a part of it at most.
      report: called with what there is, after the checks and after every case timed.
      start: when the seconds began, of `time.monotonic`; None for now.
    """
    start, outcome = time.monotonic() if start is None else start, Outcome()
    weights = {case: random_planes(case.kind, case.n, case.k) for case in cases}
    checked: list[Checked] = []
    for m, case in itertools.product(tokens, cases):
        if time.monotonic() - start > _CHECKING * seconds:
            outcome.left.append(f"{case.name} m={m}")
            continue
        _attempt(outcome, case, m, lambda case=case, m=m: checked.append(check(session, case, weights[case], m)))
    outcome.failed |= {f"{one.case.name} m={one.m}": one.fault for one in checked if one.fault}
    right = [one for one in checked if not one.fault]
    worst = max((one.relative_error for one in right), default=0.0)
    print(f"{len(right)} cases right, largest relative error {worst:.2e}", flush=True)
    report(outcome)
    dense: dict[tuple[int, int, int], float] = {}
    for one in right:
        case, m = one.case, one.m
        if time.monotonic() - start > seconds:
            outcome.left.append(f"{case.name} m={m}")
            continue

        def timed(one: Checked = one, key: tuple[int, int, int] = (m, case.n, case.k)) -> None:
            dense[key] = dense.get(key) or dense_seconds(session, *key)
            outcome.results.append(time_case(session, one, weights[one.case], machine, dense[key]))
            print(line(outcome.results[-1]), flush=True)

        _attempt(outcome, case, m, timed)
        report(outcome)
    return outcome


def _attempt(outcome: Outcome, case: WeightCase, m: int, step: Callable[[], None]) -> None:
    """Take a step of a case; whatever a compiler or a device says against it is noted, and the others go on."""
    print(f"  {case.name} m={m}", file=sys.stderr, flush=True)  # the last one named is the one that never ended
    try:
        step()
    except Exception as error:
        outcome.failed[f"{case.name} m={m}"] = first_line(error)


def line(result: Result) -> str:
    """One result as a line of the table."""
    return (
        f"{result.name:30} {result.kind:5} [{result.n},{result.k}] m={result.m:<5} {result.microseconds:10.1f} us "
        f"{result.bytes_per_second / 1e9:7.0f} GB/s  copy {result.copy_fraction:5.1%}  "
        f"matrix {result.matrix_fraction:5.1%}  bf16 x{result.xla_bf16_ratio:.2f}  xla x{result.xla_packed_ratio:.2f}"
    )


def records_of(result: Result) -> Iterator[Record]:
    """The records of one case: the kernel, XLA's bfloat16 product, and XLA's from the packed weight."""
    seconds = result.microseconds / 1e6
    dense = 2.0 * (result.n * result.k + result.m * (result.n + result.k))
    rows = {
        OURS: (seconds, result.bytes_per_second * seconds, {"relative_error": result.relative_error}),
        "xla-bf16": (seconds * result.xla_bf16_ratio, dense, {}),
        "xla-packed": (seconds * result.xla_packed_ratio, result.bytes_per_second * seconds, {}),
    }
    for name, (taken, nbytes, figures) in rows.items():
        yield timed_record(
            "matmul-gpu",
            f"{result.name} [{result.n},{result.k}] {result.kind} m={result.m}",
            name,
            Timing(taken, taken),
            work=nbytes / 1e9,
            unit="GB/s",
            nbytes=round(nbytes),
            flops=2.0 * result.m * result.n * result.k,
            figures=figures,
        )


def machine_of(session: Session, before: Results | None) -> dict[str, float]:
    """Copy bandwidth and bfloat16 matrix rate of this machine: those of the results there are, else measured now."""
    if before is not None and before.environment.get("device") == environment()["device"]:
        return dict(before.machine)
    clock, tiny = session.clock, session.interpret is not False
    return {
        "copy_bytes_per_second": gpu_timing.copy_bandwidth(clock, 1 << (16 if tiny else 29)),
        "matrix_flops": gpu_timing.matrix_rate(clock, 64 if tiny else 8192),
    }


def results_of(session: Session, outcome: Outcome, machine: dict[str, float]) -> Results:
    """A run as it is written to a file."""
    refusals = outcome.failed | dict.fromkeys(outcome.left, "not timed for want of time")
    described = {**environment(), "clock": session.clock.name, "interpreted": session.interpret is not False}
    records = tuple(record for result in outcome.results for record in records_of(result))
    return Results(described, machine, records, refusals=refusals)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default=",".join(WEIGHT_KINDS), help="weight kinds, comma separated")
    parser.add_argument("--tokens", help="numbers of tokens, comma separated")
    parser.add_argument("--all", action="store_true", help="every registered weight and number of tokens")
    parser.add_argument("--json", type=pathlib.Path, help="where to write the results")
    parser.add_argument("--append", action="store_true", help="to what the results file has already")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long, preparations included")
    parser.add_argument("--interpret", action="store_true", help="dry run on the CPU with tiny weights")
    options = parser.parse_args(arguments)
    session = open_session(options.interpret)
    kinds = options.kinds.split(",")
    cases = TINY_CASES if options.interpret else [c for c in WEIGHT_CASES if options.all or c.name in QUICK_NAMES]
    tokens = TINY_TOKENS if options.interpret else TOKENS if options.all else QUICK_TOKENS
    tokens = tuple(int(m) for m in options.tokens.split(",")) if options.tokens else tokens
    before = None
    if options.append and options.json is not None and options.json.exists():
        before = read_results(options.json)
    machine = machine_of(session, before)

    def report(outcome: Outcome) -> None:
        if options.json is not None:
            now = results_of(session, outcome, machine)
            write_results(options.json, now if before is None else merged(before, now))

    outcome = run(session, [c for c in cases if c.kind in kinds], tokens, machine, options.seconds, report, start)
    report(outcome)
    if outcome.left:
        print(f"not timed for want of time: {', '.join(outcome.left)}")
    if outcome.failed:
        raise SystemExit("failed, not timed:\n" + "\n".join(f"  {name}: {why}" for name, why in outcome.failed.items()))


if __name__ == "__main__":
    sys.exit(main())
