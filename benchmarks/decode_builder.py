"""The decode kernel as a function to compile ahead of time.

Leaves out compiling (aot), the other kernels and the shapes of the registered models (cases).
"""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.hardware import H100
from pallas_kernels.mosaic_gpu import decode_sm90
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.planes import WeightPlanes, plane_shapes
from pallas_kernels.tiling import StreamConfig


def decode(
    *,
    kind: str,
    m: int,
    n: int,
    k: int,
    out: str = "bfloat16",
    activation: str | None = None,
    bias: bool = False,
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
      config: fields of a `StreamConfig`; None for the heuristic one.

    Returns:
      The function and the shapes of its arguments.
    """
    product = Product(kind, m, n, k, H100)
    chosen = decode_sm90.PLANNER.heuristic_config(product) if config is None else StreamConfig(**config)

    def function(x, planes, b):
        call = Call(kind, n, k, jnp.dtype(out), H100, b, activation=activation)
        return decode_sm90.run(x, WeightPlanes(*planes), chosen, call)

    shape = jax.ShapeDtypeStruct
    return function, (
        shape((m, k), jnp.bfloat16),
        tuple(plane_shapes(kind, n, k)),
        shape((n,), jnp.float32) if bias else None,
    )
