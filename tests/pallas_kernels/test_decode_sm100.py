"""The Blackwell decode kernel: interpreted with race detection against the float64 oracle, and compiled for a B200."""

import itertools

import jax
import numpy as np
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

from benchmarks import aot, sass
from pallas_kernels import mosaic_gpu
from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import B200
from pallas_kernels.mosaic_gpu import decode_sm100
from pallas_kernels.mosaic_gpu._decode_plan_sm100 import predicted_seconds
from pallas_kernels.planes import plane_bytes
from pallas_kernels.tiling import WEIGHT_KINDS, DecodeConfig
from tests.pallas_kernels.weights import check_close, random_weight, random_x, relative_l2

pytestmark = pytest.mark.timeout(180)

# kind, m, n, k, block_k, warpgroups, stages, split_k: tails of N and K, more turns than stages, idle warpgroups.
CASES = {
    "q4 tails": ("q4", 1, 75, 1100, 128, 2, 2, 1),
    "q5 three warpgroups": ("q5", 16, 128, 1280, 128, 3, 1, 1),
    "q6 split k": ("q6", 5, 200, 1024, 64, 2, 2, 3),
    "w8 four warpgroups": ("w8", 9, 136, 640, 64, 4, 2, 1),
    "fp8 ragged k": ("fp8", 3, 72, 700, 64, 2, 2, 2),
    "nvfp4 half step": ("nvfp4", 2, 256, 704, 128, 2, 2, 1),
    "q4 more warpgroups than steps": ("q4", 8, 64, 128, 128, 2, 2, 1),
}


def run(kind, m, n, k, block_k, warpgroups, stages, split_k, *, out_dtype=jnp.bfloat16, **epilogue):
    """The kernel interpreted and the reference without any epilogue."""
    planes, weight = random_weight(kind, n, k)
    x = random_x(m, k)
    y = decode_sm100.run(
        jnp.asarray(x),
        planes,
        kind=kind,
        n=n,
        k=k,
        out_dtype=out_dtype,
        config=DecodeConfig(128, block_k, warpgroups, stages, split_k),
        interpret=plgpu.InterpretGPUParams(detect_races=True),  # pyright: ignore[reportAttributeAccessIssue]
        **epilogue,
    )
    return np.asarray(y), x.astype(np.float64) @ weight.T


@pytest.mark.parametrize("case", CASES)
def test_interpreted_kernel_matches_the_oracle(case, no_races):
    y, reference = run(*CASES[case], out_dtype=jnp.float32)
    # Codes are exact in bfloat16 and group scales multiply float32 sums: only the order of additions is left.
    assert relative_l2(y, reference) <= 1e-6


def test_gated_product_with_bias_and_residual(no_races):
    n, rng = 288, np.random.default_rng(3)
    bias = rng.standard_normal(n).astype(np.float32)
    residual = rng.standard_normal((4, n // 2)).astype(np.float32)
    y, product = run("w8", 4, n, 256, 128, 2, 1, 1, activation="silu", bias=jnp.asarray(bias), residual=residual)
    assert y.dtype == jnp.bfloat16
    gate, up = np.split(product + bias, 2, axis=1)
    check_close(y, gate / (1 + np.exp(-gate)) * up + residual)


@pytest.mark.parametrize("m", [3, 20])
def test_a_b200_gets_these_kernels_from_the_public_call(m, no_races):
    planes, weight = random_weight("q4", 128, 256)
    x = random_x(m, 256)
    kernel = mosaic_gpu.explain(kind="q4", m=m, n=128, k=256, hardware=B200).kernel
    assert kernel == ("decode_sm100" if m <= 16 else "prefill_sm100")
    interpret = plgpu.InterpretGPUParams(detect_races=True)  # pyright: ignore[reportAttributeAccessIssue]
    y = mosaic_gpu.matmul(jnp.asarray(x), planes, kind="q4", n=128, k=256, hardware=B200, interpret=interpret)
    check_close(np.asarray(y), x.astype(np.float64) @ weight.T)


def test_a_missing_fence_is_reported_as_a_race(capfd, monkeypatch):
    monkeypatch.setattr(plgpu, "commit_smem", lambda: None)
    try:
        run("q4", 1, 128, 512, 64, 2, 1, 1)
        said = capfd.readouterr().out
    except jax.errors.JaxRuntimeError as error:  # what jax 0.12 makes of a race
        said = str(error)
    assert "RACE DETECTED" in said


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_every_candidate_is_accepted_and_the_heuristic_is_the_cheapest(kind):
    for m, (n, k) in itertools.product((1, 16), ((34816, 5120), (1152, 1536), (2048, 512))):
        problem = {"kind": kind, "m": m, "n": n, "k": k, "hardware": B200}
        candidates = decode_sm100.candidate_configs(**problem)
        for config in candidates:
            decode_sm100.check_config(config, kind=kind, k=k)
        predicted = {config: predicted_seconds(config, **problem) for config in candidates}
        assert predicted[decode_sm100.heuristic_config(**problem)] == min(predicted.values())
        assert min(predicted.values()) >= B200.memory_seconds(plane_bytes(kind, n, k))


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
        decode_sm100.check_config(config, kind=kind, k=k)


REASON = aot.unavailable_reason()
N, K = 4096, 5120


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize(("kind", "m"), [("nvfp4", 1), ("q6", 16)])
def test_compiles_for_a_b200_without_spills_and_reads_the_packed_planes_in_place(kind, m):
    arguments = {"kind": kind, "m": m, "n": N, "k": K}
    report = aot.compile_case(aot.AotCase(kind, "benchmarks.blackwell_builder:matmul", arguments, "b200"))
    assert (report.kernels, report.spill_bytes, report.stack_bytes) == (1, 0, 0)
    assert report.tma_loads > 0
    assert all(sass.count(report.sass[0], opcode) > 0 for opcode in ("UTCHMMA", "STTM", "LDTM"))
    # x and y are all that XLA writes.
    assert report.temporaries(at_least=16 * K * 2 + 1) == []
