"""The packed products of a GPU session: what they are, and whether they are right before any of them is timed.

A product's program calls it on several copies of its operands (gpu_timing). Rows spread over W are compared with
float64 products of exactly decoded weights, every element with the package's own `xla` implementation, and every copy's
result with the first one's, bit for bit: one that moves is a race. Leaves out times (bench_matmul_gpu). Source:
ops-and-criteria. Has not run on a GPU.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import gpu_timing
from benchmarks.cases import WeightCase
from benchmarks.packed_weights import decode_rows
from benchmarks.random_weights import FORMATS_OF_KINDS
from ninfer_jax import ops
from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.planes import GroupedPlanes, NVFP4Planes, RowScaledPlanes
from pallas_kernels import H100, Hardware, WeightPlanes, mosaic_gpu, visible_hardware
from pallas_kernels.planes import plane_bytes

_CHECKED_ROWS = 256
_LIMIT = 1 / 256


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

    def matmul(self, case: WeightCase) -> Callable:
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


@dataclasses.dataclass(frozen=True)
class Checked:
    """A product that was run and compared.

    Attributes:
      case, m: weight and tokens.
      copies: calls of a program.
      ours, packed: programs of the kernel and of the package's own `xla` implementation, from the same planes.
      relative_error: of the rows that were compared with exact ones.
      fault: what is wrong; empty where nothing is.
    """

    case: WeightCase
    m: int
    copies: int
    ours: Callable
    packed: Callable
    relative_error: float
    fault: str


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
    gpu_timing.launch_singly()
    hardware = visible_hardware()
    if hardware is None:
        raise SystemExit("no GPU: jax sees none; run this on one, or with --interpret for a dry run on the CPU")
    reason = mosaic_gpu.unsupported_reason(
        kind="q4", m=1, n=128, k=128, x_dtype=jnp.bfloat16, out_dtype=jnp.bfloat16, hardware=hardware
    )
    if reason is not None:
        raise SystemExit(f"no kernel for {hardware.name}: {reason}")
    return Session(gpu_timing.device_clock(), hardware, False)


def activations(m: int, k: int) -> jax.Array:
    """bfloat16 [m, k], fresh for every shape."""
    return jax.random.normal(jax.random.key(m * 1_000_003 + k), (m, k), jnp.bfloat16)


def check(session: Session, case: WeightCase, planes: WeightPlanes, m: int) -> Checked:
    """Run a product on all copies of its operands and compare."""
    copies = session.copies(plane_bytes(case.kind, case.n, case.k))
    x = activations(m, case.k)
    ours = gpu_timing.rotation(session.matmul(case))
    packed = gpu_timing.rotation(lambda x, p: ops.matmul(x, _packed_tensor(case, p), implementation="xla"))
    pairs = gpu_timing.copies_of(x, tuple(planes), copies)
    expected = packed(pairs)[0]
    gpu_timing.poison(2 * m * case.n * copies)
    first, *others = ours(pairs)
    error, reach = _against_exact_rows(first, x, planes, case)
    fault = ""
    if not error <= _LIMIT:  # also where it is NaN
        fault = f"relative error {error:.3g} is above 1/256"
    elif not _furthest(first, expected) <= 2 * reach:
        fault = "elements outside of the rows checked differ from the xla implementation's"
    elif not all(bool(jnp.array_equal(first, other)) for other in others):
        fault = "the same product of another copy is another: a race"
    return Checked(case, m, copies, ours, packed, error, fault)


def _packed_tensor(case: WeightCase, planes: tuple) -> QuantizedTensor:
    """The weight as the package's own type."""
    codes, high, scales, divisor = planes
    if case.kind == "nvfp4":
        own = NVFP4Planes(codes, scales, divisor)
    else:
        own = RowScaledPlanes(codes, scales) if case.kind == "fp8" else GroupedPlanes(codes, high, scales)
    return QuantizedTensor(own, FORMATS_OF_KINDS[case.kind], case.k)


def _against_exact_rows(y: jax.Array, x: jax.Array, planes: WeightPlanes, case: WeightCase) -> tuple[float, float]:
    """Relative L2 error over the first row of W, the last and some between, and how far an element may be off.

    The error is infinite where an element is off by more, or not finite.
    """
    rows = np.unique(np.linspace(0, case.n - 1, min(case.n, _CHECKED_ROWS)).astype(np.int64))
    reference = np.asarray(x).astype(np.float64) @ decode_rows(planes, case.kind, case.k, rows).T
    difference = np.abs(np.asarray(y[:, rows]).astype(np.float64) - reference)
    reach = _LIMIT + 2 * _LIMIT * float(np.abs(reference).max())
    if not difference.max() <= reach:
        return float("inf"), reach
    return float(np.linalg.norm(difference) / np.linalg.norm(reference)), reach


@jax.jit
def _distance(y: jax.Array, expected: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(y.astype(jnp.float32) - expected.astype(jnp.float32)))


def _furthest(y: jax.Array, expected: jax.Array) -> float:
    """max |y - expected|; NaN where either has one."""
    return float(_distance(y, expected))
