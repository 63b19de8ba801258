"""The prefill kernel as a function to compile ahead of time: what `benchmarks.aot` and its tests hand to the compiler.

Leaves out compiling (aot) and the shapes of the registered models (cases).
"""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.hardware import H100
from pallas_kernels.mosaic_gpu import prefill_sm90
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.planes import WeightPlanes, plane_shapes
from pallas_kernels.tiling import PrefillConfig


def prefill(
    *,
    kind: str,
    m: int,
    n: int,
    k: int,
    out: str = "bfloat16",
    activation: str | None = None,
    bias: bool = False,
    residual: bool = False,
    config: dict[str, int] | None = None,
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
      residual: whether there is a residual.
      config: fields of a `PrefillConfig`; None for the heuristic one.

    Returns:
      The function and the shapes of its arguments.
    """
    gated, dtype = activation is not None, jnp.dtype(out)
    product = Product(kind, m, n, k, H100, gated, dtype.itemsize)
    chosen = prefill_sm90.PLANNER.heuristic_config(product) if config is None else PrefillConfig(**config)

    def function(x, planes, b, r):
        call = Call(kind, n, k, dtype, H100, b, r, activation)
        return prefill_sm90.run(x, WeightPlanes(*planes), chosen, call)

    shape = jax.ShapeDtypeStruct
    columns = n // 2 if gated else n
    arguments = (
        shape((m, k), jnp.bfloat16),
        tuple(plane_shapes(kind, n, k)),
        shape((n,), jnp.float32) if bias else None,
        shape((m, columns), dtype) if residual else None,
    )
    return function, arguments
