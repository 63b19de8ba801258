"""The `triton` implementation: the Triton kernels of `pallas_kernels`, plugged in after `mosaic_gpu`.

For the GPUs and the releases of jax that the other kernels are not for. It needs the extra `triton`; where that or a
GPU is missing, it says so. The kernels have not run on a GPU.
"""

import importlib
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ninfer_jax.ops.mosaic_gpu import KINDS, kernel_planes
from ninfer_jax.ops.registry import Device, Implementation, Problem, device_text
from pallas_kernels import hardware_of


class Triton(Implementation):
    """Weights unpacked on the way to the tensor cores, by Triton's compiler."""

    name: ClassVar[str] = "triton"

    def supports(self, problem: Problem, device: Device) -> str | None:
        """What the kernels themselves answer, on a GPU."""
        if device.platform not in ("gpu", "cuda"):
            return f"needs an NVIDIA GPU, the device is {device_text(device)}"
        return _kernels().unsupported_reason(
            kind=KINDS[problem.format],
            m=problem.m,
            n=problem.n,
            k=problem.k,
            x_dtype=jnp.dtype(problem.x_dtype),
            out_dtype=jnp.dtype(problem.out_dtype),
            hardware=hardware_of(device),
        )

    def describe(self, problem: Problem, device: Device) -> str:
        """The configuration that the kernels choose."""
        return _kernels().explain(m=problem.m, n=problem.n, k=problem.k, hardware=hardware_of(device))

    def product(
        self, x: Array, planes: Any, problem: Problem, platform: str, operands: tuple[Array, ...] = ()
    ) -> Array:
        """`y[m, n] = sum_k x[m, k] * w[n, k]` by a kernel, float32 accumulators."""
        kernel = partial(
            _kernels().matmul,
            kind=KINDS[problem.format],
            n=problem.n,
            k=problem.k,
            out_dtype=jnp.dtype(problem.out_dtype),
        )
        # A program of its own: it keeps its constants to itself, and a partitioned function may have none.
        return jax.jit(kernel)(x[:, : problem.k], kernel_planes(planes))


def _kernels() -> Any:
    # Not before a GPU is there: nothing else needs them.
    return importlib.import_module("pallas_kernels.triton")
