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


@needs_kernels
@pytest.mark.parametrize("format", ["Q5G64_F16S", "NVFP4"])
@pytest.mark.parametrize("m", [2, 64])
def test_transformed_products_lower_to_a_kernel(monkeypatch: pytest.MonkeyPatch, format: str, m: int) -> None:
    monkeypatch.setattr(dispatch, "visible_hardware", lambda: H100)
    monkeypatch.setattr(sys.modules["ninfer_jax.ops.matmul"], "resolve_device", lambda device, x: GPU)
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
    monkeypatch.setattr(sys.modules["ninfer_jax.ops.matmul"], "resolve_device", lambda device, x: GPU)
    w = random_weight("Q4G64_F16S", 256, 256)
    bank = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), w)
    x = jax.ShapeDtypeStruct((2, 1, 256), jnp.bfloat16)
    named = jax.vmap(lambda x, w: matmul(x, w, implementation="mosaic_gpu"))
    with pytest.raises(UnsupportedError, match="does not run under vmap over weights"):
        jax.jit(named).trace(x, bank)
    either = jax.vmap(lambda x, w: matmul(x, w, implementation=("mosaic_gpu", "xla")))
    assert jax.eval_shape(either, x, bank).shape == (2, 1, 256)
