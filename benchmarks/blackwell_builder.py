"""The Blackwell kernels as functions to compile ahead of time: what `benchmarks.aot` and tests hand to the compiler.

Leaves out compiling (aot) and the shapes of the registered models (cases).
"""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.mosaic_gpu import decode_sm100, nvfp4_w4a4, prefill_sm100
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
    problem: dict[str, Any] = {"n": n, "k": k, "out_dtype": dtype, "activation": activation}
    if implementation == nvfp4_w4a4.IMPLEMENTATION:
        kernel = nvfp4_w4a4.run
        chosen: Any = (
            nvfp4_w4a4.heuristic_config(m=m, n=n, out_bytes=4) if config is None else nvfp4_w4a4.W4A4Config(**config)
        )
    elif m <= decode_sm100.MAX_M:
        kernel, problem["kind"] = decode_sm100.run, kind
        chosen = DecodeConfig(**config) if config else decode_sm100.heuristic_config(kind=kind, m=m, n=n, k=k)
    else:
        kernel, problem["kind"] = prefill_sm100.run, kind
        chosen = (
            PrefillConfig(**config)
            if config
            else prefill_sm100.heuristic_config(kind=kind, m=m, n=n, k=k, gated=gated, out_bytes=dtype.itemsize)
        )

    def function(x, planes, b, r):
        return kernel(x, WeightPlanes(*planes), config=chosen, bias=b, residual=r, **problem)

    shape = jax.ShapeDtypeStruct
    arguments = (
        shape((m, k), jnp.bfloat16),
        tuple(plane_shapes(kind, n, k)),
        shape((n,), jnp.float32) if bias else None,
        shape((m, n // 2 if gated else n), dtype) if residual else None,
    )
    return function, arguments
