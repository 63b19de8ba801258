"""The decode kernel as a function to compile ahead of time.

Leaves out compiling (aot), the other kernels and the shapes of the registered models (cases).
"""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.mosaic_gpu import decode_sm90
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
    chosen = decode_sm90.heuristic_config(kind=kind, m=m, n=n, k=k) if config is None else StreamConfig(**config)

    def function(x, planes, b):
        return decode_sm90.run(
            x,
            WeightPlanes(*planes),
            kind=kind,
            n=n,
            k=k,
            out_dtype=jnp.dtype(out),
            config=chosen,
            bias=b,
            activation=activation,
        )

    shape = jax.ShapeDtypeStruct
    return function, (
        shape((m, k), jnp.bfloat16),
        tuple(plane_shapes(kind, n, k)),
        shape((n,), jnp.float32) if bias else None,
    )
