"""Packed matmuls on a GPU: correctness of every case first, then time. Has not run on a GPU.

    python -m benchmarks.bench_matmul_gpu [--kinds q4,w8] [--tokens 1,16,1024] [--all] [--json results.json]

For every weight and number of tokens: microseconds, bytes per second, fraction of the copy bandwidth and of the
bfloat16 matrix rate measured in the same run, and how many times as long XLA's bfloat16 `x @ w.T` and the package's own
`xla` implementation take. `--interpret` runs the same path on a CPU with tiny weights and the interpreter; its times
mean nothing. Exit status 1 where there is no GPU or a case is wrong. Leaves out tuning (benchmarks.tune) and the CPU
(bench_matmul). Source: ops-and-criteria.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import gpu_timing
from benchmarks.cases import TOKENS, WEIGHT_CASES, WeightCase
from benchmarks.harness import Timing, environment
from benchmarks.packed_weights import decode_rows, random_planes
from benchmarks.random_weights import FORMATS_OF_KINDS
from benchmarks.records import OURS, Record, Results, timed_record, write_results
from ninfer_jax import ops
from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.planes import GroupedPlanes, NVFP4Planes, RowScaledPlanes
from pallas_kernels import H100, WEIGHT_KINDS, Hardware, WeightPlanes, mosaic_gpu, visible_hardware
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
QUICK_TOKENS = (1, 16, 64, 1024)
TINY_CASES = tuple(WeightCase(f"tiny {kind}", kind, 128, 256) for kind in WEIGHT_KINDS)
TINY_TOKENS = (1, 17)
_CHECKED_ROWS = 256


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


@dataclasses.dataclass(frozen=True)
class Session:
    """What all cases of a run share.

    Attributes:
      clock: how to time.
      hardware: the device.
      interpret: what kernels are interpreted with, or False.
    """

    clock: gpu_timing.Clock
    hardware: Hardware
    interpret: Any

    def copies(self, nbytes: int) -> int:
        """Copies of a weight of that many bytes to rotate; the interpreter runs one kernel at a time."""
        return gpu_timing.copies_to_rotate(nbytes, self.hardware) if self.interpret is False else 1

    def matmul(self, case: WeightCase):
        """x, planes -> y for a weight."""
        return lambda x, planes: mosaic_gpu.matmul(
            x,
            WeightPlanes(*planes),
            kind=case.kind,
            n=case.n,
            k=case.k,
            hardware=self.hardware,
            interpret=self.interpret,
        )


def activations(m: int, k: int) -> jax.Array:
    """bfloat16 [m, k], fresh for every shape."""
    return jax.random.normal(jax.random.key(m * 1_000_003 + k), (m, k), jnp.bfloat16)


def error_of(session: Session, case: WeightCase, planes: WeightPlanes, m: int) -> float:
    """Relative L2 error of the rows of W that are checked: the first, the last and some between.

    Infinite where y breaks the criterion of kernels with bfloat16 activations in any other way.
    """
    rows = np.unique(np.linspace(0, case.n - 1, min(case.n, _CHECKED_ROWS)).astype(np.int64))
    x = activations(m, case.k)
    gpu_timing.poison(2 * m * case.n)
    y = np.asarray(jax.jit(session.matmul(case))(x, tuple(planes))).astype(np.float64)[:, rows]
    reference = np.asarray(x).astype(np.float64) @ decode_rows(planes, case.kind, case.k, rows).T
    difference = np.abs(y - reference)
    if not difference.max() <= 1 / 256 + 2 / 256 * np.abs(reference).max():  # also where it is NaN
        return float("inf")
    return float(np.linalg.norm(difference) / np.linalg.norm(reference))


def packed_tensor(case: WeightCase, planes: WeightPlanes) -> QuantizedTensor:
    """The weight as the package's own type."""
    if case.kind == "nvfp4":
        own = NVFP4Planes(planes.codes, planes.scales, np.asarray(planes.divisor))  # type: ignore[arg-type]
    elif case.kind == "fp8":
        own = RowScaledPlanes(planes.codes, planes.scales)  # type: ignore[arg-type]
    else:
        own = GroupedPlanes(planes.codes, planes.high, planes.scales)  # type: ignore[arg-type]
    return QuantizedTensor(own, FORMATS_OF_KINDS[case.kind], case.k)


def time_case(
    session: Session, case: WeightCase, planes: WeightPlanes, m: int, machine: dict[str, float], error: float
):
    """The `Result` of a case."""
    x = activations(m, case.k)
    nbytes = plane_bytes(case.kind, case.n, case.k)
    seconds = gpu_timing.seconds_of(session.clock, session.matmul(case), x, tuple(planes), session.copies(nbytes))
    dense = jax.random.normal(jax.random.key(0), (case.n, case.k), jnp.bfloat16)
    xla = gpu_timing.seconds_of(session.clock, lambda x, w: x @ w.T, x, dense, session.copies(dense.nbytes))
    packed = gpu_timing.seconds_of(
        session.clock,
        lambda x, w: ops.matmul(x, w, implementation="xla"),
        x,
        packed_tensor(case, planes),
        session.copies(nbytes),
    )
    traffic = nbytes + 2 * m * (case.k + case.n)
    return Result(
        name=case.name,
        kind=case.kind,
        n=case.n,
        k=case.k,
        m=m,
        relative_error=error,
        microseconds=seconds * 1e6,
        bytes_per_second=traffic / seconds,
        copy_fraction=traffic / seconds / machine["copy_bytes_per_second"],
        matrix_fraction=2.0 * m * case.n * case.k / seconds / machine["bf16_flops"],
        xla_bf16_ratio=xla / seconds,
        xla_packed_ratio=packed / seconds,
    )


def run(
    session: Session, cases: Sequence[WeightCase], tokens: Sequence[int], machine: dict[str, float], seconds: float
):
    """Check every case, then time as many as there is time for.

    Args:
      session: what the cases share.
      cases: weights.
      tokens: numbers of tokens.
      machine: what the machine itself does.
      seconds: how long to go on timing.

    Returns:
      The results, and the cases that were not timed.

    Raises:
      SystemExit: a case is wrong; the message names all that are.
    """
    start = time.monotonic()
    weights = {case: random_planes(case.kind, case.n, case.k) for case in cases}
    errors = {(case, m): error_of(session, case, weights[case], m) for case in cases for m in tokens}
    wrong = [f"{case.name} m={m} ({error:.3g})" for (case, m), error in errors.items() if error > 1 / 256]
    if wrong:
        raise SystemExit(f"relative error above 1/256, nothing was timed: {', '.join(wrong)}")
    print(f"{len(errors)} cases right, largest relative error {max(errors.values()):.2e}", flush=True)
    results, left = [], []
    for (case, m), error in errors.items():
        if time.monotonic() - start > seconds:
            left.append(f"{case.name} m={m}")
            continue
        results.append(time_case(session, case, weights[case], m, machine, error))
        print(line(results[-1]), flush=True)
    return results, left


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


def measure_machine(clock: gpu_timing.Clock, tiny: bool) -> dict[str, float]:
    """Copy bandwidth and bfloat16 matrix rate of this machine, now."""
    return {
        "copy_bytes_per_second": gpu_timing.copy_bandwidth(clock, 1 << (16 if tiny else 29)),
        "bf16_flops": gpu_timing.matrix_rate(clock, 64 if tiny else 8192),
    }


def open_session(interpret: bool) -> Session:
    """The session of a dry run, or of the GPU there is.

    Raises:
      SystemExit: there is no GPU the kernels run on; the message says why.
    """
    if interpret:
        import jax.experimental.pallas.mosaic_gpu as plgpu

        # The interpreter runs the warpgroups of all blocks as threads that wait for each other, in the CPU client's
        # pool, which has one a core unless told otherwise before it is made.
        os.environ.setdefault("NPROC", "16")
        two = dataclasses.replace(H100, sms=2)
        return Session(gpu_timing.WallClock(), two, plgpu.InterpretGPUParams())  # type: ignore[attr-defined]
    hardware = visible_hardware()
    if hardware is None:
        raise SystemExit("no GPU: jax sees none; run this on one, or with --interpret for a dry run on the CPU")
    reason = mosaic_gpu.unsupported_reason(
        kind="q4", m=1, n=128, k=128, x_dtype=jnp.bfloat16, out_dtype=jnp.bfloat16, hardware=hardware
    )
    if reason is not None:
        raise SystemExit(f"no kernel for {hardware.name}: {reason}")
    return Session(gpu_timing.CuptiClock(), hardware, False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default=",".join(WEIGHT_KINDS), help="weight kinds, comma separated")
    parser.add_argument("--tokens", help="numbers of tokens, comma separated")
    parser.add_argument("--all", action="store_true", help="every registered weight and number of tokens")
    parser.add_argument("--json", type=pathlib.Path, help="where to write the results")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop timing after so long")
    parser.add_argument("--interpret", action="store_true", help="dry run on the CPU with tiny weights")
    options = parser.parse_args(arguments)
    session = open_session(options.interpret)
    kinds = options.kinds.split(",")
    cases = TINY_CASES if options.interpret else [c for c in WEIGHT_CASES if options.all or c.name in QUICK_NAMES]
    tokens = TINY_TOKENS if options.interpret else TOKENS if options.all else QUICK_TOKENS
    tokens = tuple(int(m) for m in options.tokens.split(",")) if options.tokens else tokens
    machine = measure_machine(session.clock, options.interpret)
    selected = [case for case in cases if case.kind in kinds]
    results, left = run(session, selected, tokens, machine, options.seconds)
    if left:
        print(f"not timed for want of time: {', '.join(left)}")
    if options.json is not None:
        rates = {"copy_bytes_per_second": machine["copy_bytes_per_second"], "matrix_flops": machine["bf16_flops"]}
        records = tuple(record for result in results for record in records_of(result))
        refusals = dict.fromkeys(left, "not timed for want of time")
        described = {**environment(), "interpreted": options.interpret}
        write_results(options.json, Results(described, rates, records, refusals=refusals))


if __name__ == "__main__":
    sys.exit(main())
