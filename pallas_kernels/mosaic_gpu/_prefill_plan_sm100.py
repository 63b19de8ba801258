"""Sizes, limits and choice of the Blackwell prefill kernel's launches. All static; nothing here runs on a GPU.

`PrefillPlan` turns a problem and a `PrefillConfig` into tiles, steps, shared and tensor memory. `PLANNER` estimates
each configuration that fits with four costs: tensor cores, instruction issue, second level cache and device memory.
Leaves out the kernel (prefill_sm100) and the choice (planning). Source: gpu-kernels, ops-and-criteria.
"""

import itertools
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

from pallas_kernels.errors import KernelConfigError
from pallas_kernels.mosaic_gpu._row_tiles import RowTiles
from pallas_kernels.mosaic_gpu._row_unpack import LANES
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
from pallas_kernels.tiling import PrefillConfig, require_fits

#: Tokens of one epilogue step, and how many steps may be on their way out at once.
OUT_TOKENS, OUT_SLOTS = 32, 2
#: 32-bit columns of tensor memory.
TMEM_COLUMNS = 512
#: Instructions a weight of an unpacker's loop, as compiled for sm_100a (`benchmarks.aot`).
INSTRUCTIONS = MappingProxyType({"q4": 3.4, "q5": 4.5, "q6": 4.5, "w8": 4.0, "fp8": 2.9, "nvfp4": 3.6})
#: Cycles a tile costs outside its K loop, and bytes a multiprocessor gets from the second level cache a cycle.
_EPILOGUE_CYCLES, _L2_BYTES_PER_CYCLE = 1500.0, 48.0
#: Cycles an unpacker waits a stage.
_WAIT_CYCLES = 300.0
#: Seconds a second kernel (the sum over splits) adds.
_EXTRA_LAUNCH = 3e-6


def row_layout() -> Any:
    """Layout of a vector with one value a lane, as the epilogue's blocks have them."""
    return plgpu.Layout.TCGEN05.reduce(1)


class PrefillPlan:
    """Sizes of one launch: tiles, K steps, memory. All static."""

    def __init__(self, m: int, n: int, k: int, kind: str, config: PrefillConfig, gated: bool, out_dtype: Any):
        self.config, self.kind = config, kind
        self.parts = 2 if gated else 1
        self.m, self.n_out = m, n // self.parts
        self.out_dtype = jnp.dtype(out_dtype)
        self.weights = RowTiles(kind, k, config.block_k)
        self.m_tiles, self.n_tiles = -(-m // config.block_m), -(-self.n_out // LANES)
        self.k_steps = self.weights.k_steps
        self.split_k = min(config.split_k, self.k_steps)
        self.steps = -(-self.k_steps // self.split_k)  # of the longest split; copies past K give zeros
        self.tiles = self.m_tiles * self.n_tiles * self.split_k
        self.padded_rows = n - self.n_out + self.n_tiles * LANES
        self.out_tokens = min(OUT_TOKENS, config.block_m)
        self.out_tile = out_tile(self.n_out, self.out_dtype.itemsize)
        self.accumulators = accumulators(config, gated)
        self.unpackers = config.consumers

    def coordinates(self, tile: Any) -> tuple[Any, Any, Any]:
        """First token, first output row and split of a tile; tiles that follow each other share rows of W."""
        m_tile, rest = tile % self.m_tiles, tile // self.m_tiles
        return m_tile * self.config.block_m, rest % self.n_tiles * LANES, rest // self.n_tiles

    def accumulator(self, sums: Any, index: Any, part: int) -> Any:
        """The tensor memory of one accumulator, [128, block_m]."""
        return sums.at[:, pl.ds((index * self.parts + part) * self.config.block_m, self.config.block_m)]

    def copy_stage(self, gmem: dict[str, Any], smem: dict[str, Any], m0: Any, n0: Any, step: Any, slot: Any) -> None:
        """Start the copies of K step `step` of x from token m0 on and of W from row n0 on into a stage."""
        config, full = self.config, smem["full"].at[slot]
        x_gmem = gmem["x"].at[pl.ds(m0, config.block_m), pl.ds(step * config.block_k, config.block_k)]
        plgpu.copy_gmem_to_smem(x_gmem, smem["x"].at[slot], full)
        for part in range(self.parts):
            self.weights.copy(gmem, smem["ring"], n0 + part * self.n_out, step, slot * self.parts + part, full)

    def multiply_stage(
        self, smem: dict[str, Any], slot: Any, accumulator: Any, accumulate: Any, interpret: bool
    ) -> None:
        """Wait for a stage's operand and multiply it with its x, into an accumulator's parts."""
        del interpret
        plgpu.barrier_wait(smem["unpacked"].at[slot])
        for part in range(self.parts):
            column = (slot * self.parts + part) * self.config.block_k
            plgpu.tcgen05_mma(
                self.accumulator(smem["sums"], accumulator, part),
                smem["operand"].at[:, pl.ds(column, self.config.block_k)],
                smem["x"].at[slot].T,
                accumulate=accumulate,
            )

    def scratch(self, interpret: bool) -> dict[str, Any]:
        """Shared memory, tensor memory and barriers."""
        del interpret
        config, size = self.config, self.out_dtype.itemsize
        stages, slots = config.stages, config.stages * self.parts
        barrier = lambda count, arrivals=1, tensor=True: plgpu.Barrier(
            num_arrivals=arrivals, num_barriers=count, orders_tensor_core=tensor
        )
        return {
            "x": plgpu.SMEM((stages, config.block_m, config.block_k), jnp.bfloat16, transforms=swizzled(128, 16)),
            "ring": self.weights.scratch(slots),
            "out": plgpu.SMEM(
                (OUT_SLOTS, self.out_tokens, LANES),
                self.out_dtype,
                transforms=swizzled(self.out_tile * size, 8 * size),
            ),
            "operand": plgpu.TMEM((LANES, slots * config.block_k), jnp.bfloat16, packed=True),
            "sums": plgpu.TMEM((LANES, self.accumulators * self.parts * config.block_m), jnp.float32),
            "full": barrier(stages, 1 + self.parts * self.weights.copies, False),
            "empty": barrier(stages, 2),
            "unpacked": barrier(stages),
            "summed": barrier(self.accumulators),
            "read": barrier(self.accumulators),
        }


def _tmem_columns(config: PrefillConfig, gated: bool, accumulators: int) -> int:
    parts = 2 if gated else 1
    return parts * (accumulators * config.block_m + config.stages * config.block_k // 2)


def accumulators(config: PrefillConfig, gated: bool) -> int:
    """Tiles whose sums tensor memory has room for beside the operands: 2 or 1."""
    return 2 if _tmem_columns(config, gated, 2) <= TMEM_COLUMNS else 1


def fuses(config: PrefillConfig, kind: str, n: int) -> bool:
    """Whether a gated product of n rows keeps gate and up in one block; else XLA finishes a plain one.

    Split sums are added first, and the up rows of an NVFP4 weight have to start a tile of 128 rows of block scales.
    """
    return config.split_k == 1 and not (kind == "nvfp4" and n // 2 % LANES)


def smem_bytes(config: PrefillConfig, kind: str, gated: bool, out_bytes: int) -> int:
    """Shared memory a launch takes, bytes, barriers left out."""
    packed = RowTiles(kind, config.block_k, config.block_k).stage_bytes * (2 if gated else 1)
    ring = config.stages * (config.block_m * config.block_k * 2 + packed)
    return ring + OUT_SLOTS * min(OUT_TOKENS, config.block_m) * LANES * out_bytes


def _check_config(config: PrefillConfig, product: Product) -> None:
    kind, fused = product.kind, product.gated and fuses(config, product.kind, product.n)
    if config.stages % config.consumers:
        raise KernelConfigError(
            f"stages={config.stages} is not allowed with consumers={config.consumers}, who take stages in turn: choose "
            f"a multiple of {config.consumers}"
        )
    if config.row_blocks != 1:
        raise KernelConfigError(f"row_blocks={config.row_blocks} is not allowed: a block has one of 128 rows; choose 1")
    if kind == "q5" and config.block_k != 128:
        raise KernelConfigError(
            f"block_k={config.block_k} is not allowed for q5, whose high bits are copied 16 bytes a row: choose 128"
        )
    columns = _tmem_columns(config, fused, 1)
    require_fits(f"{config} for {kind}: tensor memory (columns)", columns, TMEM_COLUMNS)
    need = smem_bytes(config, kind, fused, 4 if config.split_k > 1 else product.out_bytes) + SMEM_RESERVE
    require_fits(f"{config} for {kind}: shared memory (bytes)", need, product.hardware.smem_per_block)


def _alternatives(product: Product) -> Iterator[list[PrefillConfig]]:
    """Every tile, with the deepest ring first."""
    blocks = tile_sizes((32, 64, 128, 256), product.m)
    for block_m, block_k, consumers, split_k in itertools.product(blocks, (64, 128), (1, 2), (1, 2, 4, 8)):
        tiles = -(-product.m // block_m) * -(-product.n // LANES)
        if split_pays(product, split_k, tiles, block_k):
            yield [PrefillConfig(block_m, block_k, stages, consumers, split_k=split_k) for stages in range(8, 1, -1)]


def _predicted_seconds(config: PrefillConfig, product: Product) -> float:
    """Waves of tiles at their slowest resource, or device memory, whichever is longer."""
    kind, hardware = product.kind, product.hardware
    fused = product.gated and fuses(config, kind, product.n)
    plan = PrefillPlan(product.m, product.n, product.k, kind, config, fused, jnp.bfloat16)
    weights = plan.parts * LANES * config.block_k
    tensor = tensor_cycles(weights * config.block_m, hardware)
    # A scheduler has a warp of each unpacker; one alone issues every other cycle, and waits at barriers.
    cycles = weights * INSTRUCTIONS[kind] / 128
    issue = max(cycles, (2.0 * cycles + _WAIT_CYCLES) / config.consumers)
    packed = plan.parts * plan.weights.stage_bytes
    cache = (config.block_m * config.block_k * 2 + packed) / _L2_BYTES_PER_CYCLE
    # A ring of few stages waits for memory: about 1000 cycles from a stage's release to its refill.
    latency = 1000.0 / (config.stages - 1)
    epilogue = _EPILOGUE_CYCLES / plan.accumulators
    waves = -(-plan.tiles // hardware.sms)
    compute = waves * (plan.steps * max(tensor, issue, cache, latency) + epilogue) / hardware.clock_hz
    memory = hardware.memory_seconds(product.traffic + product.split_traffic(plan.split_k))
    return max(compute, memory) + (_EXTRA_LAUNCH if config.split_k > 1 else 0.0)


PLANNER = Planner(_alternatives, _check_config, _predicted_seconds)
