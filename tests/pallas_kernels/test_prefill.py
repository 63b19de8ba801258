"""The prefill kernel interpreted, with race detection, against the float64 oracle; its configurations and errors.

Every case has more K steps than the ring has stages. The interpreter fills what was never written with NaN, so an
output the kernel misses fails the criterion.
"""

import itertools

import jax
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import jax.numpy as jnp

from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import H100, visible_hardware
from pallas_kernels.mosaic_gpu import _prefill_plan, prefill_sm90
from pallas_kernels.mosaic_gpu._prefill_plan import PLANNER, PrefillPlan
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.tiling import WEIGHT_KINDS, PrefillConfig
from tests.pallas_kernels.interpreted import check_choice, needs_gpu, not_finite, run, small, with_sms
from tests.pallas_kernels.weights import check_close, relative_l2

pytestmark = pytest.mark.timeout(120)
TWO_SMS, ONE_SM = with_sms(H100, 2), with_sms(H100, 1)

# kind, m, n, k, configuration: seams and tails of M, N and K, both steps, one and two consumers and row blocks, splits.
CASES = {
    "q4 exact tiles": ("q4", 32, 128, 512, PrefillConfig(32, 64, 2)),
    "q4 all tails": ("q4", 33, 75, 200, PrefillConfig(32, 64, 2, consumers=1)),
    "q4 two row blocks": ("q4", 40, 300, 320, PrefillConfig(32, 128, 2, row_blocks=2)),
    "q4 three consumers": ("q4", 40, 400, 256, PrefillConfig(32, 64, 2, consumers=3)),
    "q4 wide tile": ("q4", 257, 64, 200, PrefillConfig(256, 64, 2, consumers=1)),
    "q5 all tails": ("q5", 17, 70, 700, PrefillConfig(32, 128, 3, consumers=1)),
    "q5 split k": ("q5", 40, 132, 640, PrefillConfig(32, 128, 2, consumers=1, split_k=3)),
    "q6 seam of m": ("q6", 65, 130, 384, PrefillConfig(64, 64, 3)),
    "q6 deep step": ("q6", 31, 64, 384, PrefillConfig(32, 128, 2, consumers=1)),
    "w8 all tails": ("w8", 33, 200, 448, PrefillConfig(32, 128, 2)),
    "w8 two row blocks": ("w8", 64, 129, 192, PrefillConfig(64, 64, 2, consumers=1, row_blocks=2)),
    "fp8 ragged k": ("fp8", 70, 72, 250, PrefillConfig(64, 64, 2, consumers=1)),
    "fp8 split k": ("fp8", 20, 130, 640, PrefillConfig(32, 128, 2, split_k=2)),
    "nvfp4 half step": ("nvfp4", 50, 128, 320, PrefillConfig(32, 64, 2)),
    "nvfp4 past the end": ("nvfp4", 40, 384, 512, PrefillConfig(32, 128, 2, row_blocks=2)),
}


@pytest.mark.parametrize("case", CASES)
def test_interpreted_kernel_matches_the_oracle(case, no_races):
    y, reference = run(prefill_sm90, *CASES[case], hardware=TWO_SMS)
    assert y.dtype == jnp.bfloat16
    check_close(y, reference)


@pytest.mark.parametrize("case", CASES)
def test_kernel_on_the_gpu_matches_the_oracle(case):
    hardware = needs_gpu((9, 0), visible_hardware())
    check_close(*run(prefill_sm90, *CASES[case], hardware=hardware, interpret=False))


@pytest.mark.parametrize(("kind", "limit"), [("fp8", 1e-6), ("nvfp4", 1e-6), ("q6", 1 / 400)])
def test_float32_result_keeps_what_the_weights_allow(kind, limit, no_races):
    # FP8 and NVFP4 weights are exact in bfloat16, so only the order of float32 additions is left; a grouped weight is
    # rounded to bfloat16 once, 2^-8 of it at most.
    y, reference = run(
        prefill_sm90, kind, 24, 128, 256, PrefillConfig(32, 128, 2), hardware=TWO_SMS, out_dtype=jnp.float32
    )
    assert y.dtype == jnp.float32
    assert relative_l2(y, reference) <= limit


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize(("kind", "k"), [("q4", 200), ("fp8", 250)])
def test_tokens_that_are_not_finite_keep_to_themselves(kind, k, no_races):
    # The second split has a K step past the end of the weight.
    not_finite(prefill_sm90, kind, 75, k, 33, PrefillConfig(32, 64, 2, consumers=1, split_k=3), ONE_SM)


def test_one_block_takes_all_tiles_in_turn(no_races):
    # The ring goes on across the seams between tiles: 6 tiles of 3 steps over 2 stages.
    y, reference = run(prefill_sm90, "q4", 70, 128, 192, PrefillConfig(32, 64, 2, consumers=1), hardware=ONE_SM)
    check_close(y, reference)


def test_bands_of_tokens_come_one_after_another(no_races, monkeypatch):
    monkeypatch.setattr(_prefill_plan, "_BAND_TOKENS", 64)  # bands of 2, 2 and 1 tiles
    y, reference = run(prefill_sm90, "q6", 150, 130, 128, PrefillConfig(32, 64, 2, consumers=1), hardware=TWO_SMS)
    check_close(y, reference)


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
@pytest.mark.parametrize("gated", [False, True])
def test_every_candidate_is_accepted_and_the_heuristic_is_the_cheapest(kind, gated):
    for m, (n, k) in itertools.product((17, 128, 4096), ((34816, 5120), (1152, 1536))):
        check_choice(PLANNER, Product(kind, m, n, k, H100, gated))


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_no_candidate_is_the_tile_whose_products_would_wait_for_each_other(kind):
    for m, gated, out_bytes in itertools.product((64, 1024), (False, True), (2, 4)):
        for config in PLANNER.candidate_configs(Product(kind, m, 12288, 5120, H100, gated, out_bytes)):
            two_parts = gated if config.split_k == 1 else False
            tile = config.consumers, config.block_m, config.block_k
            assert tile != (3, 64, 128) or not (two_parts or config.row_blocks == 2)


@pytest.mark.parametrize("m", [40, 2048, 4096, 5000])
@pytest.mark.parametrize("split_k", [1, 2])
def test_tiles_cover_the_result_once(m, split_k):
    plan = PrefillPlan(m, 700, 512, "q4", PrefillConfig(256, 64, 2, split_k=split_k), False, jnp.bfloat16)
    corners = [tuple(int(c) for c in plan.coordinates(tile)) for tile in range(plan.tiles)]
    expected = itertools.product(range(0, m, 256), range(0, 700, plan.rows), range(split_k))
    assert sorted(corners) == sorted(expected)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_m": 96}, "block_m=96 is not allowed: choose one of 32, 64, 128, 256"),
        ({"block_k": 32}, "block_k=32 is not allowed: choose one of 64, 128"),
        ({"stages": 1}, "stages=1 is not allowed"),
        ({"consumers": 4}, "consumers=4 is not allowed: choose one of 1, 2, 3"),
        ({"row_blocks": 0}, "row_blocks=0 is not allowed: choose one of 1, 2"),
        ({"split_k": 0}, "split_k=0 is not allowed: choose 1 or more"),
    ],
)
def test_configurations_say_what_is_wrong(fields, message):
    with pytest.raises(KernelConfigError, match=message):
        PrefillConfig(**fields)


@pytest.mark.parametrize(
    ("kind", "k", "gated", "config", "message"),
    [
        ("q4", 512, True, PrefillConfig(256, 64, 2), "block_m=256 is not allowed for a gated product"),
        ("q4", 512, False, PrefillConfig(256, 64, 2, row_blocks=2), "two row blocks"),
        ("q4", 512, False, PrefillConfig(128, 64, 2, consumers=3, row_blocks=2), "three consumers"),
        ("w8", 512, False, PrefillConfig(64, 128, 2, consumers=3, row_blocks=2), "each would wait for the one before"),
        ("fp8", 512, True, PrefillConfig(64, 128, 2, consumers=3), "block_m=64 with block_k=128 is not allowed"),
        ("q5", 512, False, PrefillConfig(64, 64, 2), "block_k=64 is not allowed for q5"),
        ("nvfp4", 320, False, PrefillConfig(64, 128, 2), "block_k=128 does not divide the 320 columns"),
        ("w8", 512, False, PrefillConfig(256, 128, 4), "shared memory"),
    ],
)
def test_configurations_a_weight_cannot_have_are_refused(kind, k, gated, config, message):
    with pytest.raises(KernelConfigError, match=message):
        PLANNER.check_config(config, small(kind, k=k, gated=gated))
