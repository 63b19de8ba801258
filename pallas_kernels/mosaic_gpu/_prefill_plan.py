"""Sizes, limits and choice of the prefill kernel's launches. All static; nothing here runs on a GPU.

`PrefillPlan` turns a problem and a `PrefillConfig` into tiles, steps and shared memory. `candidate_configs` lists the
configurations that fit, `predicted_seconds` estimates each with four costs (tensor cores, instruction issue, second
level cache, device memory) and `heuristic_config` takes the cheapest; a measured table (autotune) goes first. Leaves
out the kernel (prefill_sm90). Source: gpu-kernels, ops-and-criteria.
"""

import itertools
from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import H100, Hardware
from pallas_kernels.mosaic_gpu._weight_tiles import CHUNK, ROWS, WeightTiles, tiled
from pallas_kernels.planes import plane_bytes
from pallas_kernels.tiling import PrefillConfig, require_fits, weight_kind

#: Tokens of one epilogue step, and how many steps may be on their way out at once.
OUT_TOKENS, OUT_SLOTS = 64, 2
#: Tokens whose x (20 MB at 5,120 columns) is kept in the second level cache while W passes by.
_BAND_TOKENS = 2048
#: Bytes left free for barriers and the compiler's own use.
_SMEM_RESERVE = 2048
#: Instructions a weight of the K loop, tensor core instructions aside, as compiled for sm_90a (`benchmarks.aot`).
_INSTRUCTIONS = {"q4": 2.5, "q5": 5.2, "q6": 4.9, "w8": 4.8, "fp8": 3.5, "nvfp4": 3.6}
#: Cycles a tile costs outside its K loop, and bytes a multiprocessor gets from the second level cache a cycle.
_EPILOGUE_CYCLES, _L2_BYTES_PER_CYCLE = 2500.0, 28.0
#: Seconds a second kernel (the sum over splits) adds.
_EXTRA_LAUNCH = 3e-6


class PrefillPlan:
    """Sizes of one launch: tiles, K steps, shared memory. All static."""

    def __init__(self, m: int, n: int, k: int, kind: str, config: PrefillConfig, gated: bool, out_dtype: Any):
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
        # Columns of a tile of y: the widest of 128, 64 and 32 bytes that divides n_out, so that y needs no padding.
        widths = [swizzle // self.out_dtype.itemsize for swizzle in (128, 64, 32)]
        self.out_tile = next((width for width in widths if self.n_out % width == 0), widths[-1])
        self.weights = WeightTiles(kind, n, config.block_k, self.parts * self.part_rows)

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
            "x": plgpu.SMEM(ring, jnp.bfloat16, transforms=tiled(config.block_k * 2, 16)),
            "ring": self.weights.scratch(config.stages),
            "out": plgpu.SMEM(out, self.out_dtype, transforms=tiled(self.out_tile * bits // 8, bits)),
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


def check_config(
    config: PrefillConfig, *, kind: str, k: int, gated: bool = False, out_bytes: int = 2, hardware: Hardware = H100
) -> None:
    """Raise `KernelConfigError` where the kernel cannot run a configuration for this weight.

    Args:
      config: the configuration.
      kind: a name of `WEIGHT_KINDS`.
      k: columns of the weight.
      gated: whether the product is a gated one.
      out_bytes: bytes of an element of the result.
      hardware: the device, for its shared memory.
    """
    if config.block_m * parts_of(config, gated) > 256:
        raise KernelConfigError(
            f"block_m={config.block_m} is not allowed for a gated product or with two row blocks, because two "
            "accumulators would not fit in registers: choose 128 or less"
        )
    if config.consumers == 3 and config.block_m * parts_of(config, gated) > 128:
        raise KernelConfigError(
            f"block_m={config.block_m} is not allowed with three consumers, whose registers hold one accumulator of "
            "128 tokens: choose less, one row block, or two consumers"
        )
    if kind == "q5" and config.block_k != 128:
        raise KernelConfigError(
            f"block_k={config.block_k} is not allowed for q5, whose high bits are copied 16 bytes a row: choose 128"
        )
    if weight_kind(kind).k_padded(k) % config.block_k and kind == "nvfp4":
        raise KernelConfigError(
            f"block_k={config.block_k} does not divide the {k} columns of an nvfp4 weight: choose 64"
        )
    need = smem_bytes(config, kind, gated, 4 if config.split_k > 1 else out_bytes) + _SMEM_RESERVE
    require_fits(f"{config} for {kind}: shared memory (bytes)", need, hardware.smem_per_block)


def candidate_configs(
    *, kind: str, m: int, n: int, k: int, gated: bool = False, out_bytes: int = 2, hardware: Hardware = H100
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
    sizes = itertools.product((32, 64, 128, 256), (64, 128), (1, 2, 3), (1, 2), (1, 2, 4, 8))
    for block_m, block_k, consumers, row_blocks, split_k in sizes:
        if block_m > smallest or (gated and split_k == 1 and row_blocks > 1):
            continue
        steps = -(-weight_kind(kind).k_padded(k) // block_k)
        tiles = -(-m // block_m) * -(-n // (ROWS * consumers * row_blocks))
        if split_k > 1 and (tiles * split_k > 2 * hardware.sms or steps < 4 * split_k):
            continue
        for stages in (8, 6, 5, 4, 3, 2):
            config = PrefillConfig(block_m, block_k, stages, consumers, row_blocks, split_k)
            try:
                check_config(config, kind=kind, k=k, gated=gated, out_bytes=out_bytes, hardware=hardware)
            except KernelConfigError:
                continue
            found.append(config)
            break
    return tuple(found)


def predicted_seconds(
    config: PrefillConfig,
    *,
    kind: str,
    m: int,
    n: int,
    k: int,
    gated: bool = False,
    out_bytes: int = 2,
    hardware: Hardware = H100,
) -> float:
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
    # Splitting K turns a gated product into a plain one over all rows.
    fused = gated and config.split_k == 1
    plan = PrefillPlan(m, n, k, kind, config, fused, jnp.bfloat16)
    weights = plan.parts * plan.part_rows * config.block_k
    flops_per_cycle = hardware.bf16_flops / (hardware.sms * hardware.clock_hz)
    tensor = 2.0 * weights * config.block_m / flops_per_cycle
    issue = weights * _INSTRUCTIONS[kind] / 128
    cache = (
        config.block_m * config.block_k * 2 + plan.parts * plan.part_rows * _packed_bytes(kind, config.block_k)
    ) / (_L2_BYTES_PER_CYCLE)
    # One consumer cannot unpack while its own wgmma runs; more take turns.
    step = max(tensor + issue if config.consumers == 1 else max(tensor, issue), cache)
    waves = -(-plan.tiles // hardware.sms)
    compute = waves * (plan.steps * step + _EPILOGUE_CYCLES) / hardware.clock_hz
    traffic = plane_bytes(kind, n, k) + 2 * m * k + out_bytes * m * (n // 2 if gated else n)
    if config.split_k > 1:
        traffic += 2 * 4 * m * n * plan.split_k
    return max(compute, hardware.memory_seconds(traffic)) + (_EXTRA_LAUNCH if config.split_k > 1 else 0.0)


def heuristic_config(
    *, kind: str, m: int, n: int, k: int, gated: bool = False, out_bytes: int = 2, hardware: Hardware = H100
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
        "kind": kind,
        "m": m,
        "n": n,
        "k": k,
        "gated": gated,
        "out_bytes": out_bytes,
        "hardware": hardware,
    }
    return min(candidate_configs(**problem), key=lambda config: predicted_seconds(config, **problem))
