"""The portable kernel as a function to compile ahead of time: what `benchmarks.aot` and its tests hand to the compiler.

Leaves out compiling (aot) and the shapes of the registered models (cases).
"""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.hardware import KNOWN_HARDWARE
from pallas_kernels.mosaic_gpu import portable_mma
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.planes import WeightPlanes, plane_shapes
from pallas_kernels.tiling import PortableConfig


def matmul(
    *,
    kind: str,
    m: int,
    n: int,
    k: int,
    out: str = "bfloat16",
    activation: str | None = None,
    bias: bool = False,
    config: dict[str, int] | None = None,
    hardware: str = "a100",
) -> tuple[Any, tuple[Any, ...]]:
    """The kernel for one problem.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      m: tokens.
      n: rows of the weight.
      k: columns of the weight.
      out: dtype of the result.
      activation: activation of a gated product, or None.
      bias: whether there is a bias.
      config: fields of a `PortableConfig`; None for the heuristic one of `hardware`.
      hardware: a key of `KNOWN_HARDWARE`.

    Returns:
      The function and the shapes of its arguments.
    """
    dtype, device = jnp.dtype(out), KNOWN_HARDWARE[hardware]
    product = Product(kind, m, n, k, device, activation is not None, dtype.itemsize)
    chosen = portable_mma.PLANNER.heuristic_config(product) if config is None else PortableConfig(**config)

    def function(x, planes, b):
        call = Call(kind, n, k, dtype, device, b, activation=activation)
        return portable_mma.run(x, WeightPlanes(*planes), chosen, call)

    shape = jax.ShapeDtypeStruct
    return function, (
        shape((m, k), jnp.bfloat16),
        tuple(plane_shapes(kind, n, k)),
        shape((n,), jnp.float32) if bias else None,
    )
