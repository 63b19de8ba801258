"""The Blackwell decode kernel: interpreted with race detection against the float64 oracle, and compiled for a B200."""

import itertools

import jax
import numpy as np
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import jax.numpy as jnp

from benchmarks import aot, sass
from pallas_kernels import mosaic_gpu
from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import B200
from pallas_kernels.mosaic_gpu import decode_sm100
from pallas_kernels.mosaic_gpu._decode_plan_sm100 import PLANNER
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.planes import WeightPlanes, plane_shapes
from pallas_kernels.tiling import WEIGHT_KINDS, DecodeConfig
from tests.pallas_kernels.interpreted import INTERPRET, check_choice, gated_case, races_without_fences, run, small
from tests.pallas_kernels.weights import check_close, random_weight, random_x, relative_l2

pytestmark = pytest.mark.timeout(180)

# kind, m, n, k, configuration: tails of N and K, more turns than stages, idle warpgroups.
CASES = {
    "q4 tails": ("q4", 1, 75, 1100, DecodeConfig(128, 128, 2, 2, 1)),
    "q5 three warpgroups": ("q5", 16, 128, 1280, DecodeConfig(128, 128, 3, 1, 1)),
    "q6 split k": ("q6", 5, 200, 1024, DecodeConfig(128, 64, 2, 2, 3)),
    "w8 four warpgroups": ("w8", 9, 136, 640, DecodeConfig(128, 64, 4, 2, 1)),
    "fp8 ragged k": ("fp8", 3, 72, 700, DecodeConfig(128, 64, 2, 2, 2)),
    "nvfp4 half step": ("nvfp4", 2, 256, 704, DecodeConfig(128, 128, 2, 2, 1)),
    "q4 more warpgroups than steps": ("q4", 8, 64, 128, DecodeConfig(128, 128, 2, 2, 1)),
}


@pytest.mark.parametrize("case", CASES)
def test_interpreted_kernel_matches_the_oracle(case, no_races):
    y, reference = run(decode_sm100, *CASES[case], hardware=B200, out_dtype=jnp.float32)
    # Codes are exact in bfloat16 and group scales multiply float32 sums: only the order of additions is left.
    assert relative_l2(y, reference) <= 1e-6


def test_gated_product_with_bias_and_residual(no_races):
    fused, reference = gated_case(4, 288)
    y, product = run(decode_sm100, "w8", 4, 288, 256, DecodeConfig(128, 128, 2, 1), hardware=B200, **fused)
    assert y.dtype == jnp.bfloat16
    check_close(y, reference(product))


@pytest.mark.parametrize("m", [3, 20])
def test_a_b200_gets_these_kernels_from_the_public_call(m, no_races):
    planes, weight = random_weight("q4", 128, 256)
    x = random_x(m, 256)
    kernel = mosaic_gpu.explain(kind="q4", m=m, n=128, k=256, hardware=B200).kernel
    assert kernel == ("decode_sm100" if m <= 16 else "prefill_sm100")
    y = mosaic_gpu.matmul(jnp.asarray(x), planes, kind="q4", n=128, k=256, hardware=B200, interpret=INTERPRET)
    check_close(np.asarray(y), x.astype(np.float64) @ weight.T)


def test_a_missing_fence_is_reported_as_a_race(capfd, monkeypatch):
    case = decode_sm100, "q4", 1, 128, 512, DecodeConfig(128, 64, 2, 1)
    assert "RACE DETECTED" in races_without_fences(monkeypatch, capfd, *case, hardware=B200)


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_every_candidate_is_accepted_and_the_heuristic_is_the_cheapest(kind):
    for m, (n, k) in itertools.product((1, 16), ((34816, 5120), (1152, 1536), (2048, 512))):
        check_choice(PLANNER, Product(kind, m, n, k, B200))


@pytest.mark.parametrize(
    ("kind", "k", "config", "message"),
    [
        ("q4", 512, DecodeConfig(64, 128, 2, 2), "rows=64 is not allowed"),
        ("q5", 512, DecodeConfig(128, 64, 2, 2), "block_k=64 is not allowed"),
        ("q4", 640, DecodeConfig(128, 256, 2, 2), "block_k=256 is not allowed for the 640 columns"),
        ("w8", 512, DecodeConfig(128, 256, 4, 2), "tensor memory"),
        ("w8", 512, DecodeConfig(128, 128, 4, 8), "shared memory"),
    ],
)
def test_configurations_a_weight_cannot_have_are_refused(kind, k, config, message):
    with pytest.raises(KernelConfigError, match=message):
        PLANNER.check_config(config, small(kind, k=k, hardware=B200))


def test_a_weight_may_have_any_number_of_row_tiles(monkeypatch):
    # Only the last axis of a grid may have more than 65535 blocks.
    n, grids = 65536 * 128, []

    def kernel(body, *, out_type, grid, **named):
        grids.append(grid)
        return lambda operands: jnp.zeros(out_type.shape, out_type.dtype)

    monkeypatch.setattr(decode_sm100.plgpu, "kernel", kernel)
    call = Call("q4", n, 64, jnp.bfloat16, B200)
    planes = WeightPlanes(*plane_shapes("q4", n, 64))
    run_it = lambda x, planes: decode_sm100.run(x, WeightPlanes(*planes), DecodeConfig(128, 128, 1, 1), call)
    jax.eval_shape(run_it, jax.ShapeDtypeStruct((1, 64), jnp.bfloat16), planes)
    assert grids == [(1, 65536)]


REASON = aot.unavailable_reason()
N, K = 4096, 5120


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize(("kind", "m"), [("nvfp4", 1), ("q6", 16)])
def test_compiles_for_a_b200_without_spills_and_reads_the_packed_planes_in_place(kind, m):
    arguments = {"kind": kind, "m": m, "n": N, "k": K}
    report = aot.compile_case(aot.kernel_case("decode_sm100", "b200", **arguments))
    assert (report.kernels, report.spill_bytes, report.stack_bytes) == (1, 0, 0)
    assert report.tma_loads > 0
    assert all(sass.count(report.sass[0], opcode) > 0 for opcode in ("UTCHMMA", "STTM", "LDTM"))
    # x and y are all that XLA writes.
    assert report.temporaries(at_least=16 * K * 2 + 1) == []
