"""Sizes, limits and choice of the prefill kernel's launches. All static; nothing here runs on a GPU.

`PrefillPlan` turns a problem and a `PrefillConfig` into tiles, steps and shared memory. `PLANNER` estimates each
configuration that fits with four costs: tensor cores, instruction issue, second level cache and device memory. Leaves
out the kernel (prefill_sm90) and the choice (planning). Source: gpu-kernels, ops-and-criteria.
"""

import itertools
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.errors import KernelConfigError
from pallas_kernels.mosaic_gpu._weight_tiles import CHUNK, ROWS, WeightTiles
from pallas_kernels.mosaic_gpu.planning import (
    SMEM_RESERVE,
    Planner,
    Product,
    out_tile,
    split_pays,
    swizzled,
    tensor_cycles,
    tile_sizes,
)
from pallas_kernels.tiling import PrefillConfig, require_fits, weight_kind

#: Tokens of one epilogue step, and how many steps may be on their way out at once.
OUT_TOKENS, OUT_SLOTS = 64, 2
#: Tokens whose x (20 MB at 5,120 columns) is kept in the second level cache while W passes by.
_BAND_TOKENS = 2048
#: Instructions a weight of the K loop, tensor core instructions aside, as compiled for sm_90a (`benchmarks.aot`); of q4
#: with scales in one part.
INSTRUCTIONS = MappingProxyType({"q4": 2.5, "q5": 5.2, "q6": 4.9, "w8": 4.8, "fp8": 3.5, "nvfp4": 3.6})
#: Cycles a tile costs outside its K loop, and bytes a multiprocessor gets from the second level cache a cycle.
_EPILOGUE_CYCLES, _L2_BYTES_PER_CYCLE = 2500.0, 28.0
#: Seconds a second kernel (the sum over splits) adds.
_EXTRA_LAUNCH = 3e-6


class PrefillPlan:
    """Sizes of one launch: tiles, K steps, shared memory. All static."""

    def __init__(
        self, m: int, n: int, k: int, kind: str, config: PrefillConfig, gated: bool, out_dtype: Any,
        parts_of_scale: int = 2,
    ):  # fmt: skip
        info = weight_kind(kind)
        self.config, self.kind = config, kind
        self.m, self.n_out = m, n // 2 if gated else n
        self.out_dtype = jnp.dtype(out_dtype)
        # A part is what the consumers hold 64 rows each of: the gate and its up, or adjacent rows of a plain product.
        self.parts, self.part_rows = parts_of(config, gated), ROWS * config.consumers
        self.part_stride = self.n_out if gated else self.part_rows
        self.rows = self.part_rows if gated else self.parts * self.part_rows
        self.m_tiles, self.n_tiles = -(-m // config.block_m), -(-self.n_out // self.rows)
        self.band = min(self.m_tiles, max(1, _BAND_TOKENS // config.block_m))
        self.k_steps = -(-info.k_padded(k) // config.block_k)
        self.split_k = min(config.split_k, self.k_steps)
        self.steps = -(-self.k_steps // self.split_k)  # of the longest split; copies past K give zeros
        self.tiles = self.m_tiles * self.n_tiles * self.split_k
        self.padded_rows = n - self.n_out + -(-self.n_out // ROWS) * ROWS  # where the last 64 rows that count end
        self.out_tokens = min(OUT_TOKENS, config.block_m)
        self.out_tile = out_tile(self.n_out, self.out_dtype.itemsize)
        self.weights = WeightTiles(kind, n, config.block_k, self.parts * self.part_rows, parts_of_scale)

    def coordinates(self, tile: Any) -> tuple[Any, Any, Any]:
        """First token, first output row and split of a tile.

        Tiles go through a band of tokens whose x stays in the second level cache: all its tokens for the same rows of
        W, then the next rows; then the next band.
        """
        per_split, per_band = self.m_tiles * self.n_tiles, self.band * self.n_tiles
        split, tile = tile // per_split, tile % per_split
        first, tile = tile // per_band * self.band, tile % per_band
        if self.m_tiles % self.band == 0:
            m_tile, n_tile = tile % self.band, tile // self.band
        else:
            # The last band is narrower. Mosaic has no floor division by a traced number, and needs none here.
            tile = jnp.int32(tile)
            width = jnp.minimum(jnp.int32(self.band), self.m_tiles - first)
            m_tile, n_tile = lax.rem(tile, width), lax.div(tile, width)
        return (first + m_tile) * self.config.block_m, n_tile * self.rows, split

    def scratch(self, residual: bool, interpret: bool) -> dict[str, Any]:
        """Shared memory and barriers."""
        config, bits = self.config, self.out_dtype.itemsize * 8
        ring = (config.stages, config.block_m, config.block_k)
        out = (config.consumers, OUT_SLOTS, self.out_tokens, ROWS)
        scratch = {
            "x": plgpu.SMEM(ring, jnp.bfloat16, transforms=swizzled(config.block_k * 2, 16)),
            "ring": self.weights.scratch(config.stages),
            "out": plgpu.SMEM(out, self.out_dtype, transforms=swizzled(self.out_tile * bits // 8, bits)),
            "full": plgpu.Barrier(num_arrivals=1 + self.parts * self.weights.copies, num_barriers=config.stages),
            "empty": plgpu.Barrier(num_arrivals=config.consumers, num_barriers=config.stages),
        }
        if residual:
            scratch["arrived"] = plgpu.Barrier(num_barriers=config.consumers * OUT_SLOTS)
        if interpret:
            scratch["operand"] = plgpu.SMEM((config.consumers, ROWS, CHUNK), jnp.bfloat16)
        return scratch


def parts_of(config: PrefillConfig, gated: bool) -> int:
    """Accumulators a consumer keeps."""
    return 2 if gated else config.row_blocks


def smem_bytes(config: PrefillConfig, kind: str, gated: bool, out_bytes: int) -> int:
    """Shared memory a launch takes, bytes, barriers left out."""
    rows = ROWS * config.consumers * parts_of(config, gated)
    ring = config.stages * (config.block_m * config.block_k * 2 + rows * _packed_bytes(kind, config.block_k))
    return ring + config.consumers * OUT_SLOTS * min(OUT_TOKENS, config.block_m) * ROWS * out_bytes


def _packed_bytes(kind: str, block_k: int) -> int:
    """Bytes of a row's codes and high bits in a K step."""
    info = weight_kind(kind)
    return block_k * info.code_plane_bits // 8 + block_k // (info.group_size or block_k) * info.high_bytes


def _serializes(config: PrefillConfig, gated: bool) -> bool:
    """Whether ptxas makes each wgmma wait for the one before, as it does of every kind's for this one tile.

    Three consumers have 128 registers a thread: too few for two accumulators of 64 tokens beside the operands of 128
    columns of both, so that an operand's registers are needed again while its wgmma runs.
    """
    return (config.consumers, config.block_m, config.block_k, parts_of(config, gated)) == (3, 64, 128, 2)


def _check_config(config: PrefillConfig, product: Product) -> None:
    kind, parts = product.kind, parts_of(config, product.gated)
    if config.block_m * parts > 256:
        raise KernelConfigError(
            f"block_m={config.block_m} is not allowed for a gated product or with two row blocks, because two "
            "accumulators would not fit in registers: choose 128 or less"
        )
    if config.consumers == 3 and config.block_m * parts > 128:
        raise KernelConfigError(
            f"block_m={config.block_m} is not allowed with three consumers, whose registers hold one accumulator of "
            "128 tokens: choose less, one row block, or two consumers"
        )
    if _serializes(config, product.gated and config.split_k == 1):
        raise KernelConfigError(
            f"block_m={config.block_m} with block_k={config.block_k} is not allowed for two row blocks, or a gated "
            "product, with three consumers: their registers cannot hold the operands of two wgmma, and each would wait "
            "for the one before; choose block_m=32, block_k=64 or two consumers"
        )
    if kind == "q5" and config.block_k != 128:
        raise KernelConfigError(
            f"block_k={config.block_k} is not allowed for q5, whose high bits are copied 16 bytes a row: choose 128"
        )
    if product.stored_k % config.block_k and kind == "nvfp4":
        raise KernelConfigError(
            f"block_k={config.block_k} does not divide the {product.k} columns of an nvfp4 weight: choose 64"
        )
    need = smem_bytes(config, kind, product.gated, 4 if config.split_k > 1 else product.out_bytes) + SMEM_RESERVE
    require_fits(f"{config} for {kind}: shared memory (bytes)", need, product.hardware.smem_per_block)


def _alternatives(product: Product) -> Iterator[list[PrefillConfig]]:
    """Every tile, with the deepest ring first."""
    blocks = tile_sizes((32, 64, 128, 256), product.m)
    for block_m, block_k, consumers, row_blocks, split_k in itertools.product(
        blocks, (64, 128), (1, 2, 3), (1, 2), (1, 2, 4, 8)
    ):
        tiles = -(-product.m // block_m) * -(-product.n // (ROWS * consumers * row_blocks))
        fused = product.gated and split_k == 1
        if split_pays(product, split_k, tiles, block_k) and not (fused and row_blocks > 1):
            rings = (8, 6, 5, 4, 3, 2)
            yield [PrefillConfig(block_m, block_k, stages, consumers, row_blocks, split_k) for stages in rings]


def _predicted_seconds(config: PrefillConfig, product: Product) -> float:
    """Waves of tiles at their slowest resource, or device memory, whichever is longer."""
    kind, hardware = product.kind, product.hardware
    # Splitting K turns a gated product into a plain one over all rows.
    fused = product.gated and config.split_k == 1
    plan = PrefillPlan(product.m, product.n, product.k, kind, config, fused, jnp.bfloat16)
    rows = plan.parts * plan.part_rows
    weights = rows * config.block_k
    tensor = tensor_cycles(weights * config.block_m, hardware)
    issue = weights * _instructions(product) / 128
    cache = (config.block_m * config.block_k * 2 + rows * _packed_bytes(kind, config.block_k)) / _L2_BYTES_PER_CYCLE
    # One consumer cannot unpack while its own wgmma runs; more take turns.
    step = max(tensor + issue if config.consumers == 1 else max(tensor, issue), cache)
    waves = -(-plan.tiles // hardware.sms)
    compute = waves * (plan.steps * step + _EPILOGUE_CYCLES) / hardware.clock_hz
    memory = hardware.memory_seconds(product.traffic + product.split_traffic(plan.split_k))
    return max(compute, memory) + (_EXTRA_LAUNCH if config.split_k > 1 else 0.0)


def _instructions(product: Product) -> float:
    """Instructions a weight; a second part of a scale takes q4 one more."""
    return INSTRUCTIONS[product.kind] + (product.kind == "q4" and product.out_bytes > 2)


PLANNER = Planner(_alternatives, _check_config, _predicted_seconds)
