"""The Blackwell prefill kernel: interpreted with race detection against the float64 oracle, and compiled for a B200.

Cases have more K steps than the ring has stages. The interpreter fills what was never written with NaN, so an output
the kernel misses fails the criterion.
"""

import itertools

import jax
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import jax.numpy as jnp

from benchmarks import aot, sass
from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import B200
from pallas_kernels.mosaic_gpu import prefill_sm100
from pallas_kernels.mosaic_gpu._prefill_plan_sm100 import PLANNER, accumulators, fuses
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.planes import plane_bytes
from pallas_kernels.tiling import WEIGHT_KINDS, PrefillConfig
from tests.pallas_kernels.interpreted import check_choice, gated_case, races_without_fences, run, small, with_sms
from tests.pallas_kernels.weights import check_close, relative_l2

pytestmark = pytest.mark.timeout(180)
TWO_SMS, ONE_SM = with_sms(B200, 2), with_sms(B200, 1)

# kind, m, n, k, configuration: seams and tails of M, N and K, both steps, one and two unpackers, splits.
CASES = {
    "q4 all tails": ("q4", 33, 75, 200, PrefillConfig(32, 64, 2, consumers=1)),
    "q5 deep step": ("q5", 17, 136, 700, PrefillConfig(32, 128, 2)),
    "q6 seam of m": ("q6", 65, 130, 384, PrefillConfig(64, 64, 4)),
    "w8 all tails": ("w8", 33, 200, 448, PrefillConfig(32, 128, 2)),
    "fp8 ragged k": ("fp8", 70, 72, 250, PrefillConfig(64, 64, 2, consumers=1)),
    "nvfp4 half step": ("nvfp4", 50, 128, 448, PrefillConfig(32, 128, 2)),
    "q4 split k": ("q4", 40, 132, 640, PrefillConfig(32, 64, 2, split_k=3)),
}


@pytest.mark.parametrize("case", CASES)
def test_interpreted_kernel_matches_the_oracle(case, no_races):
    y, reference = run(prefill_sm100, *CASES[case], hardware=TWO_SMS)
    assert y.dtype == jnp.bfloat16
    check_close(y, reference)


def test_accumulators_and_ring_go_on_across_the_seams_between_tiles(no_races):
    # One block takes three tiles of three steps: two accumulators and two stages are used again.
    config = PrefillConfig(32, 64, 2, consumers=1)
    assert accumulators(config, False) == 2
    y, reference = run(prefill_sm100, "fp8", 70, 128, 192, config, hardware=ONE_SM, out_dtype=jnp.float32)
    # The weights are exact in bfloat16, so only the order of float32 additions is left.
    assert relative_l2(y, reference) <= 1e-6


def test_a_wide_tile_has_one_accumulator(no_races):
    config = PrefillConfig(256, 64, 2, consumers=1)
    assert accumulators(config, False) == 1
    y, reference = run(prefill_sm100, "nvfp4", 260, 128, 192, config, hardware=ONE_SM, out_dtype=jnp.float32)
    assert relative_l2(y, reference) <= 1e-6


@pytest.mark.parametrize(("kind", "n"), [("q4", 288), ("nvfp4", 384)])
def test_gated_product_with_bias_and_residual(kind, n, no_races):
    # Half of 384 rows is no whole number of NVFP4's scale tiles: such a product is finished by XLA.
    config = PrefillConfig(32, 64, 2)
    assert fuses(config, kind, n) == (kind == "q4")
    fused, reference = gated_case(33, n)
    y, product = run(prefill_sm100, kind, 33, n, 256, config, hardware=TWO_SMS, **fused)
    check_close(y, reference(product))


def test_a_missing_fence_is_reported_as_a_race(capfd, monkeypatch):
    # Without it the copy engine may overtake the unpackers' reads: what `no_races` is there to see.
    case = prefill_sm100, "q4", 32, 128, 256, PrefillConfig(32, 64, 2, consumers=1)
    assert "RACE DETECTED" in races_without_fences(monkeypatch, capfd, *case, hardware=ONE_SM)


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
@pytest.mark.parametrize("gated", [False, True])
def test_every_candidate_is_accepted_and_the_heuristic_is_the_cheapest(kind, gated):
    for m, (n, k) in itertools.product((17, 128, 4096), ((34816, 5120), (34944, 1536))):
        check_choice(PLANNER, Product(kind, m, n, k, B200, gated))


def test_few_rows_and_a_long_k_are_split():
    product = small("q4", k=8192, hardware=B200)
    assert {config.split_k for config in PLANNER.candidate_configs(product)} == {1, 2, 4, 8}
    assert PLANNER.heuristic_config(product).split_k > 1


@pytest.mark.parametrize(
    ("kind", "n", "gated", "config", "message"),
    [
        ("q4", 512, False, PrefillConfig(64, 64, 2, row_blocks=2), "row_blocks=2 is not allowed"),
        ("q4", 512, False, PrefillConfig(64, 64, 3), "stages=3 is not allowed with consumers=2"),
        ("q5", 512, False, PrefillConfig(64, 64, 2), "block_k=64 is not allowed for q5"),
        ("w8", 512, False, PrefillConfig(256, 64, 8), "shared memory"),
        ("q4", 512, True, PrefillConfig(256, 64, 2), "tensor memory"),
    ],
)
def test_configurations_a_weight_cannot_have_are_refused(kind, n, gated, config, message):
    with pytest.raises(KernelConfigError, match=message):
        PLANNER.check_config(config, small(kind, n=n, gated=gated, hardware=B200))


REASON = aot.unavailable_reason()
M, N, K = 1024, 4096, 5120


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [("nvfp4", {}), ("q5", {"activation": "silu", "bias": True, "n": 2 * N}), ("w8", {"out": "float32"})],
)
def test_compiles_for_a_b200_without_spills_and_reads_the_packed_planes_in_place(kind, arguments):
    arguments = {"kind": kind, "m": M, "n": N, "k": K} | arguments
    report = aot.compile_case(aot.kernel_case("prefill_sm100", "b200", **arguments))
    assert (report.kernels, report.spill_bytes, report.stack_bytes) == (1, 0, 0)
    assert report.registers <= 128  # four warpgroups of a block share 65536
    assert report.tma_loads > 0
    # The tensor core multiplies, unpacked weights are stored to tensor memory, sums are loaded from it.
    assert all(sass.count(report.sass[0], opcode) > 0 for opcode in ("UTCHMMA", "STTM", "LDTM"))
    assert report.temporaries(at_least=plane_bytes(kind, arguments["n"], K) // 64) == []
