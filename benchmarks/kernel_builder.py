"""The kernels that multiply, as functions to compile ahead of time: what `benchmarks.aot` and its tests ask for.

Leaves out compiling (aot), row gathers (gather_builder) and the shapes of the registered models (cases).
"""

import dataclasses
import importlib
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.hardware import KNOWN_HARDWARE
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.planes import WeightPlanes, plane_shapes

#: The kernel with four-bit activations writes float32 sums; its name is that of the implementation.
_W4A4 = {"mosaic_nvfp4_w4a4": "nvfp4_w4a4"}


def matmul(
    *,
    kernel: str,
    kind: str,
    m: int,
    n: int,
    k: int,
    hardware: str,
    out: str = "bfloat16",
    activation: str | None = None,
    bias: bool = False,
    residual: bool = False,
    config: dict[str, int] | None = None,
) -> tuple[Any, tuple[Any, ...]]:
    """A kernel for one problem.

    Args:
      kernel: a name of `CONFIG_TYPES`, or "mosaic_nvfp4_w4a4".
      kind: a name of `WEIGHT_KINDS`.
      m: tokens.
      n: rows of the weight.
      k: columns of the weight.
      hardware: a key of `KNOWN_HARDWARE`.
      out: dtype of the result.
      activation: activation of a gated product, or None.
      bias: whether there is a bias.
      residual: whether there is a residual.
      config: fields in which the configuration differs from the heuristic one.

    Returns:
      The function and the shapes of its arguments.
    """
    gated, dtype, device = activation is not None, jnp.dtype(out), KNOWN_HARDWARE[hardware]
    module = importlib.import_module(f"pallas_kernels.mosaic_gpu.{_W4A4.get(kernel, kernel)}")
    product = Product(kind, m, n, k, device, gated, 4 if kernel in _W4A4 else dtype.itemsize)
    chosen = dataclasses.replace(module.PLANNER.heuristic_config(product), **(config or {}))

    def function(x, planes, b, r):
        return module.run(x, WeightPlanes(*planes), chosen, Call(kind, n, k, dtype, device, b, r, activation))

    shape = jax.ShapeDtypeStruct
    arguments = (
        shape((m, k), jnp.bfloat16),
        tuple(plane_shapes(kind, n, k)),
        shape((n,), jnp.float32) if bias else None,
        shape((m, n // 2 if gated else n), dtype) if residual else None,
    )
    return function, arguments
