"""Sizes of the four-bit activation kernel's launches, and how one of its stages is copied and multiplied.

`W4A4Plan` is to `launch` of prefill_sm100 what `PrefillPlan` is, without anything to unpack. `stand_in` is what the
interpreter multiplies with, which has no block-scaled multiply. Leaves out the encoder and the public call
(nvfp4_w4a4). Source: gpu-kernels, storage-layouts.
"""

import dataclasses
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import B200, Hardware
from pallas_kernels.mosaic_gpu._prefill_plan_sm100 import OUT_SLOTS, OUT_TOKENS, TMEM_COLUMNS, PrefillPlan
from pallas_kernels.mosaic_gpu._row_tiles import tile_transforms
from pallas_kernels.mosaic_gpu._row_unpack import LANES, rows_twin
from pallas_kernels.tiling import require_fits, require_one_of

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


class W4A4Plan(PrefillPlan):
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
            # An array a stage: Mosaic slices no columns out of scales of more than 128 rows.
            for name, rows in (("w", LANES), ("x", config.block_m)):
                scales = plgpu.TMEM((rows, config.block_k // _BLOCK), fp8, layout=plgpu.TMEMLayout.SCALES_LAYOUT)
                scratch[f"{name}_scales_tmem"] = [scales] * stages
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
            stand_in(smem, slot, sums, accumulate)
            return
        for stage, (w_scales, x_scales) in enumerate(zip(smem["w_scales_tmem"], smem["x_scales_tmem"], strict=True)):

            @pl.when(slot == stage)
            def _multiply(stage=stage, w_scales=w_scales, x_scales=x_scales):
                plgpu.async_copy_scales_to_tmem(smem["w_scales"].at[stage], w_scales)
                plgpu.async_copy_scales_to_tmem(smem["x_scales"].at[stage], x_scales)
                operands = smem["w"].at[stage], smem["x"].at[stage].T
                plgpu.tcgen05_mma(sums, *operands, accumulate=accumulate, a_scale=w_scales, b_scale=x_scales)


def stand_in(smem: dict[str, Any], slot: Any, sums: Any, accumulate: Any) -> None:
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


def candidate_configs(*, m: int, out_bytes: int = 2, hardware: Hardware = B200) -> tuple[W4A4Config, ...]:
    """Every configuration worth trying: each tile with the deepest ring that fits.

    Args:
      m: tokens.
      out_bytes: bytes of an element of the result.
      hardware: the device.
    """
    found = []
    for block_m in (128,) if m <= LANES else (128, 256):
        for stages in (6, 5, 4, 3, 2):
            config = W4A4Config(block_m, 256, stages)
            try:
                check_config(config, out_bytes=out_bytes, hardware=hardware)
            except KernelConfigError:
                continue
            found.append(config)
            break
    return tuple(found)


def heuristic_config(*, m: int, n: int, out_bytes: int = 2, hardware: Hardware = B200) -> W4A4Config:
    """The widest tile that still gives every multiprocessor one.

    Args:
      m: tokens.
      n: rows of the weight.
      out_bytes: bytes of an element of the result.
      hardware: the device.
    """
    candidates = candidate_configs(m=m, out_bytes=out_bytes, hardware=hardware)
    fills = lambda config: -(-m // config.block_m) * -(-n // LANES) >= hardware.sms
    return next((config for config in reversed(candidates) if fills(config)), candidates[0])
