"""A kernel on a small random weight, interpreted with race detection or run on a GPU, and what its result has to be.

The reference is a float64 dot of the bfloat16 inputs with the exactly decoded weights. Import it after a suite has made
sure that jax has the interpreter.
"""

import dataclasses
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.hardware import H100, Hardware
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.mosaic_gpu.planning import Product
from tests.pallas_kernels.weights import random_weight, random_x, relative_l2

INTERPRET: Any = plgpu.InterpretGPUParams(detect_races=True)  # pyright: ignore[reportAttributeAccessIssue]


def with_sms(hardware: Hardware, sms: int) -> Hardware:
    """The device with another number of multiprocessors, which the interpreter runs one after another."""
    return dataclasses.replace(hardware, sms=sms)


def run(
    kernel: Any, kind: str, m: int, n: int, k: int, config: Any, *, hardware: Hardware, out_dtype: Any = jnp.bfloat16,
    interpret: Any = INTERPRET, **fused: Any,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The result of a kernel's `run`, and the plain product of the reference, without what is fused."""
    planes, weight = random_weight(kind, n, k)
    x = random_x(m, k)
    call = lambda x, planes: kernel.run(
        x, planes, config, Call(kind, n, k, out_dtype, hardware, interpret=interpret, **fused)
    )
    # On a GPU as one program: compiling each operation around the kernel by itself takes longer than the kernel.
    y = (jax.jit(call) if interpret is False else call)(jnp.asarray(x), planes)
    return np.asarray(y), x.astype(np.float64) @ weight.T


def not_finite(kernel: Any, kind: str, n: int, k: int, m: int, config: Any, hardware: Hardware) -> None:
    """Tokens with an infinity or a NaN give what float64 gives; nothing of theirs meets padding or other tokens."""
    planes, weight = random_weight(kind, n, k)
    x = np.array(random_x(m, k))
    x[0, -1], x[1, 2], x[-1, 0] = np.inf, -np.inf, np.nan
    y = kernel.run(jnp.asarray(x), planes, config, Call(kind, n, k, jnp.float32, hardware, interpret=INTERPRET))
    with np.errstate(invalid="ignore"):  # an infinity times a zero code is a NaN
        reference = x.astype(np.float64) @ weight.T
    finite = np.isfinite(reference)
    assert not finite[[0, 1, -1]].any()
    assert finite[2:-1].all()
    np.testing.assert_array_equal(np.asarray(y)[~finite], reference[~finite])
    assert relative_l2(np.where(finite, y, 0), np.where(finite, reference, 0)) <= 1 / 256


def gated_case(m: int, n: int, seed: int = 3) -> tuple[dict[str, Any], Any]:
    """What a gated product with everything fused is called with, and plain product -> its float64 reference."""
    rng = np.random.default_rng(seed)
    bias = rng.standard_normal(n).astype(np.float32)
    residual = rng.standard_normal((m, n // 2)).astype(np.float32)

    def reference(product: np.ndarray) -> np.ndarray:
        gate, up = np.split(product + bias, 2, axis=1)
        return gate / (1 + np.exp(-gate)) * up + residual

    return {"activation": "silu", "bias": jnp.asarray(bias), "residual": jnp.asarray(residual)}, reference


def needs_gpu(compute_capability: tuple[int, int], seen: Hardware | None) -> Hardware:
    """The GPU jax sees; skips the test where it is none of that compute capability."""
    if seen is None or seen.compute_capability != compute_capability:
        pytest.skip(f"no GPU of compute capability {compute_capability}")
    return seen


def races_without_fences(monkeypatch: Any, capfd: Any, *case: Any, **call: Any) -> str:
    """What the interpreter says of a kernel that never fences shared memory; some versions raise what others print."""
    monkeypatch.setattr(plgpu, "commit_smem", lambda: None)
    try:
        run(*case, **call)
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    return capfd.readouterr().out


def check_choice(planner: Any, product: Product) -> None:
    """Every candidate is accepted, and the heuristic one is the cheapest and no faster than the roofline."""
    candidates = planner.candidate_configs(product)
    for config in candidates:
        planner.check_config(config, product)
    predicted = {config: planner.predicted_seconds(config, product) for config in candidates}
    chosen = planner.heuristic_config(product)
    assert predicted[chosen] == min(predicted.values())
    floor = product.hardware.memory_seconds(product.traffic - 2 * product.m * product.n * product.out_bytes)
    tensor = product.hardware.tensor_seconds(product.m, product.n, product.k)
    assert predicted[chosen] >= max(floor, tensor)


def small(kind: str, **fields: Any) -> Product:
    """A product of few tokens on an H100 unless told otherwise."""
    return Product(**{"kind": kind, "m": 64, "n": 512, "k": 512, "hardware": H100, **fields})
