"""The prefill kernel compiled for an H100 on a machine without one: what ptxas, the disassembler and XLA made of it."""

import pytest

from benchmarks import aot, sass_hazards
from pallas_kernels.planes import plane_bytes
from pallas_kernels.tiling import WEIGHT_KINDS

REASON = aot.unavailable_reason()
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.timeout(300)]

#: Instructions of the K loop a weight, tensor core instructions aside: what compiles today, and a little room.
PER_WEIGHT = {"q4": 5.0, "q5": 6.2, "q6": 6.8, "w8": 6.6, "fp8": 3.8, "nvfp4": 6.3}
M, N, K = 1024, 4096, 5120


def compiled(**arguments):
    case = aot.AotCase(arguments["kind"], "benchmarks.prefill_builder:prefill", {"m": M, "n": N, "k": K} | arguments)
    return aot.compile_case(case)


def check_clean(report):
    assert report.kernels == 1
    assert report.spill_bytes == 0
    assert report.stack_bytes == 0
    assert report.registers <= 168  # three warpgroups of a block share 65536
    assert report.hgmma > 0
    assert report.tma_loads > 0
    # ptxas waits after every wgmma where it cannot prove that its registers are left alone.
    assert all(loop.instructions["WARPGROUP"] < loop.hgmma for loop in report.loops)
    assert [line for program in report.sass for line in sass_hazards.hazards(program)] == []


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_compiles_without_spills_and_reads_the_packed_planes_in_place(kind):
    report = compiled(kind=kind)
    check_clean(report)
    assert report.per_weight <= PER_WEIGHT[kind]
    # Planes reach the kernel by bit casts alone, and nothing of the size of a plane, let alone the weight, is written.
    assert report.temporaries(at_least=plane_bytes(kind, N, K) // 64) == []


@pytest.mark.parametrize(("kind", "m", "out"), [("q6", 5000, "bfloat16"), ("nvfp4", M, "float32")])
def test_fused_variants_compile_without_spills(kind, m, out):
    # 5000 tokens: the last band of tiles is narrower than the others.
    check_clean(compiled(kind=kind, m=m, n=2 * N, out=out, activation="silu", bias=True, residual=True))
