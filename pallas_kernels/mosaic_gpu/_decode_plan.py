"""Sizes of a decode launch on Hopper, the configurations that fit a device and the choice among them.

    time = ||device memory, level two cache, instruction issue, one warpgroup's own pace|| of an equal share of the
           stages + filling the rings

Constants are static counts (instructions and registers, from `benchmarks.aot`) and latencies of the order published for
the part; nothing here was measured on a GPU. Leaves out the kernel (decode_sm90) and the choice (planning). Source:
gpu-kernels.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import H100, Hardware
from pallas_kernels.mosaic_gpu._unpack import COLUMNS
from pallas_kernels.mosaic_gpu.planning import (
    SCALE_TILE_ROWS,
    SCALE_TILE_WORDS,
    SMEM_RESERVE,
    Planner,
    Product,
    swizzle_of,
    swizzled,
)
from pallas_kernels.planes import plane_bytes
from pallas_kernels.tiling import StreamConfig, require_fits, weight_kind

MAX_M = 16
#: All instructions a weight of the main loop, tensor core instructions aside.
INSTRUCTIONS = MappingProxyType({"q4": 2.4, "q5": 3.7, "q6": 3.5, "w8": 3.5, "fp8": 3.5, "nvfp4": 3.7})
_REGISTERS_PER_SM = 65536
#: Registers a thread takes, at most, with 64 rows and with more.
_REGISTERS = MappingProxyType({64: 128, 128: 255})
#: Seconds from the start of a copy to its arrival under load; bytes a cycle the second level cache gives one SM.
_LATENCY, _L2_BYTES_PER_CYCLE = 1.0e-6, 24.0
#: Cycles of issue a stage takes on its own; cycles a warpgroup waits in it, and for each instruction it depends on.
_STAGE_CYCLES, _STAGE_WAIT, _CYCLES_EACH = 80, 500, 2.0


def _largest_divisor(value: int, limit: int) -> int:
    return next(d for d in range(min(value, limit), 0, -1) if value % d == 0)


class DecodePlan:
    """Sizes of one launch. All static.

    Attributes:
      m_tile: columns of the wgmma, 8 or 16.
      columns: columns of W that are worked on, zeros included.
      block_k: columns of a stage; the largest size up to the configuration's that divides `columns`.
      k_stages: stages of a row tile.
      tiles: row tiles.
      stages_in_all: k_stages * tiles; stage s is K stage s % k_stages of tile s // k_stages.
      blocks: blocks of the launch; block b does stages b * stages_in_all // blocks up to the next block's first.
      row_bytes, high_row_bytes: bytes of codes and of high bits a row has in a stage.
      sum_columns: columns one wgmma call sums before its scale is applied, which is also how wide x is swizzled.
      groups, scale_vector: scales a row has in a stage, and how many of them one load takes.
    """

    def __init__(self, m: int, n: int, k: int, kind: str, config: StreamConfig, sms: int = H100.sms):
        self.info, self.kind, self.m, self.n = weight_kind(kind), kind, m, n
        self.m_tile = 8 if m <= 8 else 16
        self.columns = -(-self.info.k_padded(k) // COLUMNS) * COLUMNS
        self.rows, self.warpgroups, self.stages = config.rows, config.warpgroups, config.stages
        self.block_k = _largest_divisor(self.columns // COLUMNS, config.block_k // COLUMNS) * COLUMNS
        self.k_stages = self.columns // self.block_k
        self.tiles = -(-n // self.rows)
        self.stages_in_all = self.k_stages * self.tiles
        self.blocks = max(1, min(config.blocks_per_sm * sms, self.stages_in_all // self.warpgroups))
        self.row_bytes = self.block_k * self.info.code_plane_bits // 8
        self.high_row_bytes = self.block_k // COLUMNS * self.info.high_bytes
        self.swizzle = swizzle_of(self.row_bytes)
        self.grouped = kind not in ("fp8", "nvfp4")
        self.sum_columns = min(self.info.group_size, COLUMNS) if self.grouped else COLUMNS
        self.groups = self.block_k // self.info.group_size if self.grouped else 0
        self.scale_vector = math.gcd(self.info.groups(k), self.groups, 8) if self.grouped else 0

    def segments(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the parts of each tile's sums are: indices [tiles, parts] of segments, and which of them there are.

        Block b writes the part of tile t it has to segment t + b, which no other pair of them has: in the order of
        stages, each further block and each further tile takes the next one.
        """
        firsts = np.arange(self.blocks) * self.stages_in_all // self.blocks
        tiles = np.arange(self.tiles)
        block_of = lambda stage: np.searchsorted(firsts, stage, side="right") - 1
        first, last = block_of(tiles * self.k_stages), block_of((tiles + 1) * self.k_stages - 1)
        blocks = first[:, None] + np.arange(int((last - first).max()) + 1)
        return tiles[:, None] + np.minimum(blocks, last[:, None]), blocks <= last[:, None]

    @property
    def slots(self) -> int:
        """Stages of all warpgroups."""
        return self.warpgroups * self.stages

    @property
    def scale_tiles(self) -> int:
        """NVFP4 scale tiles under the rows of a block."""
        return -(-self.rows // SCALE_TILE_ROWS)

    def scratch(self) -> dict[str, Any]:
        """Shared memory and barriers."""
        codes, high = (self.slots, self.rows, self.row_bytes), (self.slots, self.rows, self.high_row_bytes)
        x, sums = (self.slots, self.m_tile, self.block_k), (2, self.warpgroups, self.m_tile, self.rows)
        smem = {
            "x_smem": plgpu.SMEM(x, jnp.bfloat16, transforms=swizzled(self.sum_columns * 2, 16)),
            "codes_smem": plgpu.SMEM(codes, jnp.uint8, transforms=swizzled(self.row_bytes, 8)),
            "sums_smem": plgpu.SMEM(sums, jnp.float32, transforms=swizzled(128, 32)),
            "done_barrier": plgpu.Barrier(num_arrivals=self.warpgroups),
        }
        if self.high_row_bytes:
            smem["high_smem"] = plgpu.SMEM(high, jnp.uint8, transforms=swizzled(self.high_row_bytes, 8))
        if self.kind == "nvfp4":
            tiles = (self.slots, self.scale_tiles, self.block_k // COLUMNS, SCALE_TILE_WORDS)
            smem["scales_smem"] = plgpu.SMEM(tiles, jnp.uint32)
        copies = 2 + ("high_smem" in smem) + ("scales_smem" in smem)
        smem["full_barrier"] = plgpu.Barrier(num_arrivals=copies, num_barriers=self.slots)
        return smem

    def weight_stage_bytes(self) -> int:
        """Bytes of packed weight in a stage; group scales, which do not pass through it, left out."""
        scales = self.scale_tiles * self.block_k // COLUMNS * SCALE_TILE_WORDS * 4 if self.kind == "nvfp4" else 0
        return self.rows * (self.row_bytes + self.high_row_bytes) + scales

    def smem_bytes(self) -> int:
        """Shared memory of a block, bytes, barriers left out."""
        stage = self.m_tile * self.block_k * 2 + self.weight_stage_bytes()
        return self.slots * stage + 2 * self.warpgroups * self.m_tile * self.rows * 4

    def blocks_per_sm(self, hardware: Hardware) -> int:
        """Blocks one multiprocessor has room for; 0 where not even one fits."""
        if self.smem_bytes() + SMEM_RESERVE > hardware.smem_per_block:
            return 0
        by_registers = _REGISTERS_PER_SM // (self.warpgroups * 128 * _REGISTERS[self.rows])
        return min(hardware.smem_per_sm // (self.smem_bytes() + SMEM_RESERVE), by_registers)


def _check_config(config: StreamConfig, product: Product) -> None:
    kind, plan = product.kind, DecodePlan(product.m, product.n, product.k, product.kind, config)
    need = plan.smem_bytes() + SMEM_RESERVE
    require_fits(f"{config} for {kind}: shared memory (bytes)", need, product.hardware.smem_per_block)
    if not plan.blocks_per_sm(product.hardware):
        raise KernelConfigError(
            f"{config} for {kind} needs {config.warpgroups * 128} threads of up to {_REGISTERS[config.rows]} registers "
            f"each, and a block has {_REGISTERS_PER_SM}: use fewer warpgroups or rows"
        )


def _alternatives(product: Product) -> Iterator[list[StreamConfig]]:
    """Every stage, with the deepest rings first that still leave room for one or two blocks a multiprocessor."""
    plan_of = lambda config: DecodePlan(product.m, product.n, product.k, product.kind, config)
    sizes = [size for size in (512, 384, 256, 128) if plan_of(StreamConfig(block_k=size)).block_k == size]
    for rows, block_k, warpgroups in itertools.product((64, 128), sizes, (2, 4)):
        rings = [StreamConfig(rows, block_k, warpgroups, stages, 1) for stages in (4, 3, 2)]
        # Two blocks fit only where each thread makes do with half the registers; long stages need more.
        two = lambda config: (
            plan_of(config).blocks_per_sm(product.hardware) > 1 and (config.warpgroups == 2 and config.block_k <= 256)
        )
        yield [config for config in rings if not two(config)]
        yield [dataclasses.replace(config, blocks_per_sm=2) for config in rings if two(config)]
    if not sizes:
        # K has no such divisor: small stages, which always fit.
        yield [StreamConfig(block_k=plan_of(StreamConfig(block_k=256)).block_k)]


def _predicted_seconds(config: StreamConfig, product: Product) -> float:
    """The time of the multiprocessor with most blocks."""
    kind, hardware = product.kind, product.hardware
    plan = DecodePlan(product.m, product.n, product.k, kind, config, hardware.sms)
    resident = min(plan.blocks, config.blocks_per_sm * hardware.sms)
    # A block's warpgroups take its stages in turn; the rounding of both is what small weights lose.
    of_a_block = math.ceil(plan.stages_in_all / plan.blocks / plan.warpgroups) * plan.warpgroups
    stages = of_a_block * resident / hardware.sms
    weight = plane_bytes(kind, product.n, product.k) / plan.stages_in_all
    # On average half of one stage of each ring is being unpacked and not on its way.
    in_flight = resident / hardware.sms * plan.warpgroups * (plan.stages - 0.5) * weight
    memory = stages * weight / min(hardware.memory_bandwidth / hardware.sms, in_flight / _LATENCY)
    cache = stages * (weight + plan.m_tile * plan.block_k * 2) / (_L2_BYTES_PER_CYCLE * hardware.clock_hz)
    instructions = plan.rows * plan.block_k * INSTRUCTIONS[kind] / 128
    issue = stages * (instructions + _STAGE_CYCLES) / hardware.clock_hz
    # A warpgroup on its own: its instructions depend on each other, and it waits for its copies and products.
    alone = of_a_block / plan.warpgroups * (_STAGE_WAIT + _CYCLES_EACH * instructions) / hardware.clock_hz
    sums = 8 * product.m * plan.rows * (plan.tiles + plan.blocks) / hardware.memory_bandwidth
    # Not the largest alone: what is nearly as slow gets in its way.
    return sum(t**8 for t in (memory, cache, issue, alone)) ** 0.125 + 2 * _LATENCY + sums


PLANNER = Planner(_alternatives, _check_config, _predicted_seconds)
