"""Products under jit, vmap, scan and grad, and gradients that are refused; every format."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.ops import gated_linear, grouped_matmul, linear, matmul, take_rows
from tests.ops.weights import FORMATS, activations, exact, random_weight, relative_l2

N, K = 128, 192


def stack(*weights: QuantizedTensor) -> QuantizedTensor:
    """Weights stacked along a new leading axis of every plane."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *weights)


@pytest.mark.parametrize("format", FORMATS)
def test_jit_and_gradient_in_x(format: str) -> None:
    w = random_weight(format, N, K)
    x = activations(3, K)
    loss = lambda x, w: jnp.sum(matmul(x, w) ** 2)
    gradient = jax.jit(jax.grad(loss))(x, w)
    values = exact(w)
    assert gradient.dtype == jnp.float32
    assert relative_l2(np.asarray(gradient), 2 * (x.astype(np.float64) @ values.T) @ values) <= 1e-5


@pytest.mark.parametrize("format", FORMATS)
def test_vmap_over_x_and_over_weights(format: str) -> None:
    weights = [random_weight(format, N, K, seed) for seed in (0, 1)]
    x = activations(4, K).reshape(2, 2, K)
    products = [[rows.astype(np.float64) @ exact(w).T for w in weights] for rows in x]
    over_x = jax.vmap(matmul, (0, None))(x, weights[0])
    assert relative_l2(np.asarray(over_x), np.stack([products[0][0], products[1][0]])) <= 1e-5
    over_both = jax.vmap(matmul)(x, stack(*weights))
    assert relative_l2(np.asarray(over_both), np.stack([products[0][0], products[1][1]])) <= 1e-5
    over_weights = jax.vmap(matmul, (None, 0))(x[0], stack(*weights))
    assert relative_l2(np.asarray(over_weights), np.stack(products[0])) <= 1e-5


@pytest.mark.parametrize("format", FORMATS)
def test_scan_over_stacked_layers_with_gradient(format: str) -> None:
    layers = [random_weight(format, N, N, seed) for seed in (0, 1, 2)]
    size = [1 / np.linalg.norm(exact(w), 2) for w in layers]
    x = activations(1, N)

    def run(x: jax.Array) -> jax.Array:
        step = lambda x, layer: (matmul(x, layer[0]) * layer[1], None)
        return jax.lax.scan(step, x, (stack(*layers), jnp.asarray(size, jnp.float32)))[0]

    y, pull = jax.vjp(jax.jit(run), jnp.asarray(x))
    total = np.linalg.multi_dot([s * exact(w).T for s, w in zip(size, layers, strict=True)])
    assert relative_l2(np.asarray(y), x @ total) <= 1e-4  # three products, each within 1e-5 of its own size
    assert relative_l2(np.asarray(pull(jnp.asarray(x))[0]), x @ total.T) <= 1e-4


def test_vmap_of_gradient() -> None:
    w = stack(random_weight("W8G32_F16S", 40, 64), random_weight("W8G32_F16S", 40, 64, 1))
    x = activations(2, 64)
    gradients = jax.vmap(jax.grad(lambda x, w: jnp.sum(jnp.sin(matmul(x, w)))))(x, w)
    for i in range(2):
        values = exact(w[i])
        assert relative_l2(np.asarray(gradients[i]), np.cos(x[i] @ values.T) @ values) <= 1e-4


def test_second_derivative() -> None:
    w = random_weight("Q6G64_F16S", 8, 5)
    x = activations(1, 5)[0]
    hessian = jax.jacrev(jax.grad(lambda x: jnp.sum(matmul(x, w) ** 2)))(x)
    values = exact(w)
    assert relative_l2(np.asarray(hessian), 2 * values.T @ values) <= 1e-5


def test_gradient_type_is_that_of_x() -> None:
    w = random_weight("Q4G64_F16S", 32, 64)
    x = jnp.asarray(activations(2, 64, "bfloat16"))
    gradient = jax.grad(lambda x: jnp.sum(matmul(x, w, preferred_element_type=jnp.float32)))(x)
    assert gradient.dtype == jnp.bfloat16
    reference = np.ones((2, 32)) @ exact(w)
    assert relative_l2(np.asarray(gradient, np.float32), reference) <= 1 / 256


def test_gradient_of_packed_words_is_an_error() -> None:
    w = random_weight("Q4G64_F16S", 32, 64)
    with pytest.raises(TypeError, match="uint8"):
        jax.grad(lambda w: jnp.sum(matmul(jnp.ones((1, 64)), w)))(w)


@pytest.mark.parametrize("format", FORMATS)
def test_promotions_that_users_forbid_are_not_made(format: str) -> None:
    w = random_weight(format, 2 * N, 256)
    bias = jnp.ones(2 * N, jnp.bfloat16)
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        for m in (1, 3, 40):
            x = jnp.asarray(activations(m, 256))
            loss = lambda x: jnp.sum(linear(x, w, bias, residual=jnp.ones((*x.shape[:-1], 2 * N))))
            assert jax.grad(loss)(x).shape == x.shape
            assert gated_linear(x, w).shape == (m, N)
        assert take_rows(w, jnp.arange(5), jnp.bfloat16).shape == (5, 256)
        assert grouped_matmul(x, stack(w, w), jnp.array([15, 25])).shape == (40, 2 * N)
