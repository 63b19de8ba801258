"""Sizes, limits and choice of the Blackwell decode kernel's launches. All static; nothing here runs on a GPU.

    time = waves of blocks * stages * max(device memory, latency / stages in flight, instruction issue) + ramp

Constants are static counts (from `benchmarks.aot`) and latencies of the order published for such parts; nothing was
measured. Leaves out the kernel (decode_sm100). Source: gpu-kernels, ops-and-criteria.
"""

import itertools
from types import MappingProxyType
from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import B200, Hardware
from pallas_kernels.mosaic_gpu._prefill_plan_sm100 import TMEM_COLUMNS
from pallas_kernels.mosaic_gpu._row_tiles import RowTiles, tile_transforms
from pallas_kernels.mosaic_gpu._row_unpack import LANES
from pallas_kernels.planes import plane_bytes
from pallas_kernels.tiling import DecodeConfig, require_fits, weight_kind

MAX_M = 16
#: All instructions a weight of the main loop, as compiled for sm_100a.
INSTRUCTIONS = MappingProxyType({"q4": 3.0, "q5": 4.1, "q6": 4.2, "w8": 3.7, "fp8": 3.5, "nvfp4": 4.3})
#: Bytes left free for barriers and the compiler's own use.
_SMEM_RESERVE = 2048
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
            "x": plgpu.SMEM((slots, MAX_M, config.block_k), jnp.bfloat16, transforms=tile_transforms(swizzle, 2)),
            "ring": self.weights.scratch(slots),
            "totals": plgpu.SMEM((config.warpgroups, LANES, MAX_M), jnp.float32),
            "operand": plgpu.TMEM((LANES, config.warpgroups * config.block_k), jnp.bfloat16, packed=True),
            "sums": plgpu.TMEM((LANES, config.warpgroups * self.sums * MAX_M), jnp.float32),
            "full": plgpu.Barrier(num_arrivals=1 + self.weights.copies, num_barriers=slots),
            "summed": plgpu.Barrier(num_barriers=config.warpgroups, orders_tensor_core=True),
            "done": plgpu.Barrier(num_arrivals=config.warpgroups),
        }


def check_config(config: DecodeConfig, *, kind: str, k: int, hardware: Hardware = B200) -> None:
    """Raise `KernelConfigError` where the kernel cannot run a configuration for this weight.

    Args:
      config: the configuration.
      kind: a name of `WEIGHT_KINDS`.
      k: columns of the weight.
      hardware: the device, for its shared memory.
    """
    if config.rows != LANES:
        raise KernelConfigError(f"rows={config.rows} is not allowed: tensor memory has 128 lanes; choose 128")
    step = 128 if kind == "q5" else 64
    if config.block_k % step or (kind not in ("fp8", "nvfp4") and weight_kind(kind).k_padded(k) % config.block_k):
        raise KernelConfigError(
            f"block_k={config.block_k} is not allowed for the {k} columns of a {kind} weight: choose a multiple of "
            f"{step} that divides its {weight_kind(kind).k_padded(k)} stored columns"
        )
    plan = DecodePlan(LANES, k, kind, config)
    columns = config.warpgroups * (config.block_k // 2 + plan.sums * MAX_M)
    require_fits(f"{config} for {kind}: tensor memory (columns)", columns, TMEM_COLUMNS)
    stage = plan.weights.stage_bytes + MAX_M * config.block_k * 2
    need = config.warpgroups * (config.stages * stage + LANES * MAX_M * 4) + _SMEM_RESERVE
    require_fits(f"{config} for {kind}: shared memory (bytes)", need, hardware.smem_per_block)


def candidate_configs(
    *, kind: str, m: int, n: int, k: int, gated: bool = False, out_bytes: int = 2, hardware: Hardware = B200
) -> tuple[DecodeConfig, ...]:
    """Every configuration worth trying: those that fit, with the deepest ring that does.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      m: tokens, 1 to 16; the sums of all take the same room.
      n: rows of the weight.
      k: columns of the weight.
      gated: whether the product is a gated one; it is made of the same sums.
      out_bytes: bytes of an element of the result; sums are float32 whatever it is.
      hardware: the device.
    """
    del m, n, gated, out_bytes
    found = []
    for block_k, warpgroups, split_k in itertools.product((64, 128, 256), (2, 3, 4), (1, 2, 3, 4, 6, 8)):
        blocks = -(-weight_kind(kind).k_padded(k) // block_k)
        if split_k > 1 and blocks < 2 * split_k * warpgroups:
            continue
        for stages in (8, 6, 5, 4, 3, 2):
            config = DecodeConfig(LANES, block_k, warpgroups, stages, split_k)
            try:
                check_config(config, kind=kind, k=k, hardware=hardware)
            except KernelConfigError:
                continue
            found.append(config)
            break
    return tuple(found)


def predicted_seconds(
    config: DecodeConfig,
    *,
    kind: str,
    m: int,
    n: int,
    k: int,
    gated: bool = False,
    out_bytes: int = 2,
    hardware: Hardware = B200,
) -> float:
    """A rough time of a launch: waves of blocks at the slower of memory and instruction issue, and what surrounds them.

    Args:
      config: the configuration.
      kind: a name of `WEIGHT_KINDS`.
      m: tokens, 1 to 16.
      n: rows of the weight.
      k: columns of the weight.
      gated: whether the product is a gated one; it is made of the same sums.
      out_bytes: bytes of an element of the result; sums are float32 whatever it is.
      hardware: the device.
    """
    del gated, out_bytes
    plan = DecodePlan(n, k, kind, config)
    waves = -(-plan.tiles * plan.split_k // hardware.sms)
    turns = -(-plan.blocks // plan.split_k)
    memory = plan.weights.stage_bytes * hardware.sms / hardware.memory_bandwidth
    # What is in flight cannot arrive faster than the latency allows.
    memory = max(memory, _LATENCY / (config.warpgroups * config.stages))
    # A scheduler has a warp of each warpgroup; one alone issues every other cycle, then waits for the tensor cores.
    cycles = config.block_k * INSTRUCTIONS[kind]
    issue = max(cycles, (2.0 * cycles + _WAIT_CYCLES) / config.warpgroups) / hardware.clock_hz
    body = waves * turns * max(memory, issue)
    sums = 2 * plan.split_k * n * MAX_M * 4
    traffic = plane_bytes(kind, n, k) + 2 * m * k + sums
    return max(body, hardware.memory_seconds(traffic)) + _RAMP


def heuristic_config(
    *, kind: str, m: int, n: int, k: int, gated: bool = False, out_bytes: int = 2, hardware: Hardware = B200
) -> DecodeConfig:
    """The candidate with the smallest predicted time.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      m: tokens, 1 to 16.
      n: rows of the weight.
      k: columns of the weight.
      gated: whether the product is a gated one; it is made of the same sums.
      out_bytes: bytes of an element of the result; sums are float32 whatever it is.
      hardware: the device.
    """
    del gated, out_bytes
    problem: dict[str, Any] = {"kind": kind, "m": m, "n": n, "k": k, "hardware": hardware}
    return min(candidate_configs(**problem), key=lambda config: predicted_seconds(config, **problem))
