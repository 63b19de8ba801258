"""The row gather as a function to compile ahead of time: what `benchmarks.aot` and its tests hand to the compiler.

Leaves out compiling (aot) and the shapes of the registered models (cases).
"""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.hardware import KNOWN_HARDWARE
from pallas_kernels.mosaic_gpu import gather
from pallas_kernels.planes import WeightPlanes, plane_shapes
from pallas_kernels.tiling import GatherConfig


def take_rows(
    *,
    kind: str,
    m: int,
    n: int,
    k: int,
    out: str = "bfloat16",
    config: dict[str, int] | None = None,
    hardware: str = "h100",
) -> tuple[Any, tuple[Any, ...]]:
    """The kernel for one problem.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      m: rows to take.
      n: rows of the weight.
      k: columns of the weight.
      out: dtype of the result.
      config: fields of a `GatherConfig`; None for the heuristic one of `hardware`.
      hardware: a key of `KNOWN_HARDWARE`.

    Returns:
      The function and the shapes of its arguments.
    """
    chosen = None if config is None else GatherConfig(**config)

    def function(ids, planes):
        return gather.take_rows(
            WeightPlanes(*planes), ids, kind=kind, n=n, k=k, out_dtype=jnp.dtype(out), config=chosen,
            hardware=KNOWN_HARDWARE[hardware],
        )  # fmt: skip

    return function, (jax.ShapeDtypeStruct((m,), jnp.int32), tuple(plane_shapes(kind, n, k)))
