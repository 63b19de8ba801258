"""`matmul` against the float64 product with exactly decoded weights: formats, shape classes, rows of x, dtypes.

Shapes are those of the registered targets scaled down: their ratios, padded columns and rows that fill no block.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.errors import LayoutError, UnsupportedError
from ninfer_jax.ops import Epilogue, explain_matmul, gated_linear, grouped_matmul, linear, matmul, split, take_rows
from tests.ops.weights import FORMATS, activations, check_product, exact, random_weight, temporary_bytes

ROWS = (1, 2, 7, 16, 33, 256)
SHAPES = {
    "Q4G64_F16S": ((448, 320), (216, 144), (269, 72)),
    "Q5G64_F16S": ((320, 384), (72, 269), (320, 1088)),
    "Q6G64_F16S": ((970, 320), (72, 96), (128, 256)),
    "W8G32_F16S": ((320, 640), (576, 128), (288, 290)),
    "NVFP4": ((384, 320), (256, 576), (128, 64)),
    "FP8_E4M3FN_ROW_BF16S": ((448, 320), (320, 385), (33, 7)),
}
CASES = [(format, *shape) for format in FORMATS for shape in SHAPES[format]]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("m", ROWS)
def test_rows_of_x(format: str, m: int) -> None:
    n, k = SHAPES[format][0]
    w = random_weight(format, n, k)
    x = activations(m, k)
    check_product(np.asarray(matmul(jnp.asarray(x), w)), x.astype(np.float64) @ exact(w).T)


@pytest.mark.parametrize(("format", "n", "k"), CASES)
@pytest.mark.parametrize("m", [1, 3])
def test_shape_classes(format: str, n: int, k: int, m: int) -> None:
    w = random_weight(format, n, k, seed=n)
    x = activations(m, k, "bfloat16" if m == 3 else "float32")
    y = np.asarray(matmul(jnp.asarray(x), w))
    assert y.dtype == x.dtype
    check_product(y, x.astype(np.float64) @ exact(w).T)


@pytest.mark.parametrize("format", FORMATS)
def test_few_columns(format: str) -> None:
    n, k = (128, 64) if format == "NVFP4" else (3, 1)
    w = random_weight(format, n, k)
    x = activations(1, k)
    check_product(np.asarray(matmul(x, w)), x.astype(np.float64) @ exact(w).T)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_preferred_element_type(dtype: str) -> None:
    w = random_weight("Q6G64_F16S", 40, 200)
    x = activations(2, 200, dtype)
    wide = np.asarray(matmul(x, w, preferred_element_type=jnp.float32))
    assert wide.dtype == np.float32
    check_product(wide, x.astype(np.float64) @ exact(w).T)
    narrow = np.asarray(matmul(x, w))
    assert narrow.dtype == np.dtype(dtype)
    assert (narrow == wide.astype(dtype)).all()


def test_no_rows_of_x() -> None:
    w = random_weight("Q5G64_F16S", 24, 64)
    assert matmul(jnp.ones((0, 64)), w).shape == (0, 24)
    assert matmul(jnp.ones((2, 0, 64)), w).shape == (2, 0, 24)
    assert jax.grad(lambda x: matmul(x, w).sum())(jnp.ones((0, 64))).shape == (0, 64)


def test_axes_of_x() -> None:
    w = random_weight("W8G32_F16S", 24, 64)
    x = activations(6, 64)
    y = np.asarray(matmul(x, w))
    assert np.asarray(matmul(x[0], w)).shape == (24,)
    np.testing.assert_array_equal(np.asarray(matmul(x.reshape(2, 3, 64), w)), y.reshape(2, 3, 24))


@pytest.mark.parametrize(("scale", "divisor"), [(0x0001, 0x00000001), (0x7F00, 0x7F000000), (0x0080, 0x00800000)])
def test_extreme_outer_scales(scale: int, divisor: int) -> None:
    """Subnormal and huge row scales and divisors, which float32 arithmetic would flush or overflow on the way."""
    fp8 = random_weight("FP8_E4M3FN_ROW_BF16S", 16, 64)
    fp8 = QuantizedTensor(fp8.planes._replace(scales=jnp.full(16, scale, jnp.uint16)), fp8.format, fp8.k)
    nvfp4 = random_weight("NVFP4", 128, 64)
    nvfp4 = QuantizedTensor(nvfp4.planes._replace(divisor=jnp.uint32(divisor)), nvfp4.format, nvfp4.k)
    for w in (fp8, nvfp4):
        values = exact(w)
        large = np.abs(values).max() > 1e30
        x = activations(2, 64) * np.float32(1e-20 if large else 1e20)
        if np.isfinite(values).all():
            reference = x.astype(np.float64) @ values.T
            for rows in (slice(0, 1), slice(None)):
                check_product(np.asarray(matmul(x[rows], w)), reference[rows])


@pytest.mark.parametrize("format", FORMATS)
def test_no_float_copy_of_the_weight(format: str) -> None:
    w = random_weight(format, 512, 2048)
    for m in (1, 4):
        compiled = jax.jit(matmul).lower(jax.ShapeDtypeStruct((m, 2048), jnp.float32), w).compile()
        assert temporary_bytes(compiled) < w.nbytes


def test_linear_and_gated_linear() -> None:
    w = random_weight("Q5G64_F16S", 64, 128)
    x, bias = activations(2, 128, "bfloat16"), activations(1, 64)[0]
    product = x.astype(np.float64) @ exact(w).T
    check_product(np.asarray(linear(x, w, jnp.asarray(bias))), product + bias)
    gate, up = product[:, :32], product[:, 32:]
    check_product(np.asarray(gated_linear(x, w)), gate / (1 + np.exp(-gate)) * up)
    check_product(np.asarray(gated_linear(x, w, jnp.tanh)), np.tanh(gate) * up)
    with pytest.raises(LayoutError, match="odd number of rows"):
        gated_linear(x, random_weight("Q5G64_F16S", 3, 128))


def test_explain_matmul() -> None:
    w = random_weight("Q4G64_F16S", 64, 128)
    one = explain_matmul(jax.ShapeDtypeStruct((1, 128), jnp.bfloat16), w)
    assert one.implementation == "xla"
    assert "needs an NVIDIA GPU" in one.rejected["mosaic_gpu"]
    assert "M = 1 (decode)" in str(one)
    assert "lanes" in one.how
    many = explain_matmul(jax.ShapeDtypeStruct((64, 128), jnp.float32), w, implementation="xla")
    assert many.problem.regime == "prefill"
    assert not many.rejected


def test_choice_of_implementation() -> None:
    w = random_weight("Q4G64_F16S", 8, 64)
    x = activations(1, 64)
    reference = np.asarray(matmul(x, w))
    np.testing.assert_array_equal(np.asarray(matmul(x, w, implementation=["mosaic_gpu", "xla"])), reference)
    with pytest.raises(UnsupportedError, match="needs an NVIDIA GPU"):
        matmul(x, w, implementation="mosaic_gpu")
    with pytest.raises(UnsupportedError, match="registered: mosaic_gpu, triton, xla"):
        matmul(x, w, implementation="cuda")
    with pytest.raises(UnsupportedError, match="no name given"):
        matmul(x, w, implementation=())


def test_refusals() -> None:
    w = random_weight("Q4G64_F16S", 8, 64)
    with pytest.raises(LayoutError, match="last axis must be 64"):
        matmul(jnp.ones((2, 63)), w)
    with pytest.raises(UnsupportedError, match="x is int32; allowed: float32"):
        explain_matmul(jax.ShapeDtypeStruct((2, 64), jnp.int32), w, preferred_element_type=jnp.float32)
    with pytest.raises(UnsupportedError, match="a float type is needed"):
        matmul(jnp.ones((2, 64)), w, preferred_element_type=jnp.int32)
    with pytest.raises(LayoutError, match="map leading axes"):
        matmul(jnp.ones((2, 64)), jax.tree.map(lambda leaf: leaf[None], w))
    with pytest.raises(UnsupportedError, match="'v100'; the names are h100"):
        explain_matmul(jnp.ones((2, 64)), w, device="v100")


PRODUCTS = {
    "matmul": matmul,
    "linear": linear,
    "gated_linear": gated_linear,
    "explain_matmul": explain_matmul,
    "grouped_matmul": lambda x, w: grouped_matmul(x, jax.tree.map(lambda leaf: leaf[None], w), np.ones(1, np.int32)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_x_of_other_types(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    product: Any = PRODUCTS[name]
    w = random_weight("Q4G64_F16S", 8, 64)
    for wrong in ([1.0] * 64, 3.0, None):
        with pytest.raises(LayoutError, match=f"x is a {type(wrong).__name__}; give a NumPy or JAX array"):
            product(wrong, w)
    for dtype in ("int32", "bool", "complex64", "float8_e4m3fn"):
        with pytest.raises(UnsupportedError, match=f"x is {dtype}; allowed: float32"):
            product(jnp.ones((1, 64), dtype), w)
    # A float64 NumPy array is what it is under jit: float32, unless jax has float64.
    double = product(activations(1, 64).astype(np.float64), w)
    with jax.enable_x64(True), pytest.raises(UnsupportedError, match="x is float64"):
        product(np.ones((1, 64)), w)
    single = product(activations(1, 64), w)
    if name == "explain_matmul":
        assert double == single
    else:
        assert (double.dtype, double.tolist()) == (jnp.float32, single.tolist())


def test_arguments_of_other_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    w, x = random_weight("Q4G64_F16S", 8, 64), activations(2, 64)
    for activation in (None, "silu"):
        with pytest.raises(UnsupportedError, match="is no function; give one"):
            gated_linear(x, w, activation)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnsupportedError, match="the kernels know silu, gelu_tanh, identity"):
        Epilogue("relu")
    for residual in ("int8", jnp.float32):
        with pytest.raises(UnsupportedError, match="residual"):
            Epilogue(residual=residual)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnsupportedError, match="give an Epilogue"):
        explain_matmul(x, w, epilogue="silu")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnsupportedError, match="give a name, a sequence of names"):
        matmul(x, w, implementation=3)  # pyright: ignore[reportArgumentType]
    bank = jax.tree.map(lambda leaf: leaf[None], w)
    with pytest.raises(LayoutError, match="group sizes are float32"):
        grouped_matmul(x, bank, jnp.ones(1))
    with pytest.raises(UnsupportedError, match="preferred_element_type int32"):
        grouped_matmul(x, bank, jnp.ones(1, jnp.int32), preferred_element_type=jnp.int32)


@pytest.mark.parametrize(
    "call",
    [
        lambda w: matmul(jnp.ones((2, 64)), w),
        lambda w: linear(jnp.ones((2, 64)), w, jnp.ones(8)),
        lambda w: gated_linear(jnp.ones((2, 64)), w),
        lambda w: take_rows(w, jnp.arange(2)),
        lambda w: grouped_matmul(jnp.ones((2, 64)), w, jnp.ones(1, jnp.int32)),
        lambda w: split(w, [4, 4]),
        lambda w: explain_matmul(jnp.ones((2, 64)), w),
    ],
)
def test_a_float_array_is_no_packed_weight(call: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user, whom no annotation check guards
    with pytest.raises(LayoutError, match="pack a float array"):
        call(jnp.ones((8, 64)))
