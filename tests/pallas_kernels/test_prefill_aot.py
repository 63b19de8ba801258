"""The prefill kernel compiled for an H100 on a machine without one: what ptxas, the disassembler and XLA made of it."""

import pytest

from benchmarks import aot, sass_hazards
from pallas_kernels.hardware import H100
from pallas_kernels.mosaic_gpu._prefill_plan import PLANNER
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.planes import plane_bytes
from pallas_kernels.tiling import WEIGHT_KINDS, PrefillConfig

REASON = aot.unavailable_reason()
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.timeout(300)]

#: Instructions that unpack a weight at most, and all of the K loop a weight: what compiles today and a little room.
UNPACK = {"q4": 2.0, "q5": 4.0, "q6": 4.5, "w8": 3.5, "fp8": 3.5, "nvfp4": 4.0}
PER_WEIGHT = {"q4": 2.6, "q5": 5.6, "q6": 5.2, "w8": 5.1, "fp8": 3.8, "nvfp4": 3.9}
M, N, K = 1024, 4096, 5120


def compiled(**arguments):
    return aot.compile_case(aot.kernel_case("prefill_sm90", **{"m": M, "n": N, "k": K} | arguments))


def check_clean(report, **problem):
    """What holds of every launch; the problem says which configuration it has, where none was given."""
    config = problem.get("config") or PLANNER.heuristic_config(Product(**problem, hardware=H100))
    assert report.kernels == 1
    assert report.spill_bytes == 0
    assert report.stack_bytes == 0
    assert report.registers <= 168  # three warpgroups of a block share 65536
    assert report.hgmma > 0
    assert report.tma_loads > 0
    # ptxas waits after every wgmma where it cannot prove that its registers are left alone.
    assert all(loop.instructions["WARPGROUP"] < loop.hgmma for loop in report.loops)
    [program] = report.sass
    assert sass_hazards.hazards(program) == []
    assert sass_hazards.unfenced(program) == []
    assert ("USETMAXREG" in program) == (config.consumers > 1)
    assert sass_hazards.overdrawn(program, report.registers, config.consumers + 1) == 0


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_compiles_without_spills_and_reads_the_packed_planes_in_place(kind):
    report = compiled(kind=kind)
    check_clean(report, kind=kind, m=M, n=N, k=K)
    assert report.unpack_per_weight <= UNPACK[kind]
    assert report.per_weight <= PER_WEIGHT[kind]
    # Planes reach the kernel by bit casts alone, and nothing of the size of a plane, let alone the weight, is written
    # but x in the unpacker's order.
    written = [array["bytes"] for array in report.temporaries(at_least=plane_bytes(kind, N, K) // 64)]
    assert written == [M * K * 2]


def test_a_float32_result_of_q4_takes_an_instruction_more_for_one_rounding_less():
    report = compiled(kind="q4", out="float32")
    check_clean(report, kind="q4", m=M, n=N, k=K, out_bytes=4)
    assert UNPACK["q4"] < report.unpack_per_weight <= UNPACK["q4"] + 1


@pytest.mark.parametrize(("kind", "m", "out"), [("q6", 5000, "bfloat16"), ("nvfp4", M, "float32")])
def test_fused_variants_compile_without_spills(kind, m, out):
    # 5000 tokens: the last band of tiles is narrower than the others.
    report = compiled(kind=kind, m=m, n=2 * N, out=out, activation="silu", bias=True, residual=True)
    check_clean(report, kind=kind, m=m, n=2 * N, k=K, gated=True, out_bytes=4 if out == "float32" else 2)


def test_the_tile_next_to_the_one_left_out_runs_its_products_together():
    # The plan refuses block_k=128 here, whose wgmma ptxas serializes.
    config = PrefillConfig(64, 64, 4, consumers=3, row_blocks=2)
    check_clean(compiled(kind="q4", config=vars(config)), config=config)
