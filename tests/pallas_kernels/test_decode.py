"""The Hopper decode kernel interpreted, with race detection, against the float64 oracle; its plans, choices and errors.

Each case has more stages a warpgroup than its ring holds. The interpreter fills what was never written with NaN, so a
sum the kernel misses fails the comparison.
"""

import itertools

import jax
import numpy as np
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import jax.numpy as jnp

from benchmarks.cases import WEIGHT_CASES
from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import H100, visible_hardware
from pallas_kernels.mosaic_gpu import _products, _unpack, decode_sm90
from pallas_kernels.mosaic_gpu._decode_plan import PLANNER, DecodePlan
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.tiling import WEIGHT_KINDS, StreamConfig
from tests.pallas_kernels import interpreted
from tests.pallas_kernels.interpreted import INTERPRET, gated_case, needs_gpu, races_without_fences, small, with_sms
from tests.pallas_kernels.weights import check_close, relative_l2

pytestmark = pytest.mark.timeout(180)

# kind, m, n, k, multiprocessors, configuration: tails of M, N and K, tiles shared by blocks, blocks with several tiles,
# warpgroups without a stage, both column sizes, one and two row blocks.
CASES = {
    "q4 tile shared by blocks": ("q4", 1, 64, 1024, 3, StreamConfig(64, 128, 2, 1, 1)),
    "q4 all tails": ("q4", 3, 75, 1100, 1, StreamConfig(64, 128, 2, 2, 2)),
    "q4 sixteen tokens": ("q4", 16, 128, 512, 1, StreamConfig(128, 256, 1, 1, 1)),
    "q5 several tiles a block": ("q5", 8, 200, 384, 1, StreamConfig(64, 128, 2, 1, 1)),
    "q5 wide rows": ("q5", 9, 130, 512, 1, StreamConfig(64, 512, 1, 1, 1)),
    "q6 uneven blocks": ("q6", 5, 136, 640, 1, StreamConfig(64, 128, 1, 2, 2)),
    "q6 fewer rows than a tile": ("q6", 2, 33, 640, 1, StreamConfig(64, 128, 2, 2, 1)),
    "w8 all tails": ("w8", 11, 100, 700, 1, StreamConfig(64, 128, 3, 1, 1)),
    "fp8 ragged k": ("fp8", 4, 70, 300, 1, StreamConfig(64, 64, 2, 2, 1)),
    "fp8 short k": ("fp8", 1, 72, 48, 1, StreamConfig(64, 64, 1, 1, 1)),
    "nvfp4 both halves of a scale tile": ("nvfp4", 2, 256, 320, 1, StreamConfig(64, 64, 2, 2, 1)),
    "nvfp4 two row blocks": ("nvfp4", 16, 256, 256, 1, StreamConfig(128, 128, 1, 1, 1)),
}


def run(kind, m, n, k, sms, config, *, out_dtype=jnp.float32, interpret=INTERPRET, **fused):
    """The kernel on a Hopper of that many multiprocessors, and the reference without what is fused."""
    case = decode_sm90, kind, m, n, k, config
    return interpreted.run(*case, hardware=with_sms(H100, sms), out_dtype=out_dtype, interpret=interpret, **fused)


@pytest.mark.parametrize("case", CASES)
def test_interpreted_kernel_matches_the_oracle(case, no_races):
    y, reference = run(*CASES[case])
    # Codes are exact in bfloat16 and scales multiply float32 sums: only the order of additions is left.
    assert relative_l2(y, reference) <= 1e-6


@pytest.mark.parametrize("case", CASES)
def test_kernel_on_the_gpu_matches_the_oracle(case):
    needs_gpu((9, 0), visible_hardware())
    y, reference = run(*CASES[case], interpret=False)
    assert relative_l2(y, reference) <= 1e-5


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_tokens_around_the_seam_on_the_gpu(kind):
    hardware = needs_gpu((9, 0), visible_hardware())
    for m in (8, 9):
        config = PLANNER.heuristic_config(Product(kind, m, 1280, 2560, hardware))
        y, reference = run(kind, m, 1280, 2560, hardware.sms, config, interpret=False)
        assert relative_l2(y, reference) <= 1e-5


@pytest.mark.parametrize(("kind", "k"), [("q4", 200), ("fp8", 300)])
def test_tokens_that_are_not_finite_keep_to_themselves(kind, k, no_races):
    # M, N and K have tails: zeros the kernel adds must meet zeros, not an infinity.
    interpreted.not_finite(decode_sm90, kind, 75, k, 5, StreamConfig(64, 64, 2, 2, 1), with_sms(H100, 1))


def test_bfloat16_result_keeps_to_the_criterion(no_races):
    y, reference = run("w8", 1, 64, 256, 1, StreamConfig(64, 128, 1, 1, 1), out_dtype=jnp.bfloat16)
    assert y.dtype == jnp.bfloat16
    check_close(y, reference)


def test_gated_product_with_bias_and_residual(no_races):
    fused, reference = gated_case(4, 136)
    y, product = run("q4", 4, 136, 256, 1, StreamConfig(64, 128, 2, 1, 1), **fused)
    assert relative_l2(y, reference(product)) <= 1e-5


@pytest.mark.parametrize("case", CASES)
def test_cases_reuse_their_rings_or_say_why_not(case):
    kind, m, n, k, sms, config = CASES[case]
    plan = DecodePlan(m, n, k, kind, config, sms)
    if case != "fp8 short k":
        assert plan.stages_in_all > plan.blocks * plan.slots


def test_a_missing_fence_is_reported_as_a_race(capfd, monkeypatch):
    case = decode_sm90, "q4", 1, 64, 1024, StreamConfig(64, 128, 1, 1, 1)
    assert "RACE DETECTED" in races_without_fences(monkeypatch, capfd, *case, hardware=with_sms(H100, 1))


def _swap_nibbles(monkeypatch):
    order = _unpack.order_columns
    monkeypatch.setattr(_unpack, "order_columns", lambda kind, x: order(kind, x)[:, np.arange(x.shape[1]) ^ 1])


def _forget_a_scale(monkeypatch):
    monkeypatch.setattr(_products, "_scaled", lambda product, scale: product)


def _lose_a_segment(monkeypatch):
    segments = DecodePlan.segments

    def all_but_the_last(plan):
        indices, present = segments(plan)
        present[-1, np.flatnonzero(present[-1])[-1]] = False
        return indices, present

    monkeypatch.setattr(DecodePlan, "segments", all_but_the_last)


@pytest.mark.parametrize("mutate", [_swap_nibbles, _forget_a_scale, _lose_a_segment])
def test_the_oracle_notices_mutations(mutate, monkeypatch):
    mutate(monkeypatch)
    y, reference = run("q4", 1, 64, 512, 2, StreamConfig(64, 128, 2, 1, 1))
    assert relative_l2(y, reference) > 1e-2


def test_segments_cover_each_stage_of_each_tile_once():
    for n, k, config, sms in itertools.product(
        (64, 700, 5000), (640, 5120), (StreamConfig(), StreamConfig(128, 128, 4, 1, 1)), (1, 7, 132)
    ):
        plan = DecodePlan(1, n, k, "q4", config, sms)
        written = {}
        for block in range(plan.blocks):
            first = block * plan.stages_in_all // plan.blocks
            last = (block + 1) * plan.stages_in_all // plan.blocks
            for stage in range(first, last):
                written.setdefault(stage // plan.k_stages + block, set()).add(stage)
        indices, present = plan.segments()
        assert indices.max() < plan.tiles + plan.blocks - 1
        for tile in range(plan.tiles):
            stages = [s for index in indices[tile][present[tile]] for s in written[index]]
            assert sorted(stages) == list(range(tile * plan.k_stages, (tile + 1) * plan.k_stages))


@pytest.mark.parametrize("case", WEIGHT_CASES, ids=lambda case: case.name)
def test_registered_weights_get_a_configuration_that_fits(case):
    for m in (1, 16):
        product = Product(case.kind, m, case.n, case.k, H100)
        config = PLANNER.heuristic_config(product)
        PLANNER.check_config(config, product)
        plan = DecodePlan(m, case.n, case.k, case.kind, config)
        assert plan.block_k == config.block_k
        assert 1 <= config.blocks_per_sm <= plan.blocks_per_sm(H100)
        assert config in PLANNER.candidate_configs(product)
        assert PLANNER.predicted_seconds(config, product) > 0


def test_large_weights_are_predicted_to_stream_at_full_bandwidth():
    def seconds(m):
        product = Product("q4", m, 131072, 5120, H100)
        return PLANNER.predicted_seconds(PLANNER.heuristic_config(product), product)

    floor = H100.memory_seconds(131072 * 5120 * 4.25 / 8)
    assert floor <= seconds(1) <= floor / 0.9
    assert seconds(16) <= 1.15 * seconds(1)


def test_configuration_that_does_not_fit_is_refused_with_what_to_do():
    with pytest.raises(KernelConfigError, match=r"shared memory .* needs \d+, and at most \d+ fits: use smaller tiles"):
        PLANNER.check_config(StreamConfig(128, 512, 4, 8, 1), small("w8", m=16, k=5120))
    with pytest.raises(KernelConfigError, match="fewer warpgroups or rows"):
        PLANNER.check_config(StreamConfig(128, 128, 4, 1, 1), small("q4", m=1, k=5120))


@pytest.mark.parametrize(
    "fields", [{"rows": 32}, {"block_k": 96}, {"warpgroups": 5}, {"stages": 0}, {"blocks_per_sm": 3}]
)
def test_configurations_are_checked_where_they_are_made(fields):
    [(name, value)] = fields.items()
    with pytest.raises(KernelConfigError, match=f"{name}={value} is not allowed: choose"):
        StreamConfig(**fields)
