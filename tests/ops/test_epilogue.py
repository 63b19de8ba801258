"""Bias, residual and gates: values against float64, one rounding, and transformations, with and without a kernel."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.errors import LayoutError
from ninfer_jax.ops import Epilogue, explain_matmul, gated_linear, linear, matmul
from ninfer_jax.ops.epilogue import ACTIVATIONS, activation_name
from tests.ops import stand_in
from tests.ops.stand_in import StandIn
from tests.ops.test_transformations import stack
from tests.ops.weights import FORMATS, activations, check_product, exact, random_weight, relative_l2

N, K, M = 128, 192, 3


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


REFERENCES = {"silu": silu, "gelu_tanh": gelu_tanh, "identity": lambda x: x}


@pytest.fixture(params=["xla", "stand_in"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Product and epilogue apart, and both in what stands for a kernel."""
    stand_in.register(monkeypatch)
    return request.param


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return stand_in.register(monkeypatch)


def terms(m: int = M, width: int = N, bias: int = N) -> tuple[np.ndarray, np.ndarray]:
    """A bias and a residual."""
    return activations(1, bias, seed=2)[0], activations(m, width, seed=3)


def small(format: str) -> tuple[QuantizedTensor, np.ndarray]:
    """A weight and its values."""
    w = random_weight(format, N, K)
    return w, exact(w)


@pytest.mark.parametrize("format", FORMATS)
def test_bias_and_residual(format: str, implementation: str) -> None:
    w, values = small(format)
    x, (bias, residual) = activations(M, K), terms()
    y = linear(x, w, bias, residual=residual, implementation=implementation)
    check_product(np.asarray(y), x @ values.T + bias + residual)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gates(name: str, implementation: str) -> None:
    w, values = small("Q5G64_F16S")
    x, (bias, residual) = activations(M, K), terms(width=N // 2)
    run = functools.partial(gated_linear, activation=ACTIVATIONS[name], implementation=implementation)
    gate, up = np.split(x.astype(np.float64) @ values.T, 2, axis=1)
    check_product(np.asarray(run(x, w)), REFERENCES[name](gate) * up)
    gate, up = gate + bias[: N // 2], up + bias[N // 2 :]
    check_product(np.asarray(run(x, w, bias=bias, residual=residual)), REFERENCES[name](gate) * up + residual)


def test_one_rounding(implementation: str) -> None:
    w, _ = small("Q4G64_F16S")
    x = jnp.asarray(activations(M, K, "bfloat16"))
    bias, residual = (jnp.asarray(term, jnp.bfloat16) for term in terms())
    sums = matmul(x, w, preferred_element_type=jnp.float32, implementation=implementation)
    expected = np.asarray((sums + bias.astype(jnp.float32) + residual.astype(jnp.float32)).astype(jnp.bfloat16))
    run = functools.partial(linear, implementation=implementation)
    for y in (run(x, w, bias, residual=residual), jax.jit(run)(x, w, bias, residual=residual)):
        np.testing.assert_array_equal(np.asarray(y).view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("leading", [(), (2, 2)])
def test_axes_of_x(leading: tuple[int, ...], implementation: str) -> None:
    w, values = small("W8G32_F16S")
    x = activations(4, K)[: max(1, int(np.prod(leading)))].reshape(*leading, K)
    residual = activations(4, N)[: max(1, int(np.prod(leading)))].reshape(*leading, N)
    bias = terms()[0]
    y = linear(x, w, bias, residual=residual, implementation=implementation)
    assert y.shape == (*leading, N)
    assert relative_l2(np.asarray(y), x @ values.T + bias + residual) <= 1e-5


def test_derivatives(implementation: str) -> None:
    w = random_weight("Q6G64_F16S", 32, 64)
    values, x, (bias, residual) = exact(w), activations(M, 64), terms(width=16, bias=32)

    def run(x: jax.Array, bias: jax.Array, residual: jax.Array) -> jax.Array:
        y = gated_linear(x, w, bias=bias, residual=residual, implementation=implementation)
        return jnp.sum(y**2)

    def dense(x: jax.Array, bias: jax.Array, residual: jax.Array) -> jax.Array:
        gate, up = jnp.split(jnp.matmul(x, values.astype(np.float32).T, precision="highest") + bias, 2, axis=1)
        return jnp.sum((gate / (1 + jnp.exp(-gate)) * up + residual) ** 2)

    for got, expected in zip(
        jax.jit(jax.grad(run, (0, 1, 2)))(x, bias, residual), jax.grad(dense, (0, 1, 2))(x, bias, residual), strict=True
    ):
        assert relative_l2(np.asarray(got), np.asarray(expected, np.float64)) <= 1e-4
    direction = activations(M, 64, seed=5)
    second = lambda f: jax.grad(lambda x: jnp.vdot(jax.grad(f)(x, bias, residual), direction))(x)
    assert relative_l2(np.asarray(second(run)), np.asarray(second(dense), np.float64)) <= 1e-4


def test_derivative_types(implementation: str) -> None:
    w, values = small("Q4G64_F16S")
    x, bias = jnp.asarray(activations(M, K, "bfloat16")), jnp.asarray(terms()[0], jnp.float16)
    run = lambda x, bias: jnp.sum(linear(x, w, bias, preferred_element_type=jnp.float32, implementation=implementation))
    dx, d_bias = jax.grad(run, (0, 1))(x, bias)
    assert (dx.dtype, d_bias.dtype) == (x.dtype, bias.dtype)
    np.testing.assert_array_equal(np.asarray(d_bias), np.full(N, M, np.float16))
    assert relative_l2(np.asarray(dx, np.float32), np.ones((M, N)) @ values) <= 1 / 256


def test_vmap(implementation: str) -> None:
    weights = [random_weight("Q4G64_F16S", N, K, seed) for seed in (0, 1)]
    values = [exact(w) for w in weights]
    x, residual = activations(2 * M, K).reshape(2, M, K), activations(2 * M, N, seed=3).reshape(2, M, N)
    bias = terms()[0]
    run = lambda x, w, bias, residual: linear(x, w, bias, residual=residual, implementation=implementation)
    over_x = jax.vmap(run, (0, None, None, 0))(x, weights[0], bias, residual)
    assert relative_l2(np.asarray(over_x), x @ values[0].T + bias + residual) <= 1e-5
    over_residual = jax.vmap(run, (None, None, None, 0))(x[0], weights[0], bias, residual)
    assert relative_l2(np.asarray(over_residual), (x[0] @ values[0].T)[None] + bias + residual) <= 1e-5
    over_weights = jax.vmap(run, (0, 0, None, 0))(x, stack(*weights), bias, residual)
    expected = np.stack([a @ b.T for a, b in zip(x, values, strict=True)]) + bias + residual
    assert relative_l2(np.asarray(over_weights), expected) <= 1e-5


def test_a_kernel_is_run_with_its_epilogue(kernel: StandIn) -> None:
    w, _ = small("Q4G64_F16S")
    bias, residual = terms(width=N // 2)
    x = activations(M, K)
    gated_linear(x, w, jax.nn.gelu, bias, residual=residual, implementation="stand_in")
    assert [str(p.epilogue) for p in kernel.seen] == ["gelu_tanh gate, bias, float32 residual"]
    kernel.seen.clear()
    gated_linear(x, w, jnp.tanh, implementation="stand_in")
    assert [(bool(p.epilogue), p.out_dtype) for p in kernel.seen] == [(False, "float32")]


def test_a_kernel_is_run_for_every_weight_of_a_bank(kernel: StandIn) -> None:
    weights = [[random_weight("NVFP4", N, K, 2 * i + j) for j in range(2)] for i in range(2)]
    bank = stack(*(stack(*row) for row in weights))
    x = activations(4, K).reshape(2, 2, 1, K)
    run = lambda x, w: matmul(x, w, implementation="stand_in")
    y = jax.jit(jax.vmap(jax.vmap(run)))(x, bank)
    assert {(p.n, p.k, p.m) for p in kernel.seen} == {(N, K, 1)}
    expected = np.stack([[x[i, j] @ exact(weights[i][j]).T for j in range(2)] for i in range(2)])
    assert relative_l2(np.asarray(y), expected) <= 1e-5
    one_x = jax.vmap(run, (None, 0))(x[0, 0], bank[0])
    assert relative_l2(np.asarray(one_x), np.stack([x[0, 0] @ exact(w).T for w in weights[0]])) <= 1e-5


def test_names_of_activations() -> None:
    assert activation_name(jax.nn.swish) == "silu"
    assert activation_name(functools.partial(jax.nn.gelu, approximate=True)) == "gelu_tanh"
    assert activation_name(functools.partial(jax.nn.gelu, approximate=False)) is None
    assert activation_name(lambda x: x) is None


def test_explanation() -> None:
    w, x = random_weight("Q4G64_F16S", N, K), jax.ShapeDtypeStruct((M, K), jnp.bfloat16)
    found = explain_matmul(x, w, epilogue=Epilogue("silu", bias=True, residual="bfloat16"))
    assert found.implementation == "xla"
    assert "silu gate, bias, bfloat16 residual: after float32 sums, by XLA (xla has products alone)" in str(found)
    assert explain_matmul(x, w).apart is None


@pytest.mark.skipif(jax.__version_info__ < (0, 11, 2), reason="the kernels need jax 0.11.2")
def test_explanation_on_a_described_gpu() -> None:
    w, x = random_weight("Q4G64_F16S", N, K), jax.ShapeDtypeStruct((M, K), jnp.bfloat16)
    gate = explain_matmul(x, w, epilogue=Epilogue("silu", residual="bfloat16"), device="h100")
    assert (gate.implementation, gate.apart) == ("mosaic_gpu", None)
    assert "silu gate, bfloat16 residual: in the kernel" in str(gate)
    wide = explain_matmul(x, w, epilogue=Epilogue(residual="float32"), device="h100")
    assert wide.implementation == "mosaic_gpu"
    assert "a float32 residual would be rounded to bfloat16" in str(wide.apart)
    half = explain_matmul(x, w, epilogue=Epilogue(bias=True), preferred_element_type=jnp.float16, device="h100")
    assert half.implementation == "mosaic_gpu"
    assert "would be float16" in str(half.apart)


def test_refusals() -> None:
    w, x = random_weight("Q4G64_F16S", N, K), activations(M, K)
    with pytest.raises(LayoutError, match=r"bias has shape \[3\]; this product needs \[128\]"):
        linear(x, w, jnp.ones(3))
    with pytest.raises(LayoutError, match=r"residual has shape \[3, 128\]; this product needs \[3, 64\]"):
        gated_linear(x, w, residual=jnp.ones((M, N)))
