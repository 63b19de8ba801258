"""Sizes of the four-bit activation kernel's launches, and how one of its stages is copied and multiplied.

`W4A4Plan` is to `launch` of prefill_sm100 what `PrefillPlan` is, without anything to unpack. `stand_in` is what the
interpreter multiplies with, which has no block-scaled multiply. Leaves out the encoder and the public call
(nvfp4_w4a4). Source: gpu-kernels, storage-layouts.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.mosaic_gpu._prefill_plan_sm100 import OUT_SLOTS, OUT_TOKENS, TMEM_COLUMNS, PrefillPlan
from pallas_kernels.mosaic_gpu._row_unpack import LANES, rows_twin
from pallas_kernels.mosaic_gpu.planning import SMEM_RESERVE, Planner, Product, swizzled, tile_sizes
from pallas_kernels.tiling import require_fits, require_one_of

_BLOCK, _SCALE_TILE = 16, 64


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
        transforms = swizzled(config.block_k // 2, 4)
        barrier = lambda count: plgpu.Barrier(num_barriers=count, orders_tensor_core=True)
        scratch = {
            "w": plgpu.SMEM((stages, LANES, config.block_k), fp4, transforms=transforms),
            "x": plgpu.SMEM((stages, config.block_m, config.block_k), fp4, transforms=transforms),
            "w_scales": plgpu.SMEM((stages, 1, units, 32, 16), fp8),
            "x_scales": plgpu.SMEM((stages, self.scale_tiles, units, 32, 16), fp8),
            "out": plgpu.SMEM(
                (OUT_SLOTS, OUT_TOKENS, LANES), self.out_dtype, transforms=swizzled(self.out_tile * size, 8 * size)
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


def _check_config(config: W4A4Config, product: Product) -> None:
    require_fits(f"{config}: tensor memory (columns)", _tmem_columns(config, 1), TMEM_COLUMNS)
    stage = (LANES + config.block_m) * config.block_k * 9 // 16
    need = config.stages * stage + OUT_SLOTS * OUT_TOKENS * LANES * product.out_bytes + SMEM_RESERVE
    require_fits(f"{config}: shared memory (bytes)", need, product.hardware.smem_per_block)


def _alternatives(product: Product) -> Iterator[list[W4A4Config]]:
    """Each tile, with the deepest ring first."""
    for block_m in tile_sizes((128, 256), product.m):
        yield [W4A4Config(block_m, 256, stages) for stages in range(6, 1, -1)]


def _predicted_seconds(config: W4A4Config, product: Product) -> float:
    """What only ranks: the widest tile that still gives every multiprocessor one is best, else the narrowest."""
    tiles = -(-product.m // config.block_m) * -(-product.n // LANES)
    return 1.0 / config.block_m if tiles >= product.hardware.sms else config.block_m


PLANNER = Planner(_alternatives, _check_config, _predicted_seconds)
