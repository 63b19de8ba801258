"""bench_matmul_gpu's quick cases as records, each checked before any is timed.

Part of `python -m benchmarks matmul-gpu`; kinds, tokens and a time limit are options of
`python -m benchmarks.bench_matmul_gpu`. Has not run on a GPU.
"""

from collections.abc import Iterator

from benchmarks import bench_matmul_gpu as bench
from benchmarks.cases import TOKENS, WEIGHT_CASES
from benchmarks.gpu_checks import open_session
from benchmarks.records import Record
from benchmarks.suite import Settings


def run(settings: Settings) -> Iterator[Record]:
    """Three records a case: the kernel, XLA's bfloat16 product, and XLA's from the packed weight."""
    session = open_session(interpret=False)
    cases = [case for case in WEIGHT_CASES if not settings.quick or case.name in bench.QUICK_NAMES]
    tokens = bench.QUICK_TOKENS if settings.quick else TOKENS
    machine = bench.machine_of(session, None)
    outcome = bench.run(session, cases, tokens, machine, float("inf"), report=lambda outcome: None)
    settings.refusals.update(outcome.failed)
    for result in outcome.results:
        yield from bench.records_of(result)
