"""The `mosaic_gpu` implementation: the GPU kernels of `pallas_kernels`, plugged in.

Always registered. Where the kernels cannot run (another device, an older jax, a shape or dtype they do not take), it
says why; nothing is imported before a GPU is there. Gradients are products of `xla`.
"""

import importlib
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ninfer_jax.ops.registry import Device, Implementation, Problem, device_text
from ninfer_jax.planes import GroupedPlanes, NVFP4Planes
from pallas_kernels import WeightPlanes, hardware_of

KINDS = {
    "Q4G64_F16S": "q4",
    "Q5G64_F16S": "q5",
    "Q6G64_F16S": "q6",
    "W8G32_F16S": "w8",
    "NVFP4": "nvfp4",
    "FP8_E4M3FN_ROW_BF16S": "fp8",
}


class MosaicGpu(Implementation):
    """Weights unpacked on the way to the tensor cores, on the GPUs that the kernels are written for."""

    name: ClassVar[str] = "mosaic_gpu"

    def supports(self, problem: Problem, device: Device) -> str | None:
        """What the kernels themselves answer, on a GPU."""
        if device.platform not in ("gpu", "cuda"):
            return f"needs an NVIDIA GPU, the device is {device_text(device)}"
        try:
            kernels = _kernels()
        except ImportError as error:
            return f"the kernels cannot be imported here: {error}"
        return kernels.unsupported_reason(
            kind=KINDS[problem.format],
            m=problem.m,
            n=problem.n,
            k=problem.k,
            x_dtype=jnp.dtype(problem.x_dtype),
            out_dtype=jnp.dtype(problem.out_dtype),
            hardware=hardware_of(device),
        )

    def describe(self, problem: Problem, device: Device) -> str:
        """The kernel and configuration that the kernels' own explanation names."""
        explanation = _kernels().explain(
            kind=KINDS[problem.format],
            m=problem.m,
            n=problem.n,
            k=problem.k,
            gated=problem.epilogue.activation is not None,
            out_dtype=jnp.dtype(problem.out_dtype),
            hardware=hardware_of(device),
        )
        return str(explanation)

    def cannot_fuse(self, problem: Problem, device: Device) -> str | None:
        """A residual enters the kernel in the type of the result."""
        residual, out = problem.epilogue.residual, problem.out_dtype
        if residual is not None and jnp.promote_types(residual, out) != jnp.dtype(out):
            return f"a {residual} residual would be rounded to {out} before it is added"
        return self.supports(problem, device)

    def product(
        self, x: Array, planes: Any, problem: Problem, platform: str, operands: tuple[Array, ...] = ()
    ) -> Array:
        """`y[m, n] = sum_k x[m, k] * w[n, k]` and its epilogue by a kernel, float32 accumulators."""
        out_dtype, activation = jnp.dtype(problem.out_dtype), problem.epilogue.activation
        kernel = partial(
            _kernels().matmul if activation is None else partial(_kernels().gated_matmul, activation=activation),
            kind=KINDS[problem.format],
            n=problem.n,
            k=problem.k,
            out_dtype=out_dtype,
        )
        bias, residual = problem.epilogue.terms(operands)
        residual = None if residual is None else residual.astype(out_dtype)
        # A program of its own: it keeps its constants to itself, and a partitioned function may have none.
        return jax.jit(kernel)(x[:, : problem.k], kernel_planes(planes), bias=bias, residual=residual)


def _kernels() -> Any:
    # Not before a GPU is there: the kernels need a newer jax than the rest of the package.
    return importlib.import_module("pallas_kernels.mosaic_gpu")


def kernel_planes(planes: Any) -> Any:
    """The same arrays in the kernels' own planes tuple."""
    if isinstance(planes, GroupedPlanes):
        return WeightPlanes(planes.base, planes.high, planes.scales, None)
    divisor = planes.divisor if isinstance(planes, NVFP4Planes) else None
    return WeightPlanes(planes.codes, None, planes.scales, divisor)
