"""NVFP4 weights times NVFP4 activations on Blackwell's block-scaled tensor cores. Opt-in by name; not run on a GPU.

    y[m, n] = f[m] / divisor * sum over k of (xc[m, k] * xs[m, k // 16]) * (wc[n, k] * ws[n, k // 16])

Both operands are E2M1 codes with an E4M3FN scale for every 16 columns, so this *quantizes activations*: another numeric
contract than every other kernel here, with a criterion of its own, relative L2 <= 0.16 against the bfloat16
activations, and never a default. The encoder is _activation_encoder's. The kernel is prefill_sm100's without its
unpackers: the copier brings the stored code plane and the stored 128x4 scale tiles of W as they are (no copy, no bit
moved), the multiplier copies a stage's scales from shared to tensor memory and multiplies (mxf4nvf4, 16 columns a
scale), the finisher applies f and the divisor. Rows of W are the 128 lanes. The interpreter has no block-scaled
multiply: there `_stand_in` multiplies the same values, exact in bfloat16. Source: gpu-kernels, storage-layouts.
"""

import dataclasses
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, BFloat16, Float

from pallas_kernels.errors import PlaneShapeError, UnsupportedKernelError
from pallas_kernels.hardware import B200, Hardware, visible_hardware
from pallas_kernels.mosaic_gpu import dispatch
from pallas_kernels.mosaic_gpu._activation_encoder import quantize_activations as quantize_activations
from pallas_kernels.mosaic_gpu._epilogue import Epilogue, finish_sums
from pallas_kernels.mosaic_gpu._prefill_plan_sm100 import (
    OUT_SLOTS,
    OUT_TOKENS,
    TMEM_COLUMNS,
    PrefillPlan,
    row_layout,
)
from pallas_kernels.mosaic_gpu._row_tiles import tile_transforms
from pallas_kernels.mosaic_gpu._row_unpack import LANES, rows_twin
from pallas_kernels.mosaic_gpu.prefill_sm100 import launch
from pallas_kernels.planes import WeightPlanes, check_planes
from pallas_kernels.tiling import require_fits, require_one_of

#: The name this implementation is asked for by.
IMPLEMENTATION = "mosaic_nvfp4_w4a4"
#: The relative L2 error, against bfloat16 activations, that is allowed.
CRITERION = 0.16
_BLOCK, _SCALE_TILE = 16, 64
_SMEM_RESERVE = 2048


@dataclasses.dataclass(frozen=True)
class W4A4Config:
    """How the kernel cuts up y = x @ W.T.

    Attributes:
      block_m: rows of x a block computes at a time, 128 or 256: whole scale tiles.
      block_k: columns of x and W in one stage, 128 or 256.
      stages: stages of the ring that the copier fills ahead of the multiplier.
    """

    block_m: int = 128
    block_k: int = 256
    stages: int = 4

    def __post_init__(self) -> None:
        require_one_of("block_m", self.block_m, (128, 256))
        require_one_of("block_k", self.block_k, (128, 256))
        require_one_of("stages", self.stages, tuple(range(2, 9)))


class _Plan(PrefillPlan):
    """Sizes of one launch, and how its stages are copied and multiplied."""

    def __init__(self, m: int, n: int, k: int, config: W4A4Config, out_dtype: Any):
        self.config, self.kind, self.parts, self.unpackers = config, "nvfp4", 1, 0
        self.m, self.n_out, self.out_dtype = m, n, jnp.dtype(out_dtype)
        self.m_tiles, self.n_tiles = -(-m // config.block_m), n // LANES
        self.k_steps = self.steps = -(-k // config.block_k)
        self.split_k, self.tiles = 1, self.m_tiles * self.n_tiles
        self.padded_rows, self.out_tokens = n, OUT_TOKENS
        self.out_tile = 128 // self.out_dtype.itemsize
        self.accumulators = 2 if _tmem_columns(config, 2) <= TMEM_COLUMNS else 1

    @property
    def scale_tiles(self) -> int:
        """128 row scale tiles of a stage's x."""
        return self.config.block_m // LANES

    def scratch(self, interpret: bool) -> dict[str, Any]:
        """Shared memory, tensor memory and barriers."""
        config, stages, size = self.config, self.config.stages, self.out_dtype.itemsize
        units, fp4, fp8 = config.block_k // _SCALE_TILE, jnp.float4_e2m1fn, jnp.float8_e4m3fn
        transforms = tile_transforms(config.block_k // 2, 0.5)
        scale_columns = stages * config.block_k // _BLOCK
        barrier = lambda count: plgpu.Barrier(num_barriers=count, orders_tensor_core=True)
        scratch = {
            "w": plgpu.SMEM((stages, LANES, config.block_k), fp4, transforms=transforms),
            "x": plgpu.SMEM((stages, config.block_m, config.block_k), fp4, transforms=transforms),
            "w_scales": plgpu.SMEM((stages, 1, units, 32, 16), fp8),
            "x_scales": plgpu.SMEM((stages, self.scale_tiles, units, 32, 16), fp8),
            "out": plgpu.SMEM(
                (OUT_SLOTS, OUT_TOKENS, LANES), self.out_dtype, transforms=tile_transforms(self.out_tile * size, size)
            ),
            "sums": plgpu.TMEM((LANES, self.accumulators * config.block_m), jnp.float32),
            "full": plgpu.Barrier(num_arrivals=4, num_barriers=stages),
            "empty": barrier(stages),
            "summed": barrier(self.accumulators),
            "read": barrier(self.accumulators),
        }
        if interpret:
            scratch["stand_in_w"] = plgpu.SMEM((stages, LANES, config.block_k), jnp.bfloat16)
            scratch["stand_in_x"] = plgpu.SMEM((stages, config.block_m, config.block_k), jnp.bfloat16)
        else:
            layout = plgpu.TMEMLayout.SCALES_LAYOUT
            scratch["w_scales_tmem"] = plgpu.TMEM((LANES, scale_columns), fp8, layout=layout)
            scratch["x_scales_tmem"] = plgpu.TMEM((config.block_m, scale_columns), fp8, layout=layout)
        return scratch

    def copy_stage(self, gmem: dict[str, Any], smem: dict[str, Any], m0: Any, n0: Any, step: Any, slot: Any) -> None:
        """Start the copies of K step `step` of x from token m0 on and of W from row n0 on into a stage."""
        config, full = self.config, smem["full"].at[slot]
        units = config.block_k // _SCALE_TILE
        columns, tiles = pl.ds(step * config.block_k, config.block_k), pl.ds(step * units, units)
        copies = {
            "w": (pl.ds(n0, LANES), columns),
            "x": (pl.ds(m0, config.block_m), columns),
            "w_scales": (pl.ds(n0 // LANES, 1), tiles),
            "x_scales": (pl.ds(m0 // LANES, self.scale_tiles), tiles),
        }
        for name, where in copies.items():
            plgpu.copy_gmem_to_smem(gmem[name].at[where], smem[name].at[slot], full)

    def multiply_stage(
        self, smem: dict[str, Any], slot: Any, accumulator: Any, accumulate: Any, interpret: bool
    ) -> None:
        """Multiply a stage's codes, each operand with its scales, into an accumulator."""
        sums = self.accumulator(smem["sums"], accumulator, 0)
        if interpret:
            _stand_in(smem, slot, sums, accumulate)
            return
        width = self.config.block_k // _BLOCK
        scales = {}
        for name in ("w", "x"):
            scales[name] = smem[f"{name}_scales_tmem"].at[:, pl.ds(slot * width, width)]
            plgpu.async_copy_scales_to_tmem(smem[f"{name}_scales"].at[slot], scales[name])
        plgpu.tcgen05_mma(
            sums, smem["w"].at[slot], smem["x"].at[slot].T, accumulate=accumulate,
            a_scale=scales["w"], b_scale=scales["x"],
        )  # fmt: skip


def _stand_in(smem: dict[str, Any], slot: Any, sums: Any, accumulate: Any) -> None:
    """sums += w @ x.T with codes times scales as bfloat16, which holds them exactly."""
    for name in ("w", "x"):
        codes = lax.bitcast_convert_type(smem[name][slot], jnp.uint4).astype(jnp.uint32)
        words = jnp.sum(codes.reshape(codes.shape[0], -1, 8) << jnp.arange(0, 32, 4, dtype=jnp.uint32), axis=2)
        scales = lax.bitcast_convert_type(smem[f"{name}_scales"][slot], jnp.uint8)
        scales = scales.reshape(*scales.shape[:-1], 4, 4)
        tiles = lax.bitcast_convert_type(scales, jnp.uint32)
        rows = [
            rows_twin("nvfp4", words[i * LANES : (i + 1) * LANES], None, [tiles[i, u] for u in range(tiles.shape[1])])
            for i in range(tiles.shape[0])
        ]
        smem[f"stand_in_{name}"][slot] = jnp.concatenate(rows)
    plgpu.commit_smem()
    plgpu.tcgen05_mma(sums, smem["stand_in_w"].at[slot], smem["stand_in_x"].at[slot].T, accumulate=accumulate)


def _tmem_columns(config: W4A4Config, accumulators: int) -> int:
    scales = config.stages * config.block_k // _SCALE_TILE * 4 * (1 + config.block_m // LANES)
    return accumulators * config.block_m + scales


def check_config(config: W4A4Config, *, out_bytes: int = 2, hardware: Hardware = B200) -> None:
    """Raise `KernelConfigError` where the kernel cannot run a configuration.

    Args:
      config: the configuration.
      out_bytes: bytes of an element of the result.
      hardware: the device, for its shared memory.
    """
    require_fits(f"{config}: tensor memory (columns)", _tmem_columns(config, 1), TMEM_COLUMNS)
    stage = (LANES + config.block_m) * config.block_k * 9 // 16
    need = config.stages * stage + OUT_SLOTS * OUT_TOKENS * LANES * out_bytes + _SMEM_RESERVE
    require_fits(f"{config}: shared memory (bytes)", need, hardware.smem_per_block)


def candidate_configs(*, m: int) -> tuple[W4A4Config, ...]:
    """Every configuration worth trying for m tokens."""
    sizes = (128,) if m <= 128 else (128, 256)
    return tuple(W4A4Config(block_m, 256, stages) for block_m in sizes for stages in (4,))


def heuristic_config(*, m: int, n: int, hardware: Hardware = B200) -> W4A4Config:
    """The widest tile that still gives every multiprocessor one.

    Args:
      m: tokens.
      n: rows of the weight.
      hardware: the device.
    """
    candidates = candidate_configs(m=m)
    fills = lambda config: -(-m // config.block_m) * -(-n // LANES) >= hardware.sms
    return next((config for config in reversed(candidates) if fills(config)), candidates[0])


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
      fused: bias, residual and activation, as `run` takes them.

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
    config = config or heuristic_config(m=x.shape[0], n=n, hardware=hardware)
    return run(
        x, planes, n=n, k=k, out_dtype=out_dtype, config=config, sms=hardware.sms,
        interpret=interpret if interpreted else False, **fused,
    )  # fmt: skip


def run(
    x: jax.Array,
    planes: WeightPlanes,
    *,
    n: int,
    k: int,
    out_dtype: Any,
    config: W4A4Config,
    bias: jax.Array | None = None,
    residual: jax.Array | None = None,
    activation: str | None = None,
    sms: int = B200.sms,
    interpret: Any = False,
) -> jax.Array:
    """y = quantize_activations(x) @ W.T, plus bias and residual, or gated.

    Args:
      x: bfloat16 [m, k].
      planes: raw planes of the [n, k] NVFP4 weight.
      n: rows of the weight; with an activation they are [gate; up], n / 2 each.
      k: columns of the weight.
      out_dtype: bfloat16 or float32.
      config: how to cut up the work.
      bias: [n] added to each row's product, or None.
      residual: [m, n or n / 2] added to the result by XLA, or None.
      activation: a name of `ACTIVATIONS` for a gated product, applied by XLA, or None.
      sms: blocks that run at once, one a multiprocessor.
      interpret: False, or the parameters of Pallas' GPU interpreter.

    Returns:
      out_dtype [m, n], or [m, n / 2] for a gated product.
    """
    m, later = x.shape[0], activation is not None or residual is not None
    check_config(config, out_bytes=4 if later else jnp.dtype(out_dtype).itemsize)
    codes, scales, factors = quantize_activations(jnp.pad(x, ((0, -m % 8), (0, 0))))
    plan = _Plan(codes.shape[0], n, k, config, jnp.float32 if later else out_dtype)
    epilogue = Epilogue("nvfp4", bias is not None and not later, rows=LANES, row_layout=row_layout())
    operands = {
        "w": _fp4(jnp.asarray(planes.codes)),
        "x": _fp4(codes),
        "w_scales": _scale_tiles(jnp.asarray(planes.scales)),
        "x_scales": _scale_tiles(scales),
        "token_factors": jnp.pad(factors, (0, -factors.shape[0] % config.block_m)),
        **epilogue.operands(planes, None if later else bias, n),
    }
    y = launch(plan, epilogue, operands, min(plan.tiles, sms), interpret)[:m]
    return finish_sums(y, bias, activation, residual, out_dtype) if later else y


def _fp4(codes: jax.Array) -> jax.Array:
    """uint8 [rows, bytes] as float4_e2m1fn [rows, 2 * bytes]."""
    return lax.bitcast_convert_type(codes, jnp.float4_e2m1fn).reshape(codes.shape[0], -1)


def _scale_tiles(scales: jax.Array) -> jax.Array:
    """uint8 [rows / 128, k / 64, 32, 4, 4] as float8_e4m3fn [rows / 128, k / 64, 32, 16]."""
    return lax.bitcast_convert_type(scales.reshape(*scales.shape[:3], 16), jnp.float8_e4m3fn)
