"""The portable kernel: interpreted with race detection against the float64 oracle; its product, layouts and launches.

The interpreter knows no mma, so the kernel's product is a twin there. What the twin stands for is tested on its own:
the layouts of its operands put every element where the PTX manual wants the fragments of an m16n8k16 mma.
"""

import itertools

import jax
import numpy as np
import pytest

if jax.__version_info__ < (0, 12, 0):
    pytest.skip("the portable kernel needs jax >= 0.12", allow_module_level=True)

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

from benchmarks.cases import WEIGHT_CASES
from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import A100, RTX4090, RTX5090
from pallas_kernels.mosaic_gpu import _scales, explain, portable_mma, unsupported_reason
from pallas_kernels.mosaic_gpu._portable_plan import PLANNER, PortablePlan
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.tiling import WEIGHT_KINDS, PortableConfig
from tests.pallas_kernels import interpreted
from tests.pallas_kernels.interpreted import check_choice, gated_case, races_without_fences, small
from tests.pallas_kernels.thread_places import places
from tests.pallas_kernels.weights import check_close, relative_l2

pytestmark = pytest.mark.timeout(180)
Layout: type = plgpu.Layout

# kind, m, n, k, configuration: tails of M, N and K, more steps than stages, several token tiles and parts, split K.
CASES = {
    "q4 all tails": ("q4", 3, 75, 300, PortableConfig(8, 128, 2)),
    "q5 two token tiles": ("q5", 17, 64, 384, PortableConfig(16, 128, 2)),
    "q6 split k and two parts": ("q6", 40, 64, 384, PortableConfig(64, 64, 2, 2)),
    "w8 wide stages": ("w8", 9, 64, 768, PortableConfig(16, 256, 2)),
    "fp8 few rows, ragged k": ("fp8", 5, 20, 300, PortableConfig(8, 64, 3)),
    "nvfp4 halved stages": ("nvfp4", 2, 128, 192, PortableConfig(8, 256, 2)),
}


def run(kind, m, n, k, config, *, out_dtype=jnp.float32, **fused):
    """The kernel on an A100 and the plain product of the reference."""
    return interpreted.run(portable_mma, kind, m, n, k, config, hardware=A100, out_dtype=out_dtype, **fused)


@pytest.mark.parametrize("case", CASES)
def test_interpreted_kernel_matches_the_oracle(case, no_races):
    bias = np.random.default_rng(2).standard_normal(CASES[case][2]).astype(np.float32)
    y, product = run(*CASES[case], bias=jnp.asarray(bias))
    # Codes are exact in bfloat16 and group scales multiply float32 sums: only the order of additions is left.
    assert relative_l2(y, product + bias) <= 1e-6


def test_gated_product_with_bias_and_residual(no_races):
    fused, reference = gated_case(4, 64)
    y, product = run("w8", 4, 64, 256, PortableConfig(8, 128, 2), out_dtype=jnp.bfloat16, **fused)
    assert y.dtype == jnp.bfloat16
    check_close(y, reference(product))


def test_a_missing_fence_is_reported_as_a_race(capfd, monkeypatch):
    case = portable_mma, "q4", 1, 64, 384, PortableConfig(8, 128, 2)
    assert "RACE DETECTED" in races_without_fences(monkeypatch, capfd, *case, hardware=A100)


def fragment(shape, row, column, across):
    """`places` as the PTX manual has it: row and column of (warp, lane, register, element), registers tile by tile."""
    warp, lane, register, element = np.meshgrid(*map(np.arange, (4, 32, across, 2)), indexing="ij")
    at = row(warp, lane, register, element) * shape[1] + column(warp, lane, register, element)
    return at.reshape(128, across, 2)


def test_operand_layouts_are_the_fragments_of_an_mma():
    weights = fragment(
        (64, 64),
        lambda w, lane, r, e: 16 * w + lane // 4 + 8 * (r % 2),
        lambda w, lane, r, e: 16 * (r // 4) + 8 * (r // 2 % 2) + 2 * (lane % 4) + e,
        16,
    )
    np.testing.assert_array_equal(places(portable_mma.operand_layout(), (64, 64)), weights)
    # The unpacker writes the registers of this one, in their order.
    np.testing.assert_array_equal(places(Layout.WGMMA, (64, 64)), weights)
    x = fragment((16, 8), lambda w, lane, r, e: 8 * r + 2 * (lane % 4) + e, lambda w, lane, r, e: lane // 4, 2)
    np.testing.assert_array_equal(places(Layout.MMA_RHS(jnp.bfloat16), (16, 8)), x)
    total = fragment(
        (64, 8),
        lambda w, lane, r, e: 16 * w + lane // 4 + 8 * r,
        lambda w, lane, r, e: 2 * (lane % 4) + e,
        2,
    )
    np.testing.assert_array_equal(places(Layout.MMA_ACC(jnp.bfloat16), (64, 8)), total)


def test_scales_meet_the_totals_of_their_rows_and_results_leave_whole():
    rows = places(Layout.MMA_ACC(jnp.bfloat16), (64, 8))[:, :, 0] // 8
    np.testing.assert_array_equal(places(_scales.row_layout(), (64,))[:, :, 0], rows)
    leaving = places(portable_mma.result_layout(), (16, 64))
    np.testing.assert_array_equal(np.sort(leaving, axis=None), np.arange(16 * 64))
    assert (np.diff(leaving, axis=2) == 1).all()


def test_twin_adds_exact_products():
    rng = np.random.default_rng(4)
    total, weights, x = (rng.integers(-99, 99, shape) for shape in ((64, 8), (64, 32), (32, 8)))
    out = portable_mma.multiply_add(
        jnp.asarray(total, jnp.float32),
        jnp.asarray(weights, jnp.bfloat16),
        jnp.asarray(x, jnp.bfloat16),
        interpret=True,
    )
    np.testing.assert_array_equal(np.asarray(out), total + weights @ x)


@pytest.mark.parametrize("hardware", [A100, RTX4090, RTX5090], ids=lambda hardware: hardware.name)
def test_heuristic_is_the_cheapest_candidate_and_no_faster_than_the_roofline(hardware):
    cases = [case for case in WEIGHT_CASES if case.name in ("27b mlp gate_up", "vision fc2", "27b nvfp4 down")]
    for case, m in itertools.product(cases, (1, 16, 1024)):
        product = Product(case.kind, m, case.n, case.k, hardware)
        check_choice(PLANNER, product)
        found = explain(kind=case.kind, m=m, n=case.n, k=case.k, hardware=hardware)
        assert (found.kernel, found.config) == ("portable_mma", PLANNER.heuristic_config(product))
        assert PLANNER.predicted_seconds(PLANNER.heuristic_config(product), product) * 1e6 >= found.lower_bound_us


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_blocks_cover_every_column_and_row_once(kind):
    for k, config in itertools.product((192, 256, 1152, 4352), (PortableConfig(8, 256, 4, 3), PortableConfig(32, 128))):
        plan = PortablePlan(33, 130, k, kind, config)
        assert plan.columns >= k
        assert plan.steps * plan.split_k * plan.block_k == plan.columns
        assert plan.tiles * 64 >= 130
        assert plan.m_tiles * plan.block_m >= 33
        assert plan.split_k <= config.split_k
        assert kind != "q5" or plan.high_row_bytes % 16 == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PortableConfig(block_m=24), "block_m=24 is not allowed"),
        (lambda: PortableConfig(block_k=96), "block_k=96 is not allowed"),
        (lambda: PortableConfig(stages=1), "stages=1 is not allowed"),
        (lambda: PortableConfig(split_k=0), "split_k=0 is not allowed"),
        (
            lambda: PLANNER.check_config(PortableConfig(8, 64), small("q5")),
            "block_k=64 is not allowed for q5",
        ),
        (lambda: PLANNER.check_config(PortableConfig(128, 64), small("w8")), "would not fit in registers"),
        (lambda: PLANNER.check_config(PortableConfig(64, 128, 4), small("q4")), "stages=4 is not allowed"),
        (
            lambda: PLANNER.check_config(PortableConfig(16, 256, 8), small("fp8", k=4096, hardware=RTX4090)),
            "shared memory",
        ),
    ],
)
def test_configurations_are_refused_with_the_reason(make, message):
    with pytest.raises(KernelConfigError, match=message):
        make()


def test_jax_before_012_is_refused_with_the_reason(monkeypatch):
    problem = {"kind": "q4", "m": 1, "n": 64, "k": 64, "x_dtype": jnp.bfloat16, "out_dtype": jnp.bfloat16}
    assert unsupported_reason(**problem, hardware=RTX5090) is None
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 2))
    assert "is older than 0.12, the first that compiles for a" in str(unsupported_reason(**problem, hardware=RTX5090))
