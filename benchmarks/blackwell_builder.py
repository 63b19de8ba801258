"""The Blackwell kernels as functions to compile ahead of time: what `benchmarks.aot` and tests hand to the compiler.

Leaves out compiling (aot) and the shapes of the registered models (cases).
"""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.hardware import B200
from pallas_kernels.mosaic_gpu import decode_sm100, nvfp4_w4a4, prefill_sm100
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.planes import WeightPlanes, plane_shapes
from pallas_kernels.tiling import DecodeConfig, PrefillConfig


def matmul(
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
    implementation: str | None = None,
) -> tuple[Any, tuple[Any, ...]]:
    """The kernel for one problem: decode up to 16 tokens, else prefill, or the four-bit activation one by name.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      m: tokens.
      n: rows of the weight.
      k: columns of the weight.
      out: dtype of the result.
      activation: activation of a gated product, or None.
      bias: whether there is a bias.
      residual: whether there is a residual.
      config: fields of the kernel's configuration; None for the heuristic one.
      implementation: "mosaic_nvfp4_w4a4" for that kernel, or None.

    Returns:
      The function and the shapes of its arguments.
    """
    gated, dtype = activation is not None, jnp.dtype(out)
    kernel: Any
    if implementation == nvfp4_w4a4.IMPLEMENTATION:
        kernel, config_type = nvfp4_w4a4, nvfp4_w4a4.W4A4Config
        product = Product(kind, m, n, k, B200, out_bytes=4)
    elif m <= decode_sm100.MAX_M:
        kernel, config_type, product = decode_sm100, DecodeConfig, Product(kind, m, n, k, B200)
    else:
        kernel, config_type = prefill_sm100, PrefillConfig
        product = Product(kind, m, n, k, B200, gated, dtype.itemsize)
    chosen = config_type(**config) if config else kernel.PLANNER.heuristic_config(product)

    def function(x, planes, b, r):
        return kernel.run(x, WeightPlanes(*planes), chosen, Call(kind, n, k, dtype, B200, b, r, activation))

    shape = jax.ShapeDtypeStruct
    arguments = (
        shape((m, k), jnp.bfloat16),
        tuple(plane_shapes(kind, n, k)),
        shape((n,), jnp.float32) if bias else None,
        shape((m, n // 2 if gated else n), dtype) if residual else None,
    )
    return function, arguments
