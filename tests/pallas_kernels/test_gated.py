"""Fused epilogues: bias, residual, and gated products over a [gate; up] parent, against float64."""

import jax
import numpy as np
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import jax.numpy as jnp

from pallas_kernels.hardware import H100
from pallas_kernels.mosaic_gpu import prefill_sm90
from pallas_kernels.mosaic_gpu.call import ACTIVATIONS, Call
from pallas_kernels.tiling import PrefillConfig
from tests.pallas_kernels.interpreted import INTERPRET, with_sms
from tests.pallas_kernels.weights import check_close, random_weight, random_x

pytestmark = pytest.mark.timeout(120)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


REFERENCES = {"silu": silu, "gelu_tanh": gelu_tanh, "identity": lambda x: x}

# kind, m, n, k, configuration, activation, bias, residual, dtype of the result.
CASES = {
    "bias": ("q4", 33, 75, 200, PrefillConfig(32, 64, 2, consumers=1), None, True, False, "bfloat16"),
    "residual": ("w8", 20, 130, 256, PrefillConfig(32, 64, 2), None, False, True, "bfloat16"),
    "both, many pieces": ("fp8", 140, 200, 192, PrefillConfig(128, 64, 2, row_blocks=2), None, True, True, "float32"),
    "both, split k": ("q6", 40, 100, 512, PrefillConfig(32, 64, 2, split_k=4), None, True, True, "bfloat16"),
    "silu": ("q5", 33, 132, 384, PrefillConfig(32, 128, 2, consumers=1), "silu", False, False, "bfloat16"),
    "silu with everything": ("nvfp4", 70, 256, 320, PrefillConfig(64, 64, 2), "silu", True, True, "bfloat16"),
    "silu, split k": ("q4", 20, 140, 512, PrefillConfig(32, 64, 2, split_k=2), "silu", True, True, "float32"),
    "gelu_tanh": ("fp8", 20, 130, 256, PrefillConfig(32, 64, 2), "gelu_tanh", False, False, "bfloat16"),
    "bilinear": ("q6", 20, 128, 256, PrefillConfig(32, 64, 2, consumers=1), "identity", True, False, "bfloat16"),
}


def reference(x, weight, activation, bias, residual):
    y = x.astype(np.float64) @ weight.T + (0 if bias is None else bias)
    if activation is not None:
        half = y.shape[1] // 2
        y = REFERENCES[activation](y[:, :half]) * y[:, half:]
    return y + (0 if residual is None else residual.astype(np.float64))


@pytest.mark.parametrize("case", CASES)
def test_prefill_epilogue_matches_the_oracle(case, no_races):
    kind, m, n, k, config, activation, with_bias, with_residual, dtype = CASES[case]
    planes, weight = random_weight(kind, n, k)
    weight_scale = np.abs(weight).max()
    rng = np.random.default_rng(2)
    x = (random_x(m, k).astype(np.float32) / (weight_scale * np.sqrt(k))).astype(jnp.bfloat16)  # activations near 1
    bias = rng.standard_normal(n).astype(np.float32) if with_bias else None
    columns = n // 2 if activation else n
    residual = rng.standard_normal((m, columns)).astype(dtype) if with_residual else None
    y = prefill_sm90.run(
        jnp.asarray(x),
        planes,
        config,
        Call(
            kind,
            n,
            k,
            jnp.dtype(dtype),
            with_sms(H100, 2),
            bias=None if bias is None else jnp.asarray(bias),
            residual=None if residual is None else jnp.asarray(residual),
            activation=activation,
            interpret=INTERPRET,
        ),
    )
    assert y.dtype == jnp.dtype(dtype)
    check_close(np.asarray(y), reference(x, weight, activation, bias, residual))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_the_published_functions(name):
    x = np.linspace(-30, 30, 601)
    got = np.asarray(ACTIVATIONS[name](jnp.asarray(x, jnp.float32)), np.float64)
    np.testing.assert_allclose(got, REFERENCES[name](x), rtol=2e-6, atol=2e-6)
