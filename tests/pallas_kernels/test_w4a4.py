"""The four-bit activation kernel: its encoder, its kernel with the stand-in multiply, its criterion, its machine code.

Its reference is a float64 dot of independently encoded activations with the exactly decoded weights, to 1e-6; the
criterion, relative L2 of 0.16, is against the bfloat16 activations.
"""

import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import jax.numpy as jnp
import ml_dtypes

from benchmarks import aot, sass
from ninfer_jax.ops import IMPLEMENTATIONS, Problem
from ninfer_jax.ops.registry import choose
from pallas_kernels import mosaic_gpu
from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import B200, H100
from pallas_kernels.mosaic_gpu import nvfp4_w4a4
from pallas_kernels.mosaic_gpu.nvfp4_w4a4 import PLANNER, W4A4Config
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.planes import plane_bytes
from tests.pallas_kernels.interpreted import run, small, with_sms
from tests.pallas_kernels.weights import random_weight, random_x, relative_l2

pytestmark = pytest.mark.timeout(180)

CODES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def nearest(values, grid):
    """Index of the nearest entry of an ascending grid, ties to the even index; values are not negative."""
    distance = np.abs(values[..., None] - grid)
    best = distance.min(axis=-1, keepdims=True)
    indices = np.where(distance == best, np.arange(len(grid)), -1)
    candidates = np.sort(indices, axis=-1)[..., -2:]
    low, high = candidates[..., 0], candidates[..., 1]
    return np.where((low >= 0) & (low % 2 == 0), low, high)


def encode(x):
    """Activations as they reach the multiply, float64: f32 arithmetic as the equation says, rounding by search."""
    x = x.astype(np.float32)
    grid = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    largest = np.abs(x).max(axis=1)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest == 0, 1, np.minimum(np.float32(2688) / largest, np.float32(2.0**100)))
    blocks = (x * inverse.astype(np.float32)[:, None]).reshape(len(x), -1, 16)
    scales = grid[nearest(np.abs(blocks).max(axis=2) * np.float32(1 / 6), grid)]
    safe = np.where(scales > 0, scales, 1)[..., None]
    codes = CODES[nearest(np.abs(blocks) / safe.astype(np.float64), CODES)] * (scales > 0)[..., None]
    values = np.sign(blocks) * codes * scales.astype(np.float64)[..., None]
    return values.reshape(x.shape) / inverse.astype(np.float64)[:, None]


def decode(codes, scales, factors, m, k):
    """float64 [m, k] of what the encoder gave, by the storage rules."""
    signed = np.concatenate([CODES, -CODES])
    values = np.stack([signed[codes & 15], signed[codes >> 4]], axis=2).reshape(m, k)
    words = np.zeros((m, k // 16), np.uint8)
    for n, g in itertools.product(range(m), range(k // 16)):
        words[n, g] = scales.reshape(-1)[
            ((n // 128) * (k // 64) + g // 4) * 512 + (n % 32) * 16 + ((n % 128) // 32) * 4 + g % 4
        ]
    blocks = words.view(ml_dtypes.float8_e4m3fn).astype(np.float64).repeat(16, axis=1)
    return values * blocks * factors.astype(np.float64)[:, None]


def activations():
    """Rows of many sizes: ordinary, huge, tiny, with a zero block, all zeros, exact halfway points."""
    x = random_x(136, 128).astype(np.float32)
    x[1] *= 1e30
    x[2] *= 1e-30
    x[3, :16] = 0
    x[4] = 0
    x[5, :16] = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, 4]
    x[5, 16:] = 0
    x[6, 16:32] *= 1e-6
    return x.astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_encoder_matches_a_search_for_the_nearest(wrap):
    x = activations()
    codes, scales, factors = map(np.asarray, wrap(nvfp4_w4a4.quantize_activations)(jnp.asarray(x)))
    assert scales.shape == (2, 2, 32, 4, 4)
    values, expected = decode(codes, scales, factors, *x.shape), encode(x)
    # The factor is a float32 reciprocal here and a float64 quotient there; no code and no scale may differ.
    np.testing.assert_allclose(values, expected, rtol=2**-22, atol=0)
    assert relative_l2(values[7:], x[7:].astype(np.float64)) <= nvfp4_w4a4.CRITERION


def test_rows_that_are_not_finite_stay_so():
    x = np.ones((2, 64), np.float32)
    x[0, 3] = np.inf
    factors = nvfp4_w4a4.quantize_activations(jnp.asarray(x, jnp.bfloat16))[2]
    assert np.isnan(factors[0])
    assert np.isfinite(factors[1])


# m, n, k, configuration: tails of M and K, more steps than stages, more tiles than accumulators.
CASES = {
    "tails": (40, 128, 704, W4A4Config(128, 128, 2)),
    "several tiles": (130, 256, 320, W4A4Config(128, 128, 2)),
    "wide": (140, 128, 768, W4A4Config(256, 256, 2)),
}


@pytest.mark.parametrize("case", CASES)
def test_interpreted_kernel_matches_its_oracle_and_its_criterion(case, no_races):
    m, n, k, config = CASES[case]
    y, product = run(nvfp4_w4a4, "nvfp4", m, n, k, config, hardware=with_sms(B200, 1), out_dtype=jnp.float32)
    x, (_, weight) = random_x(m, k), random_weight("nvfp4", n, k)
    assert relative_l2(y, encode(x) @ weight.T) <= 1e-6
    assert relative_l2(y, product) <= nvfp4_w4a4.CRITERION


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"block_m": 64}, "block_m=64"), ({"block_k": 64}, "block_k=64"), ({"stages": 1}, "stages=1")],
)
def test_configurations_say_what_is_wrong(fields, message):
    with pytest.raises(KernelConfigError, match=message):
        W4A4Config(**fields)


@pytest.mark.parametrize("out_bytes", [2, 4])
def test_chosen_configurations_fit(out_bytes):
    for m in (1, 128, 129, 4096):
        product = Product("nvfp4", m, 34816, 5120, B200, out_bytes=out_bytes)
        chosen = PLANNER.heuristic_config(product)
        PLANNER.check_config(chosen, product)
        assert chosen.block_m == (128 if m <= 128 else 256)


def test_configurations_that_do_not_fit_are_refused():
    with pytest.raises(KernelConfigError, match="memory"):
        PLANNER.check_config(W4A4Config(256, 256, 8), small("nvfp4", hardware=B200))


REASON = aot.unavailable_reason()


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_compiles_to_block_scaled_multiplies_that_read_the_stored_planes():
    m, n, k = 512, 4096, 5120
    arguments = {"kind": "nvfp4", "m": m, "n": n, "k": k}
    report = aot.compile_case(aot.kernel_case(nvfp4_w4a4.IMPLEMENTATION, "b200", **arguments))
    assert (report.kernels, report.spill_bytes, report.stack_bytes) == (1, 0, 0)
    # mxf4nvf4 with a scale every 16 columns is OMMA.4X; scales reach tensor memory by UTCCP; nothing is unpacked.
    assert sass.count(report.sass[0], "UTCOMMA") > 0
    assert "UTCOMMA.4X" in report.sass[0]
    assert sass.count(report.sass[0], "UTCCP") > 0
    assert sass.count(report.sass[0], "STTM") == 0
    assert report.tma_loads > 0
    # XLA writes encoded activations, never anything of the size of a plane of the weight.
    assert report.temporaries(at_least=plane_bytes("nvfp4", n, k) // 4) == []


def test_it_is_asked_for_by_name_only():
    problem = {"m": 4, "n": 128, "k": 64, "x_dtype": jnp.bfloat16, "out_dtype": jnp.bfloat16}
    assert nvfp4_w4a4.unsupported_reason(kind="nvfp4", hardware=B200, **problem) is None
    assert "needs a GPU of compute capability 10.0" in str(
        nvfp4_w4a4.unsupported_reason(kind="nvfp4", hardware=H100, **problem)
    )
    assert "multiplies nvfp4 weights" in str(nvfp4_w4a4.unsupported_reason(kind="q4", hardware=B200, **problem))
    explanation = mosaic_gpu.explain(kind="nvfp4", m=4, n=128, k=64, hardware=B200)
    assert explanation.kernel == "decode_sm100"
    assert IMPLEMENTATIONS[nvfp4_w4a4.IMPLEMENTATION].by_name_only
    b200 = SimpleNamespace(platform="gpu", device_kind=B200.name)
    reasons = choose(IMPLEMENTATIONS, Problem("NVFP4", 4, 128, 64, "bfloat16", "bfloat16"), b200, None).rejected
    assert nvfp4_w4a4.IMPLEMENTATION not in reasons
