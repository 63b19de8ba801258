"""Sizes, limits and choice of the Blackwell decode kernel's launches. All static; nothing here runs on a GPU.

    time = waves of blocks * stages * max(device memory, latency / stages in flight, instruction issue) + ramp

Constants are static counts (from `benchmarks.aot`) and latencies of the order published for such parts; nothing was
measured. Leaves out the kernel (decode_sm100) and the choice (planning). Source: gpu-kernels, ops-and-criteria.
"""

import itertools
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

from pallas_kernels.errors import KernelConfigError
from pallas_kernels.mosaic_gpu._prefill_plan_sm100 import TMEM_COLUMNS
from pallas_kernels.mosaic_gpu._row_tiles import RowTiles
from pallas_kernels.mosaic_gpu._row_unpack import LANES
from pallas_kernels.mosaic_gpu.planning import SMEM_RESERVE, Planner, Product, swizzled
from pallas_kernels.planes import plane_bytes
from pallas_kernels.tiling import DecodeConfig, require_fits

MAX_M = 16
#: All instructions a weight of the main loop, as compiled for sm_100a.
INSTRUCTIONS = MappingProxyType({"q4": 3.0, "q5": 4.1, "q6": 4.2, "w8": 3.7, "fp8": 3.5, "nvfp4": 4.3})
#: Seconds from a copy's start to its data, and seconds of a launch before its first and after its last stage.
_LATENCY, _RAMP = 0.9e-6, 2.5e-6
#: Cycles a warpgroup waits a stage for barriers and for its multiply.
_WAIT_CYCLES = 700.0


def sums_layout() -> Any:
    """Layout of [128, 16] float32: a thread has its row, as tensor memory has it."""
    return plgpu.Layout.TCGEN05_TMEM_NATIVE


class DecodePlan:
    """Sizes of one launch. All static."""

    def __init__(self, n: int, k: int, kind: str, config: DecodeConfig):
        self.n, self.config = n, config
        self.weights = RowTiles(kind, k, config.block_k)
        self.blocks = self.weights.k_steps
        self.split_k = min(config.split_k, self.blocks)
        self.tiles = -(-n // LANES)
        # Columns one multiply sums before their scale is applied, which is also how wide x is swizzled.
        self.sum_columns = min(self.weights.group_size, 64) if self.weights.grouped else config.block_k
        self.sums = config.block_k // self.sum_columns

    def scratch(self) -> dict[str, Any]:
        """Shared memory, tensor memory and barriers."""
        config, slots = self.config, self.config.warpgroups * self.config.stages
        swizzle = min(self.sum_columns, 64) * 2
        return {
            "x": plgpu.SMEM((slots, MAX_M, config.block_k), jnp.bfloat16, transforms=swizzled(swizzle, 16)),
            "ring": self.weights.scratch(slots),
            "totals": plgpu.SMEM((config.warpgroups, LANES, MAX_M), jnp.float32),
            "operand": plgpu.TMEM((LANES, config.warpgroups * config.block_k), jnp.bfloat16, packed=True),
            "sums": plgpu.TMEM((LANES, config.warpgroups * self.sums * MAX_M), jnp.float32),
            "full": plgpu.Barrier(num_arrivals=1 + self.weights.copies, num_barriers=slots),
            "summed": plgpu.Barrier(num_barriers=config.warpgroups, orders_tensor_core=True),
            "done": plgpu.Barrier(num_arrivals=config.warpgroups),
        }


def _check_config(config: DecodeConfig, product: Product) -> None:
    kind, plan = product.kind, DecodePlan(product.n, product.k, product.kind, config)
    if config.rows != LANES:
        raise KernelConfigError(f"rows={config.rows} is not allowed: tensor memory has 128 lanes; choose 128")
    step = 128 if kind == "q5" else 64
    if config.block_k % step or (plan.weights.grouped and product.stored_k % config.block_k):
        raise KernelConfigError(
            f"block_k={config.block_k} is not allowed for the {product.k} columns of a {kind} weight: choose a "
            f"multiple of {step} that divides its {product.stored_k} stored columns"
        )
    columns = config.warpgroups * (config.block_k // 2 + plan.sums * MAX_M)
    require_fits(f"{config} for {kind}: tensor memory (columns)", columns, TMEM_COLUMNS)
    stage = plan.weights.stage_bytes + MAX_M * config.block_k * 2
    need = config.warpgroups * (config.stages * stage + LANES * MAX_M * 4) + SMEM_RESERVE
    require_fits(f"{config} for {kind}: shared memory (bytes)", need, product.hardware.smem_per_block)


def _alternatives(product: Product) -> Iterator[list[DecodeConfig]]:
    """Every step, with the deepest ring first; the sums of any number of tokens take the same room."""
    for block_k, warpgroups, split_k in itertools.product((64, 128, 256), (2, 3, 4), (1, 2, 3, 4, 6, 8)):
        if split_k == 1 or -(-product.stored_k // block_k) >= 2 * split_k * warpgroups:
            yield [DecodeConfig(LANES, block_k, warpgroups, stages, split_k) for stages in (8, 6, 5, 4, 3, 2)]


def _predicted_seconds(config: DecodeConfig, product: Product) -> float:
    """Waves of blocks at the slower of memory and instruction issue, and what surrounds them."""
    hardware, plan = product.hardware, DecodePlan(product.n, product.k, product.kind, config)
    waves = -(-plan.tiles * plan.split_k // hardware.sms)
    turns = -(-plan.blocks // plan.split_k)
    memory = plan.weights.stage_bytes * hardware.sms / hardware.memory_bandwidth
    # What is in flight cannot arrive faster than the latency allows.
    memory = max(memory, _LATENCY / (config.warpgroups * config.stages))
    # A scheduler has a warp of each warpgroup; one alone issues every other cycle, then waits for the tensor cores.
    cycles = config.block_k * INSTRUCTIONS[product.kind]
    issue = max(cycles, (2.0 * cycles + _WAIT_CYCLES) / config.warpgroups) / hardware.clock_hz
    body = waves * turns * max(memory, issue)
    sums = 2 * plan.split_k * product.n * MAX_M * 4
    traffic = plane_bytes(product.kind, product.n, product.k) + 2 * product.m * product.k + sums
    return max(body, hardware.memory_seconds(traffic)) + _RAMP


PLANNER = Planner(_alternatives, _check_config, _predicted_seconds)
