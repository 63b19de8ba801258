"""NVFP4 weights times NVFP4 activations on Blackwell's block-scaled tensor cores. Opt-in by name; not run on a GPU.

    y[m, n] = f[m] / divisor * sum over k of (xc[m, k] * xs[m, k // 16]) * (wc[n, k] * ws[n, k // 16])

Both operands are E2M1 codes with an E4M3FN scale for every 16 columns, so this *quantizes activations*: another numeric
contract than every other kernel here, with a criterion of its own, relative L2 <= 0.16 against the bfloat16
activations, and never a default. The encoder is _activation_encoder's. The kernel is prefill_sm100's without its
unpackers: the copier brings the stored code plane and the stored 128x4 scale tiles of W as they are (no copy, no bit
moved), the multiplier copies a stage's scales from shared to tensor memory and multiplies (mxf4nvf4, 16 columns a
scale), the finisher applies f and the divisor. Rows of W are the 128 lanes. The interpreter has no block-scaled
multiply: there `_w4a4_plan.stand_in` multiplies the same values, exact in bfloat16. Source: gpu-kernels,
storage-layouts.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, BFloat16, Float

from pallas_kernels.errors import PlaneShapeError, UnsupportedKernelError
from pallas_kernels.hardware import B200, Hardware, visible_hardware
from pallas_kernels.mosaic_gpu import dispatch
from pallas_kernels.mosaic_gpu._activation_encoder import quantize_activations as quantize_activations
from pallas_kernels.mosaic_gpu._epilogue import Epilogue
from pallas_kernels.mosaic_gpu._prefill_plan_sm100 import row_layout
from pallas_kernels.mosaic_gpu._row_unpack import LANES
from pallas_kernels.mosaic_gpu._w4a4_plan import (
    PLANNER as PLANNER,
    W4A4Config as W4A4Config,
    W4A4Plan,
)
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.mosaic_gpu.prefill_sm100 import launch
from pallas_kernels.planes import WeightPlanes, check_planes

#: The name this implementation is asked for by.
IMPLEMENTATION = "mosaic_nvfp4_w4a4"
#: The relative L2 error, against bfloat16 activations, that is allowed.
CRITERION = 0.16


def unsupported_reason(
    *, kind: str, m: int, n: int, k: int, x_dtype: Any, out_dtype: Any, hardware: Hardware | None = None
) -> str | None:
    """Why this kernel does not run a problem, or None where it does.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      m: tokens.
      n: rows of the weight.
      k: columns of the weight.
      x_dtype: dtype of the activations.
      out_dtype: dtype of the result.
      hardware: the device; None for the first GPU jax sees.
    """
    if kind != "nvfp4":
        return f"{IMPLEMENTATION} multiplies nvfp4 weights; this one is {kind}"
    reason = dispatch.unsupported_reason(
        kind=kind, m=m, n=n, k=k, x_dtype=x_dtype, out_dtype=out_dtype, hardware=hardware
    )
    if reason is not None:
        return reason
    hardware = hardware or visible_hardware()
    if hardware is None or hardware.compute_capability != B200.compute_capability:
        there = "none" if hardware is None else f"{hardware.name} of compute capability {hardware.capability}"
        return f"{IMPLEMENTATION} needs a GPU of compute capability {B200.capability} (B200), there is {there}"
    return None


def matmul(
    x: BFloat16[Array, "m k"], planes: WeightPlanes, *, n: int, k: int, out_dtype: Any = None,
    config: W4A4Config | None = None, hardware: Hardware | None = None, interpret: Any = False, **fused: Any,
) -> Float[Array, "m n"]:  # fmt: skip
    """y = quantize_activations(x) @ W.T: `run` with everything checked and chosen.

    Args:
      x: bfloat16 [m, k].
      planes: raw planes of the [n, k] NVFP4 weight.
      n: rows of the weight.
      k: columns of the weight.
      out_dtype: bfloat16 or float32; None for x's dtype.
      config: a configuration instead of the chosen one.
      hardware: the device; None for the first GPU jax sees (a B200 when interpreting).
      interpret: False, or the parameters of Pallas' GPU interpreter.
      fused: bias, residual and activation, as `Call` has them.

    Returns:
      out_dtype [m, n], or [m, n / 2] for a gated product.

    Raises:
      PlaneShapeError: planes that are not those of such a weight.
      UnsupportedKernelError: the kernel does not run it; the message says why.
    """
    interpreted = interpret is not False and interpret is not None
    hardware = hardware or (B200 if interpreted else visible_hardware())
    out_dtype = jnp.dtype(x.dtype if out_dtype is None else out_dtype)
    reason = unsupported_reason(
        kind="nvfp4", m=x.shape[0], n=n, k=k, x_dtype=x.dtype, out_dtype=out_dtype, hardware=hardware
    )
    if reason is not None or hardware is None:
        raise UnsupportedKernelError(f"nvfp4 {list(x.shape)} @ [{n}, {k}].T: {reason}")
    if x.ndim != 2 or x.shape[1] != k:
        raise PlaneShapeError(f"x has shape {list(x.shape)}; a [{n}, {k}] weight needs [m, {k}]")
    check_planes(planes, kind="nvfp4", n=n, k=k)
    call = Call("nvfp4", n, k, out_dtype, hardware, interpret=interpret if interpreted else False, **fused)
    return run(x, planes, config or PLANNER.heuristic_config(_kernel_product(call, x.shape[0])), call)


def _kernel_product(call: Call, m: int) -> Product:
    """What the kernel itself computes: float32 where XLA still has something to do, and never a gated product."""
    later = call.gated or call.residual is not None
    return Product(call.kind, m, call.n, call.k, call.hardware, out_bytes=4 if later else call.product(m).out_bytes)


def run(x: jax.Array, planes: WeightPlanes, config: W4A4Config, call: Call) -> jax.Array:
    """The product that `Call` describes, of quantize_activations(x); XLA applies activation and residual."""
    m, later = x.shape[0], call.gated or call.residual is not None
    PLANNER.check_config(config, _kernel_product(call, m))
    codes, scales, factors = quantize_activations(jnp.pad(x, ((0, -m % 8), (0, 0))))
    plan = W4A4Plan(codes.shape[0], call.n, call.k, config, jnp.float32 if later else call.out_dtype)
    epilogue = Epilogue("nvfp4", call.bias is not None and not later, rows=LANES, row_layout=row_layout())
    operands = {
        "w": _fp4(jnp.asarray(planes.codes)),
        "x": _fp4(codes),
        "w_scales": _scale_tiles(jnp.asarray(planes.scales)),
        "x_scales": _scale_tiles(scales),
        "token_factors": jnp.pad(factors, (0, -factors.shape[0] % config.block_m)),
        **epilogue.operands(planes, call.bias, call.n),
    }
    y = launch(plan, epilogue, operands, call)[:m]
    return call.finish(y) if later else y


def _fp4(codes: jax.Array) -> jax.Array:
    """uint8 [rows, bytes] as float4_e2m1fn [rows, 2 * bytes]."""
    return lax.bitcast_convert_type(codes, jnp.float4_e2m1fn).reshape(codes.shape[0], -1)


def _scale_tiles(scales: jax.Array) -> jax.Array:
    """uint8 [rows / 128, k / 64, 32, 4, 4] as float8_e4m3fn [rows / 128, k / 64, 32, 16]."""
    return lax.bitcast_convert_type(scales.reshape(*scales.shape[:3], 16), jnp.float8_e4m3fn)
