"""The `mosaic_nvfp4_w4a4` implementation: NVFP4 weights times activations quantized to NVFP4, on Blackwell.

    relative L2 error against the product of the unquantized activations <= 0.16

A numeric contract of its own, so it is never picked unless it is named. Leaves out the kernel and its activation
encoder (pallas_kernels.mosaic_gpu.nvfp4_w4a4).
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


class MosaicNvfp4W4A4(Implementation):
    """Block-scaled four-bit multiplies, on Blackwell."""

    name: ClassVar[str] = "mosaic_nvfp4_w4a4"
    by_name_only: ClassVar[bool] = True

    def supports(self, problem: Problem, device: Device) -> str | None:
        """What the kernel itself answers, on a GPU."""
        if device.platform not in ("gpu", "cuda"):
            return f"needs an NVIDIA GPU of compute capability 10.0, the device is {device_text(device)}"
        try:
            kernel = _kernel()
        except ImportError as error:
            return f"the kernel cannot be imported here: {error}"
        return kernel.unsupported_reason(
            kind=KINDS[problem.format],
            m=problem.m,
            n=problem.n,
            k=problem.k,
            x_dtype=jnp.dtype(problem.x_dtype),
            out_dtype=jnp.dtype(problem.out_dtype),
            hardware=hardware_of(device),
        )

    def describe(self, problem: Problem, device: Device) -> str:
        """That it quantizes activations."""
        return "pallas_kernels, activations quantized to NVFP4 and multiplied as four-bit codes"

    def product(
        self, x: Array, planes: Any, problem: Problem, platform: str, operands: tuple[Array, ...] = ()
    ) -> Array:
        """`y[m, n] = sum_k q(x)[m, k] * w[n, k]` by the kernel, float32 accumulators."""
        kernel = partial(_kernel().matmul, n=problem.n, k=problem.k, out_dtype=jnp.dtype(problem.out_dtype))
        # A program of its own: it keeps its constants to itself, and a partitioned function may have none.
        return jax.jit(kernel)(x[:, : problem.k], kernel_planes(planes))


def _kernel() -> Any:
    # Not before a GPU is there: the kernel needs a newer jax than the rest of the package.
    return importlib.import_module("pallas_kernels.mosaic_gpu.nvfp4_w4a4")
