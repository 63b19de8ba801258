"""The plug to the GPU kernels, as far as it goes without a GPU: planes, reasons, preference where they could run."""

import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from ninfer_jax.errors import UnsupportedError
from ninfer_jax.ops import Problem, explain_matmul, matmul
from ninfer_jax.ops.mosaic_gpu import KINDS, MosaicGpu, kernel_planes
from pallas_kernels import H100, check_planes
from pallas_kernels.mosaic_gpu import dispatch
from tests.ops.weights import FORMATS, random_weight

GPU = SimpleNamespace(platform="gpu", device_kind=H100.name)
needs_kernels = pytest.mark.skipif(jax.__version_info__ < (0, 11, 2), reason="the kernels need jax 0.11.2")
PROBLEM = Problem("Q4G64_F16S", 1, 256, 512, "bfloat16", "bfloat16")


@pytest.mark.parametrize("format", FORMATS)
def test_planes_are_those_of_the_kernels(format: str) -> None:
    w = random_weight(format, 256, 192)
    check_planes(kernel_planes(w.planes), kind=KINDS[format], n=256, k=192)


def test_reasons() -> None:
    assert "needs an NVIDIA GPU" in str(MosaicGpu().supports(PROBLEM, jax.devices()[0]))
    reason = MosaicGpu().supports(PROBLEM, GPU)  # what the kernels say of this jax, which sees no GPU
    assert reason == dispatch.unsupported_reason(
        kind="q4", m=1, n=256, k=512, x_dtype=jnp.bfloat16, out_dtype=jnp.bfloat16
    )
    assert reason is not None


@needs_kernels
def test_first_choice_where_the_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "visible_hardware", lambda: H100)
    w = random_weight("Q4G64_F16S", 256, 512)
    for m, kernel in ((1, "decode"), (64, "prefill")):
        x = jax.ShapeDtypeStruct((m, 512), jnp.bfloat16)
        found = explain_matmul(x, w, device=GPU)
        assert found.implementation == "mosaic_gpu"
        assert kernel in found.how
        wide = explain_matmul(jax.ShapeDtypeStruct((m, 512), jnp.float32), w, device=GPU)
        assert wide.implementation == "xla"
        assert "bfloat16" in wide.rejected["mosaic_gpu"]


@needs_kernels
@pytest.mark.parametrize("format", ["Q5G64_F16S", "NVFP4"])
@pytest.mark.parametrize("m", [2, 64])
def test_transformed_products_lower_to_a_kernel(monkeypatch: pytest.MonkeyPatch, format: str, m: int) -> None:
    monkeypatch.setattr(dispatch, "visible_hardware", lambda: H100)
    monkeypatch.setattr(sys.modules["ninfer_jax.ops.matmul"], "device_of", lambda x: GPU)
    w = random_weight(format, 256, 256)
    x = jax.ShapeDtypeStruct((m, 256), jnp.bfloat16)
    batch = jax.ShapeDtypeStruct((2, m, 256), jnp.bfloat16)
    gradient = jax.value_and_grad(lambda x, w: jnp.sum(matmul(x, w, preferred_element_type=jnp.float32)))
    for function, argument in ((matmul, x), (jax.vmap(matmul, (0, None)), batch), (gradient, x)):
        lowered = jax.jit(function).trace(argument, w).lower(lowering_platforms=("cuda",))
        assert "mosaic_gpu" in lowered.as_text()


@needs_kernels
def test_a_named_kernel_is_not_replaced_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "visible_hardware", lambda: H100)
    monkeypatch.setattr(sys.modules["ninfer_jax.ops.matmul"], "device_of", lambda x: GPU)
    w = random_weight("Q4G64_F16S", 256, 256)
    bank = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), w)
    x = jax.ShapeDtypeStruct((2, 1, 256), jnp.bfloat16)
    named = jax.vmap(lambda x, w: matmul(x, w, implementation="mosaic_gpu"))
    with pytest.raises(UnsupportedError, match="does not run under vmap over weights"):
        jax.jit(named).trace(x, bank)
    either = jax.vmap(lambda x, w: matmul(x, w, implementation=("mosaic_gpu", "xla")))
    assert jax.eval_shape(either, x, bank).shape == (2, 1, 256)
