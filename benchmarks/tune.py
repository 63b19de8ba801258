"""Measure launch configurations on a GPU and write the table `pallas_kernels.autotune` reads. Has not run on a GPU.

    python -m benchmarks.tune [--kinds q4] [--tokens 1,1024] [--candidates 8] [--output table.json]

For every registered weight and number of tokens: the candidates of the kernel that serves it, best predicted first,
each checked against exact rows and timed with the weight out of the cache; the fastest goes into the table, entries
measured before stay. The table is written after every problem, so that an interrupted run loses nothing. `--interpret`
runs the same path on a CPU with tiny weights; its table means nothing and needs `--output`. Leaves out comparing with
anything else (bench_matmul_gpu).
"""

import argparse
import dataclasses
import importlib
import pathlib
import sys
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import gpu_timing
from benchmarks.bench_matmul_gpu import TINY_CASES, TINY_TOKENS
from benchmarks.cases import TOKENS, WEIGHT_CASES, WeightCase
from benchmarks.gpu_checks import Session, activations, open_session
from benchmarks.packed_weights import decode_rows, random_planes
from benchmarks.peers import first_line
from pallas_kernels import H100, WEIGHT_KINDS, Hardware, WeightPlanes, autotune
from pallas_kernels.autotune import Measurement, Problem, TuningTable
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.planes import plane_bytes

_CHECKED_ROWS = 64


def kernel_module(name: str) -> Any:
    """The module of a tuned kernel."""
    if name not in autotune.CONFIG_TYPES:
        raise KeyError(name)
    return importlib.import_module(f"pallas_kernels.mosaic_gpu.{name}")


def problems(
    cases: Sequence[WeightCase], tokens: Sequence[int], hardware: Hardware = H100
) -> Iterator[tuple[WeightCase, Problem]]:
    """What to tune on a device: every weight and number of tokens; a gate_up weight also as a gated product."""
    from pallas_kernels.mosaic_gpu.dispatch import kernel_for

    for case in cases:
        for m in tokens:
            kernel = kernel_for(m, hardware)
            for gated in (False, True) if "gate_up" in case.name else (False,):
                yield case, Problem(kernel, case.kind, m, case.n, case.k, gated)


def candidates(problem: Problem, session: Session, limit: int) -> list[Any]:
    """The configurations to try, best predicted first."""
    fields = {name: getattr(problem, name) for name in ("kind", "m", "n", "k", "gated", "out_bytes")}
    product, planner = Product(**fields, hardware=session.hardware), kernel_module(problem.kernel).PLANNER
    found = planner.candidate_configs(product)
    return sorted(found, key=lambda config: planner.predicted_seconds(config, product))[:limit]


def call(problem: Problem, config: Any, session: Session) -> Any:
    """x, planes -> y of a problem with a configuration."""
    run = kernel_module(problem.kernel).run
    asked = Call(
        problem.kind, problem.n, problem.k, jnp.bfloat16, session.hardware,
        activation="silu" if problem.gated else None, interpret=session.interpret,
    )  # fmt: skip
    return lambda x, planes: run(x, WeightPlanes(*planes), config, asked)


def is_right(y: jax.Array, x: jax.Array, planes: WeightPlanes, problem: Problem) -> bool:
    """Whether some columns of y meet the criterion of kernels with bfloat16 activations."""
    columns = problem.n // 2 if problem.gated else problem.n
    rows = np.unique(np.linspace(0, columns - 1, min(columns, _CHECKED_ROWS)).astype(np.int64))
    product = lambda rows: np.asarray(x).astype(np.float64) @ decode_rows(planes, problem.kind, problem.k, rows).T
    reference = product(rows)
    if problem.gated:
        reference = reference / (1 + np.exp(-reference)) * product(rows + columns)
    difference = np.asarray(y).astype(np.float64)[:, rows] - reference
    return bool(np.linalg.norm(difference) <= np.linalg.norm(reference) / 256)


def tune(problem: Problem, planes: WeightPlanes, session: Session, limit: int) -> Measurement | None:
    """Try the candidates of a problem; None where none is right.

    Args:
      problem: what to tune.
      planes: its weight.
      session: clock, device, interpretation.
      limit: candidates to try.
    """
    x = activations(problem.m, problem.k)
    if problem.gated:
        x = x / 16  # keeps the gate where its exponential is finite in float64
    copies = session.copies(plane_bytes(problem.kind, problem.n, problem.k))
    pairs = gpu_timing.copies_of(x, tuple(planes), copies)
    best = None
    for config in candidates(problem, session, limit):
        program = gpu_timing.rotation(call(problem, config, session))
        gpu_timing.poison(2 * problem.m * problem.n * copies)
        try:
            if not is_right(program(pairs)[0], x, planes, problem):
                print(f"  WRONG, left out: {config}", flush=True)
                continue
            seconds = session.clock(program, (pairs,), copies)
        except Exception as error:  # one that does not compile, say, must not cost the others their turn
            print(f"  FAILED, left out: {config}: {first_line(error)}", flush=True)
            continue
        print(f"  {seconds * 1e6:9.1f} us  {config}", flush=True)
        if best is None or seconds * 1e6 < best.microseconds:
            best = Measurement(problem, config, seconds * 1e6)
    return best


def main(arguments: Sequence[str] | None = None) -> None:
    """Tune and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default=",".join(WEIGHT_KINDS), help="weight kinds, comma separated")
    parser.add_argument("--tokens", help="numbers of tokens, comma separated")
    parser.add_argument("--candidates", type=int, default=8, help="configurations to try for each problem")
    parser.add_argument("--output", type=pathlib.Path, help="the table; by default the package's, for this device")
    parser.add_argument("--interpret", action="store_true", help="dry run on the CPU with tiny weights")
    options = parser.parse_args(arguments)
    if options.interpret and options.output is None:
        raise SystemExit("--interpret measures nothing: give --output, so that it is not taken for a measured table")
    session = open_session(options.interpret)
    device = "interpreter" if options.interpret else session.hardware.name
    output = options.output or autotune.table_path(device)
    measured = dict(autotune.load_table(output).measurements) if output.exists() else {}
    tokens = TINY_TOKENS if options.interpret else TOKENS
    tokens = tuple(int(m) for m in options.tokens.split(",")) if options.tokens else tokens
    cases = [c for c in (TINY_CASES if options.interpret else WEIGHT_CASES) if c.kind in options.kinds.split(",")]
    planes: dict[WeightCase, WeightPlanes] = {}
    for case, problem in problems(cases, tokens, session.hardware):
        if case not in planes:
            planes = {case: random_planes(case.kind, case.n, case.k)}  # one at a time: they are large
        print(f"{case.name}: {problem}", flush=True)
        best = tune(problem, planes[case], session, options.candidates)
        if best is not None:
            measured[problem] = dataclasses.replace(best, microseconds=round(best.microseconds, 3))
            autotune.save_table(TuningTable(device, jax.__version__, MappingProxyType(measured)), output)
    print(f"{len(measured)} problems in {output}")


if __name__ == "__main__":
    sys.exit(main())
