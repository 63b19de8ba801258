"""Which kernel a problem gets, why it gets none, and the public calls end to end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import H100, H200, PlaneShapeError, UnsupportedKernelError
from pallas_kernels.hardware import Hardware
from pallas_kernels.mosaic_gpu import dispatch, explain, gated_matmul, lower_bound, matmul, unsupported_reason
from tests.pallas_kernels.weights import check_close, random_weight, random_x

OLD = jax.__version_info__ < (0, 11, 2)
needs_kernels = pytest.mark.skipif(OLD, reason="the GPU kernels need jax >= 0.11.2")
PROBLEM = {"kind": "q4", "m": 1, "n": 256, "k": 256, "x_dtype": jnp.bfloat16, "out_dtype": jnp.bfloat16}
TURING = Hardware("NVIDIA T4", (7, 5), 40, 65536, 65536, 1, 1, 3e11, 6e13, 1.6e9)


@pytest.mark.skipif(not OLD, reason="this jax has the kernels")
def test_an_old_jax_is_the_reason():
    reason = unsupported_reason(**PROBLEM, hardware=H100)
    assert "is older than 0.11.2" in str(reason)


@needs_kernels
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "q3"}, "weight kind 'q3' is not one of q4"),
        ({"hardware": TURING}, "NVIDIA T4 has compute capability 7.5; the kernels need 8.0"),
        ({"x_dtype": jnp.float32}, "activations are float32; the kernels take bfloat16"),
        ({"out_dtype": jnp.float16}, "the result would be float16; the kernels give bfloat16 or float32"),
        ({"m": 0}, "m=0: the kernels need at least one token"),
        ({"kind": "nvfp4", "k": 80}, "columns of 64"),
    ],
)
def test_unsupported_problems_say_why(change, reason):
    said = unsupported_reason(**{**PROBLEM, "hardware": H100, **change})
    assert reason in str(said)


@needs_kernels
def test_a_machine_without_a_gpu_says_so():
    if dispatch.visible_hardware() is not None:
        pytest.skip("there is a GPU")
    reason = unsupported_reason(**PROBLEM)
    assert "jax sees no GPU" in str(reason)
    with pytest.raises(UnsupportedKernelError, match="jax sees no GPU"):
        explain(kind="q4", m=1, n=256, k=256)


@needs_kernels
@pytest.mark.parametrize("hardware", [H100, H200])
def test_explanation_names_kernel_configuration_and_bound(hardware):
    expected = {1: ("decode_sm90", "memory"), 16: ("decode_sm90", "memory"), 17: ("prefill_sm90", "memory")}
    for m, (kernel, bound) in {**expected, 4096: ("prefill_sm90", "tensor")}.items():
        found = explain(kind="q4", m=m, n=34816, k=5120, hardware=hardware)
        assert (found.kernel, found.bound, found.source) == (kernel, bound, "heuristic")
        assert found.hardware == hardware.name
        assert str(found.config) in str(found)
    weight = 34816 * 5120 * 4.25 / 8
    floor = (weight + 2 * 5120 + 2 * 34816) / hardware.memory_bandwidth
    assert explain(kind="q4", m=1, n=34816, k=5120, hardware=hardware).lower_bound_us == pytest.approx(floor * 1e6)


@needs_kernels
def test_a_given_configuration_is_reported_as_such():
    config = dispatch.heuristic_config(kind="w8", m=4, n=256, k=256)
    assert explain(kind="w8", m=4, n=256, k=256, hardware=H100, config=config).source == "given"
    assert config in dispatch.candidate_configs(kind="w8", m=4, n=256, k=256)


@needs_kernels
def test_lower_bound_grows_with_tokens():
    seconds = [lower_bound(kind="fp8", m=m, n=4096, k=4096)[1] for m in (1, 16, 512, 4096)]
    assert seconds == sorted(seconds)


@needs_kernels
@pytest.mark.timeout(180)
@pytest.mark.parametrize("m", [3, 20])
def test_products_end_to_end(m, no_races):
    import jax.experimental.pallas.mosaic_gpu as plgpu

    n, k = 128, 256
    planes, weight = random_weight("q4", n, k)
    x = random_x(m, k)
    rng = np.random.default_rng(5)
    bias, residual = rng.standard_normal(n).astype(np.float32), rng.standard_normal((m, n)).astype(np.float32)
    small = Hardware(**{**vars(H100), "sms": 2})
    interpret = plgpu.InterpretGPUParams(detect_races=True)  # pyright: ignore[reportAttributeAccessIssue]
    call = {"kind": "q4", "n": n, "k": k, "hardware": small, "interpret": interpret}
    y = matmul(jnp.asarray(x), planes, bias=jnp.asarray(bias), residual=jnp.asarray(residual, jnp.bfloat16), **call)
    assert y.dtype == jnp.bfloat16
    product = x.astype(np.float64) @ weight.T
    check_close(np.asarray(y), product + bias + np.asarray(residual.astype(x.dtype), np.float64))
    gate, up = np.split(product, 2, axis=1)
    y = gated_matmul(jnp.asarray(x), planes, **call)
    check_close(np.asarray(y), gate / (1 + np.exp(-gate)) * up)


@needs_kernels
def test_operands_that_do_not_fit_are_refused():
    planes, _ = random_weight("q4", 8, 64)
    with pytest.raises(PlaneShapeError, match=r"x has shape \[2, 32\]; a \[8, 64\] weight needs \[m, 64\]"):
        matmul(jnp.zeros((2, 32), jnp.bfloat16), planes, kind="q4", n=8, k=64, hardware=H100)
    with pytest.raises(PlaneShapeError, match="plane codes"):
        matmul(jnp.zeros((2, 64), jnp.bfloat16), planes, kind="q4", n=9, k=64, hardware=H100)
    with pytest.raises(PlaneShapeError, match="n must be even"):
        gated_matmul(jnp.zeros((2, 64), jnp.bfloat16), planes, kind="q4", n=9, k=64, hardware=H100)
    with pytest.raises(UnsupportedKernelError, match="activations are float32"):
        matmul(jnp.zeros((2, 64), jnp.float32), planes, kind="q4", n=8, k=64, hardware=H100)
