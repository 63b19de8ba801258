"""The portable kernel as a function to compile ahead of time: what `benchmarks.aot` and its tests hand to the compiler.

Leaves out compiling (aot) and the shapes of the registered models (cases).
"""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.hardware import KNOWN_HARDWARE
from pallas_kernels.mosaic_gpu import portable_mma
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
    dtype = jnp.dtype(out)
    problem: dict[str, Any] = {"kind": kind, "n": n, "k": k}
    chosen = (
        PortableConfig(**config)
        if config is not None
        else portable_mma.heuristic_config(
            **problem, m=m, gated=activation is not None, out_bytes=dtype.itemsize, hardware=KNOWN_HARDWARE[hardware]
        )
    )

    def function(x, planes, b):
        return portable_mma.run(
            x, WeightPlanes(*planes), **problem, out_dtype=dtype, config=chosen, bias=b, activation=activation
        )

    shape = jax.ShapeDtypeStruct
    return function, (
        shape((m, k), jnp.bfloat16),
        tuple(plane_shapes(kind, n, k)),
        shape((n,), jnp.float32) if bias else None,
    )
