"""Sizes, limits and choice of the portable kernel's launches. All static; nothing here runs on a GPU.

    time = waves of blocks * ||tensor cores, instruction issue, shared memory, second level cache, device memory||, or
           the latency of their rings

Constants are static counts (instructions and registers, from `benchmarks.aot`) and latencies of the order published for
the parts; nothing here was measured on a GPU. Leaves out the kernel (portable_mma) and the choice (planning). Source:
gpu-kernels.
"""

import itertools
import math
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu

from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import Hardware
from pallas_kernels.mosaic_gpu._unpack import COLUMNS, ROWS
from pallas_kernels.mosaic_gpu.planning import (
    SCALE_TILE_WORDS,
    SMEM_RESERVE,
    Planner,
    Product,
    tensor_cycles,
    tile_sizes,
)
from pallas_kernels.tiling import PortableConfig, require_fits, weight_kind

#: Tokens whose sums of a group are held beside the totals at a time.
PART_TOKENS = 32
#: Instructions that unpack a weight, as compiled for compute capability 8.0.
INSTRUCTIONS = MappingProxyType({"q4": 2.2, "q5": 3.4, "q6": 3.3, "w8": 2.8, "fp8": 2.9, "nvfp4": 3.4})
#: Registers a thread takes, roughly the most over kinds and stages, by tokens of a block.
REGISTERS = MappingProxyType({8: 120, 16: 152, 32: 192, 64: 240, 128: 255})
_REGISTERS_PER_SM, _BLOCKS_PER_SM = 65536, 12
#: Cycles from the start of a copy to its arrival under load, and those a block takes outside its loop.
_LATENCY_CYCLES, _BLOCK_CYCLES = 900.0, 2500.0
#: Cycles of issue a stage takes on its own.
_STAGE_CYCLES = 80.0
#: Bytes a cycle that shared memory and the second level cache give a multiprocessor.
_SMEM_BYTES_PER_CYCLE, _L2_BYTES_PER_CYCLE = 128.0, 32.0
#: Tokens times columns of a stage that compile without spills; twice as many sums a column for w8's short groups.
MAX_STAGE_PRODUCTS = MappingProxyType({"q4": 8192, "q5": 8192, "q6": 8192, "w8": 4096, "fp8": 8192, "nvfp4": 8192})
#: Stages with more than half as many: before compute capability 9.0 the last of them are one straight program.
MAX_STAGES_OF_MANY = 3


def tiled(row_bytes: int, element_bytes: int, row_tiles: int) -> tuple[Any, ...]:
    """Transforms of a tile in shared memory that all four warps of a warpgroup can copy: the widest swizzle.

    Copies before compute capability 9.0 give each warp whole tiles of 8 rows and a swizzle's bytes.
    """
    fits = lambda width: row_bytes % width == 0 and row_tiles * (row_bytes // width) % 4 == 0
    width = next(width for width in (128, 64, 32, 16) if fits(width))
    tiling = plgpu.TilingTransform((8, width // element_bytes))
    return (tiling, plgpu.SwizzleTransform(width)) if width > 16 else (tiling,)


class PortablePlan:
    """Sizes of one launch. All static.

    Attributes:
      columns: columns of W that are worked on, zeros included.
      block_k: columns of a stage; the configuration's, halved until it divides `columns`.
      split_k: parts of K; the largest number up to the configuration's that divides the stages.
      steps: stages of a block.
      tiles, m_tiles: tiles of 64 rows of W, and of `block_m` tokens.
      row_bytes, high_row_bytes: bytes of codes and of high bits a row has in a stage.
      sum_columns: columns that are summed before their scale is applied.
      groups: scales a row has in a stage, 0 where sums are not scaled.
    """

    def __init__(self, m: int, n: int, k: int, kind: str, config: PortableConfig):
        self.info, self.kind, self.m, self.n = weight_kind(kind), kind, m, n
        self.columns = -(-self.info.k_padded(k) // COLUMNS) * COLUMNS
        self.block_m, self.stages = config.block_m, config.stages
        self.block_k = config.block_k
        while self.columns % self.block_k:
            self.block_k //= 2
        stages_in_all = self.columns // self.block_k
        self.split_k = next(d for d in range(min(config.split_k, stages_in_all), 0, -1) if stages_in_all % d == 0)
        self.steps = stages_in_all // self.split_k
        self.tiles, self.m_tiles = -(-n // ROWS), -(-m // self.block_m)
        self.row_bytes = self.block_k * self.info.code_plane_bits // 8
        self.high_row_bytes = self.block_k // COLUMNS * self.info.high_bytes
        self.grouped = kind not in ("fp8", "nvfp4")
        self.sum_columns = min(self.info.group_size, COLUMNS) if self.grouped else COLUMNS
        self.groups = self.block_k // self.info.group_size if self.grouped else 0

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return self.tiles * self.m_tiles * self.split_k

    @property
    def part_tokens(self) -> int:
        """Tokens of one product."""
        return min(self.block_m, PART_TOKENS)

    def weight_stage_bytes(self) -> int:
        """Bytes of packed weight in a stage; group scales, which do not pass through it, left out."""
        scales = self.block_k // COLUMNS * SCALE_TILE_WORDS * 4 if self.kind == "nvfp4" else 0
        return ROWS * (self.row_bytes + self.high_row_bytes) + scales

    def smem_bytes(self) -> int:
        """Shared memory of a block: the ring, whose place the result takes at the end."""
        ring = min(self.stages, self.steps) * (self.block_m * self.block_k * 2 + self.weight_stage_bytes())
        return max(ring, self.block_m * ROWS * 4)


def _check_config(config: PortableConfig, product: Product) -> None:
    kind = product.kind
    if kind == "q5" and config.block_k < 128:
        raise KernelConfigError(
            f"block_k={config.block_k} is not allowed for q5, whose high bits are copied 16 bytes a row: choose 128 or "
            "256"
        )
    limit, products = MAX_STAGE_PRODUCTS[kind], config.block_m * config.block_k
    if products > limit:
        raise KernelConfigError(
            f"block_m={config.block_m} with block_k={config.block_k} is not allowed for {kind}, whose sums would not "
            f"fit in registers: choose at most {limit} of their product"
        )
    if 2 * products > limit and config.stages > MAX_STAGES_OF_MANY:
        raise KernelConfigError(
            f"stages={config.stages} is not allowed for {kind} with block_m={config.block_m} and "
            f"block_k={config.block_k}, which would not fit in registers: choose at most {MAX_STAGES_OF_MANY}"
        )
    need = PortablePlan(product.m, product.n, product.k, kind, config).smem_bytes() + SMEM_RESERVE
    require_fits(f"{config} for {kind}: shared memory (bytes)", need, product.hardware.smem_per_block)


def _alternatives(product: Product) -> Iterator[list[PortableConfig]]:
    """Every configuration by itself, but for those that a plan would change: what it makes of them is another one."""
    blocks = tile_sizes((8, 16, 32, 64, 128), product.m)
    for sizes in itertools.product(blocks, (64, 128, 256), (2, 3, 4, 6), (1, 2, 4, 8, 16)):
        config = PortableConfig(*sizes)
        plan = PortablePlan(product.m, product.n, product.k, product.kind, config)
        if (plan.block_k, plan.split_k) != (config.block_k, config.split_k) or config.stages > plan.steps > 1:
            continue
        if plan.split_k == 1 or (plan.blocks <= 8 * product.hardware.sms and plan.steps >= 2):
            yield [config]


def _predicted_seconds(config: PortableConfig, product: Product) -> float:
    """Waves of blocks, and writing out what they made."""
    hardware = product.hardware
    plan = PortablePlan(product.m, product.n, product.k, product.kind, config)
    smem = plan.smem_bytes() + SMEM_RESERVE
    at_once = max(1, min(hardware.smem_per_sm // smem, _REGISTERS_PER_SM // (128 * REGISTERS[plan.block_m])))
    at_once = min(at_once, _BLOCKS_PER_SM, -(-plan.blocks // hardware.sms))
    waves = -(-plan.blocks // (hardware.sms * at_once))
    stage = stage_cycles(plan, hardware)
    latency = (_LATENCY_CYCLES / max(1, plan.stages - 1) + stage) / at_once
    seconds = waves * at_once * (plan.steps * max(stage, latency) + _BLOCK_CYCLES / at_once) / hardware.clock_hz
    if plan.split_k > 1 or product.gated:  # which XLA finishes from float32 sums
        written = 2 * plan.split_k * plan.m_tiles * plan.block_m * plan.tiles * ROWS * 4
    else:
        written = product.m * product.n * product.out_bytes
    return seconds + hardware.memory_seconds(written)


def stage_cycles(plan: PortablePlan, hardware: Hardware) -> float:
    """Cycles a stage of a block takes with the multiprocessor to itself: the norm of what each resource takes."""
    products = plan.block_m / 8 * plan.block_k / 16  # of each of the four warps
    tensor = tensor_cycles(ROWS * plan.block_k * plan.block_m, hardware)
    # An mma and its two loads of x; four multiply-adds a group and 8 tokens.
    unpack = ROWS * plan.block_k * INSTRUCTIONS[plan.kind] / 128
    issue = unpack + 3 * products + plan.block_m / 2 * plan.groups + _STAGE_CYCLES
    shared = 4 * 2 * products * 128 / _SMEM_BYTES_PER_CYCLE
    bytes_per_cycle = hardware.memory_bandwidth / hardware.sms / hardware.clock_hz
    # The first of the token tiles brings a weight to the second level cache, which serves the others.
    memory = plan.weight_stage_bytes() / plan.m_tiles / bytes_per_cycle
    cache = (plan.block_m * plan.block_k * 2 + plan.weight_stage_bytes()) / _L2_BYTES_PER_CYCLE
    return math.hypot(tensor, issue, shared, memory, cache)


PLANNER = Planner(_alternatives, _check_config, _predicted_seconds)
