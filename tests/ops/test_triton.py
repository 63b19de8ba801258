"""The plug to the Triton kernels, as far as it goes without a GPU: order, reasons, and what it lowers to."""

import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from ninfer_jax.arrays import partition_specs
from ninfer_jax.ops import IMPLEMENTATIONS, Problem, explain_matmul, matmul
from ninfer_jax.ops.triton import Triton
from pallas_kernels.hardware import A100
from pallas_kernels.triton import dispatch
from tests.ops.weights import random_weight

GPU = SimpleNamespace(platform="gpu", device_kind=A100.name)
PROBLEM = Problem("Q4G64_F16S", 1, 256, 512, "bfloat16", "bfloat16")
MISSING = dispatch.missing_reason()


def test_comes_after_mosaic_gpu_and_before_xla() -> None:
    assert list(IMPLEMENTATIONS)[:3] == ["mosaic_gpu", "triton", "xla"]


def test_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "needs an NVIDIA GPU" in str(Triton().supports(PROBLEM, jax.devices()[0]))
    volta = SimpleNamespace(platform="gpu", device_kind="Tesla V100", compute_capability="7.0", core_count=80)
    monkeypatch.setattr(dispatch, "missing_reason", lambda: None)
    assert "compute capability 7.0" in str(Triton().supports(PROBLEM, volta))
    monkeypatch.setattr(dispatch, "missing_reason", lambda: "triton not installed: install the extra `triton`")
    assert "install the extra `triton`" in str(Triton().supports(PROBLEM, GPU))


def test_takes_what_mosaic_gpu_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "missing_reason", lambda: None)
    w, x = random_weight("Q4G64_F16S", 256, 512), jax.ShapeDtypeStruct((1, 512), jnp.bfloat16)
    found = explain_matmul(x, w, device="a100", implementation=("triton", "xla"))
    assert (found.implementation, dict(found.rejected)) == ("triton", {})
    assert "TritonConfig(rows=64, tokens=16" in found.how


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_products_and_their_transformations_lower_to_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "visible_hardware", lambda: A100)
    monkeypatch.setattr(sys.modules["ninfer_jax.ops.matmul"], "resolve_device", lambda device, x: GPU)
    w = random_weight("Q5G64_F16S", 256, 256)
    x, batch = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((2, 256), (2, 3, 256)))
    product = lambda x, w: matmul(x, w, implementation="triton")
    gradient = jax.value_and_grad(lambda x, w: jnp.sum(product(x, w).astype(jnp.float32)))
    bank = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), w)
    rows = (PartitionSpec(), partition_specs(w, PartitionSpec("model")))
    mesh = jax.make_mesh((1,), ("model",), axis_types=(AxisType.Auto,))
    manual = jax.shard_map(product, mesh=mesh, in_specs=rows, out_specs=PartitionSpec(None, "model"))
    cases = [(product, x, w), (jax.vmap(product, (0, None)), batch, w), (jax.vmap(product), batch, bank)]
    for function, *arguments in (*cases, (gradient, x, w), (manual, x, w)):
        try:
            lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
        except AttributeError as error:
            if "TritonKernel" in str(error):
                pytest.skip("jax's CUDA plugin is not installed: install the extra `aot`")
            raise
        assert "triton_kernel_call" in lowered.as_text()
