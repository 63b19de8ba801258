"""Sizes, limits and choice of the Blackwell prefill kernel's launches. All static; nothing here runs on a GPU.

`PrefillPlan` turns a problem and a `PrefillConfig` into tiles, steps, shared and tensor memory. `candidate_configs`
lists the configurations that fit, `predicted_seconds` estimates each with four costs (tensor cores, instruction issue,
second level cache, device memory) and `heuristic_config` takes the cheapest. Leaves out the kernel (prefill_sm100).
Source: gpu-kernels, ops-and-criteria.
"""

import itertools
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import B200, Hardware
from pallas_kernels.mosaic_gpu._row_tiles import RowTiles, tile_transforms
from pallas_kernels.mosaic_gpu._row_unpack import LANES
from pallas_kernels.planes import plane_bytes
from pallas_kernels.tiling import PrefillConfig, require_fits, weight_kind

#: Tokens of one epilogue step, and how many steps may be on their way out at once.
OUT_TOKENS, OUT_SLOTS = 32, 2
#: 32-bit columns of tensor memory.
TMEM_COLUMNS = 512
#: Bytes left free for barriers and the compiler's own use.
_SMEM_RESERVE = 2048
#: Instructions a weight of an unpacker's loop, as compiled for sm_100a (`benchmarks.aot`).
INSTRUCTIONS = {"q4": 3.4, "q5": 4.5, "q6": 4.5, "w8": 4.0, "fp8": 2.9, "nvfp4": 3.6}
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
        # Columns of a tile of y: the widest of 128, 64 and 32 bytes that divides n_out, so that y needs no padding.
        widths = [swizzle // self.out_dtype.itemsize for swizzle in (128, 64, 32)]
        self.out_tile = next((width for width in widths if self.n_out % width == 0), widths[-1])
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
            "x": plgpu.SMEM((stages, config.block_m, config.block_k), jnp.bfloat16, transforms=tile_transforms(128, 2)),
            "ring": self.weights.scratch(slots),
            "out": plgpu.SMEM(
                (OUT_SLOTS, self.out_tokens, LANES),
                self.out_dtype,
                transforms=tile_transforms(self.out_tile * size, size),
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


def check_config(
    config: PrefillConfig, *, kind: str, n: int, k: int, gated: bool = False, out_bytes: int = 2,
    hardware: Hardware = B200,
) -> None:  # fmt: skip
    """Raise `KernelConfigError` where the kernel cannot run a configuration for this weight.

    Args:
      config: the configuration.
      kind: a name of `WEIGHT_KINDS`.
      n: rows of the weight.
      k: columns of the weight.
      gated: whether the product is a gated one.
      out_bytes: bytes of an element of the result.
      hardware: the device, for its shared memory.
    """
    fused = gated and fuses(config, kind, n)
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
    need = smem_bytes(config, kind, fused, 4 if config.split_k > 1 else out_bytes) + _SMEM_RESERVE
    require_fits(f"{config} for {kind}: shared memory (bytes)", need, hardware.smem_per_block)


def candidate_configs(
    *, kind: str, m: int, n: int, k: int, gated: bool = False, out_bytes: int = 2, hardware: Hardware = B200
) -> tuple[PrefillConfig, ...]:
    """Every configuration worth trying for y[m, n] = x @ W[n, k].T: those that fit, with the deepest ring that does.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      m: tokens.
      n: rows of the weight ([gate; up] for a gated product).
      k: columns of the weight.
      gated: whether the product is a gated one.
      out_bytes: bytes of an element of the result.
      hardware: the device.
    """
    found = []
    smallest = next((b for b in (32, 64, 128, 256) if b >= m), 256)
    for block_m, block_k, consumers, split_k in itertools.product((32, 64, 128, 256), (64, 128), (1, 2), (1, 2, 4, 8)):
        if block_m > smallest:
            continue
        steps = -(-weight_kind(kind).k_padded(k) // block_k)
        tiles = -(-m // block_m) * -(-n // LANES)
        if split_k > 1 and (tiles * split_k > 2 * hardware.sms or steps < 4 * split_k):
            continue
        for stages in (8, 7, 6, 5, 4, 3, 2):
            try:
                config = PrefillConfig(block_m, block_k, stages, consumers, split_k=split_k)
                check_config(config, kind=kind, n=n, k=k, gated=gated, out_bytes=out_bytes, hardware=hardware)
            except KernelConfigError:
                continue
            found.append(config)
            break
    return tuple(found)


def predicted_seconds(
    config: PrefillConfig, *, kind: str, m: int, n: int, k: int, gated: bool = False, out_bytes: int = 2,
    hardware: Hardware = B200,
) -> float:  # fmt: skip
    """A rough time of a launch: waves of tiles at their slowest resource, or device memory, whichever is longer.

    Args:
      config: the configuration.
      kind: a name of `WEIGHT_KINDS`.
      m: tokens.
      n: rows of the weight.
      k: columns of the weight.
      gated: whether the product is a gated one.
      out_bytes: bytes of an element of the result.
      hardware: the device.
    """
    plan = PrefillPlan(m, n, k, kind, config, gated and fuses(config, kind, n), jnp.bfloat16)
    weights = plan.parts * LANES * config.block_k
    flops_per_cycle = hardware.bf16_flops / (hardware.sms * hardware.clock_hz)
    tensor = 2.0 * weights * config.block_m / flops_per_cycle
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
    traffic = plane_bytes(kind, n, k) + 2 * m * k + out_bytes * m * (n // 2 if gated else n)
    if config.split_k > 1:
        traffic += 2 * 4 * m * n * plan.split_k
    return max(compute, hardware.memory_seconds(traffic)) + (_EXTRA_LAUNCH if config.split_k > 1 else 0.0)


def heuristic_config(
    *, kind: str, m: int, n: int, k: int, gated: bool = False, out_bytes: int = 2, hardware: Hardware = B200
) -> PrefillConfig:
    """The candidate with the smallest predicted time.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      m: tokens.
      n: rows of the weight.
      k: columns of the weight.
      gated: whether the product is a gated one.
      out_bytes: bytes of an element of the result.
      hardware: the device.
    """
    problem: dict[str, Any] = {
        "kind": kind, "m": m, "n": n, "k": k, "gated": gated, "out_bytes": out_bytes, "hardware": hardware,
    }  # fmt: skip
    return min(candidate_configs(**problem), key=lambda config: predicted_seconds(config, **problem))
