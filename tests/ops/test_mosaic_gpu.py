"""The plug to the GPU kernels, as far as it goes without a GPU: planes, reasons, preference where they could run."""

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ninfer_jax.arrays import partition_specs, shardings
from ninfer_jax.errors import UnsupportedError
from ninfer_jax.ops import Epilogue, Problem, explain_matmul, gated_linear, linear, matmul
from ninfer_jax.ops.mosaic_gpu import KINDS, MosaicGpu, kernel_planes
from pallas_kernels import H100, check_planes
from pallas_kernels.mosaic_gpu import dispatch
from tests.ops.test_epilogue import REFERENCES
from tests.ops.weights import FORMATS, activations, check_product, exact, random_weight

# The interpreter's threads, one a warpgroup, wait for each other in a pool that is sized when the client is made.
os.environ.setdefault("NPROC", "16")

GPU = SimpleNamespace(platform="gpu", device_kind=H100.name)
needs_kernels = pytest.mark.skipif(jax.__version_info__ < (0, 11, 2), reason="the kernels need jax 0.11.2")
PROBLEM = Problem("Q4G64_F16S", 1, 256, 512, "bfloat16", "bfloat16")


@pytest.mark.parametrize("format", FORMATS)
def test_planes_are_those_of_the_kernels(format: str) -> None:
    w = random_weight(format, 256, 192)
    check_planes(kernel_planes(w.planes), kind=KINDS[format], n=256, k=192)


def test_reasons() -> None:
    assert "needs an NVIDIA GPU" in str(MosaicGpu().supports(PROBLEM, jax.devices()[0]))
    volta = SimpleNamespace(platform="gpu", device_kind="Tesla V100", compute_capability="7.0", core_count=80)
    reason = MosaicGpu().supports(PROBLEM, volta)
    assert reason is not None
    assert ("compute capability 7.0" in reason) == (jax.__version_info__ >= (0, 11, 2))


@needs_kernels
@pytest.mark.parametrize(("device", "suffix"), [(GPU, "sm90"), ("h100", "sm90"), ("b200", "sm100")])
@pytest.mark.parametrize(("m", "kernel"), [(1, "decode"), (16, "decode"), (17, "prefill"), (4096, "prefill")])
def test_first_choice_on_a_described_gpu(device, suffix: str, m: int, kernel: str) -> None:
    w = random_weight("Q4G64_F16S", 256, 512)
    found = explain_matmul(jax.ShapeDtypeStruct((m, 512), jnp.bfloat16), w, device=device)
    assert found.implementation == "mosaic_gpu"
    assert found.how.startswith(f"{kernel}_{suffix} on NVIDIA")
    assert "Config(" in found.how
    assert "bound, at least" in found.how
    wide = explain_matmul(jax.ShapeDtypeStruct((m, 512), jnp.float32), w, device=device)
    assert wide.implementation == "xla"
    assert "bfloat16" in wide.rejected["mosaic_gpu"]


def test_an_unknown_gpu_name_lists_the_known_ones() -> None:
    x, w = jax.ShapeDtypeStruct((1, 512), jnp.bfloat16), random_weight("Q4G64_F16S", 256, 512)
    with pytest.raises(UnsupportedError, match="'v100'; the names are h100, h200, b200"):
        explain_matmul(x, w, device="v100")


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H100 to trace and lower for."""
    monkeypatch.setattr(dispatch, "visible_hardware", lambda: H100)
    monkeypatch.setattr(sys.modules["ninfer_jax.ops.matmul"], "resolve_device", lambda device, x: GPU)


def lowered(function: Callable[..., Any], *arguments: Any) -> str:
    """The program for a GPU."""
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


@needs_kernels
@pytest.mark.parametrize("format", ["Q5G64_F16S", "NVFP4"])
@pytest.mark.parametrize("m", [2, 64])
@pytest.mark.usefixtures("h100")
def test_transformed_products_lower_to_a_kernel(format: str, m: int) -> None:
    w = random_weight(format, 256, 256)
    x = jax.ShapeDtypeStruct((m, 256), jnp.bfloat16)
    batch = jax.ShapeDtypeStruct((2, m, 256), jnp.bfloat16)
    gradient = jax.value_and_grad(lambda x, w: jnp.sum(matmul(x, w, preferred_element_type=jnp.float32)))
    for function, argument in ((matmul, x), (jax.vmap(matmul, (0, None)), batch), (gradient, x)):
        assert "mosaic_gpu" in lowered(function, argument, w)


@needs_kernels
@pytest.mark.parametrize("m", [2, 64])
@pytest.mark.usefixtures("h100")
def test_a_bank_under_vmap_lowers_to_one_kernel_in_a_loop(m: int) -> None:
    w = random_weight("Q4G64_F16S", 256, 256)
    bank = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), w)
    text = lowered(jax.vmap(partial(matmul, implementation="mosaic_gpu")), jnp.zeros((2, m, 256), jnp.bfloat16), bank)
    assert "mosaic_gpu" in text
    assert "stablehlo.while" in text


@needs_kernels
@pytest.mark.parametrize("m", [2, 64])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.usefixtures("h100")
def test_kernels_run_on_manual_axes(m: int, kind: AxisType) -> None:
    """Inside `shard_map` that checks what varies, a gate too; and on typed axes."""
    mesh = jax.make_mesh((1,), ("model",), axis_types=(kind,))
    w, x = random_weight("Q4G64_F16S", 256, 256), jnp.zeros((m, 256), jnp.bfloat16)
    rows = PartitionSpec("model")
    if kind == AxisType.Explicit:
        assert "mosaic_gpu" in lowered(matmul, x, jax.device_put(w, shardings(w, NamedSharding(mesh, rows))))
        return
    for function in (matmul, gated_linear):
        specs = (PartitionSpec(), partition_specs(w, rows))
        mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(None, "model"))
        assert "mosaic_gpu" in lowered(mapped, x, w)


@needs_kernels
@pytest.mark.parametrize("function", [linear, gated_linear])
@pytest.mark.parametrize("m", [2, 64])
@pytest.mark.usefixtures("h100")
def test_bias_residual_and_gate_reach_the_kernel(function: Callable[..., Any], m: int, monkeypatch) -> None:
    """One call with everything, whose result is the operator's; a gradient takes the product alone, in float32."""
    calls = []
    for name in ("matmul", "gated_matmul"):
        kernel = getattr(mosaic_kernels(), name)
        monkeypatch.setattr(mosaic_kernels(), name, partial(remembered, kernel, name, calls))
    n, width = (256, 256) if function is linear else (512, 256)
    w, x = random_weight("Q6G64_F16S", n, 256), jnp.zeros((m, 256), jnp.bfloat16)
    bias, residual = jnp.zeros(n), jnp.zeros((m, width), jnp.bfloat16)
    run = lambda x, bias, residual: function(x, w, bias=bias, residual=residual)
    text = lowered(run, x, bias, residual)
    assert "mosaic_gpu" in text
    name = "matmul" if function is linear else "gated_matmul"
    assert calls == [(name, {"bias", "residual"}, jnp.bfloat16)]
    calls.clear()
    lowered(jax.grad(lambda *a: jnp.sum(run(*a).astype(jnp.float32)), (0, 1, 2)), x, bias, residual)
    assert calls == [("matmul", set(), jnp.float32)]


@needs_kernels
@pytest.mark.parametrize(("activation", "m"), [("silu", 2), (None, 20)])
def test_the_interpreted_kernel_with_its_epilogue(activation: str | None, m: int, monkeypatch) -> None:
    """The plug against float64, from the operator's own arguments on."""
    interpret = importlib.import_module("jax.experimental.pallas.mosaic_gpu").InterpretGPUParams()
    name = "matmul" if activation is None else "gated_matmul"
    monkeypatch.setattr(mosaic_kernels(), name, partial(getattr(mosaic_kernels(), name), interpret=interpret))
    w, width = random_weight("Q4G64_F16S", 64, 128), 64 if activation is None else 32
    x, residual = (jnp.asarray(activations(m, k, "bfloat16", seed)) for k, seed in ((128, 1), (width, 2)))
    bias = activations(1, 64, seed=3)[0]
    epilogue = Epilogue(activation, bias=True, residual="bfloat16")
    problem = Problem(w.format, m, 64, 128, "bfloat16", "bfloat16", epilogue)
    y = MosaicGpu().product(x, w.planes, problem, "gpu", (jnp.asarray(bias), residual))
    expected = np.asarray(x, np.float64) @ exact(w).T + bias
    if activation is not None:
        gate, up = np.split(expected, 2, axis=1)
        expected = REFERENCES[activation](gate) * up
    check_product(np.asarray(y), expected + np.asarray(residual, np.float64))


def mosaic_kernels() -> Any:
    """The kernels' package, which only newer releases of jax can import."""
    return importlib.import_module("pallas_kernels.mosaic_gpu")


def remembered(kernel: Callable[..., Any], name: str, calls: list[Any], *arguments: Any, **named: Any) -> jax.Array:
    """The kernel's result; its name, operands and type are appended to `calls`."""
    calls.append((name, {n for n in ("bias", "residual") if named[n] is not None}, named["out_dtype"]))
    return kernel(*arguments, **named)
