"""Decode on Blackwell (sm_100a): y = x @ W.T for M = 1..16 with tcgen05, reading only packed bytes. Not run on a GPU.

    y[m, n] = sum over groups g of scale[n, g] * (sum over k in g of x[m, k] * code[n, k])

128 rows of W are the lanes of tensor memory, x is the 16 column side. A block takes a row tile and one of `split_k`
parts of K. Its warpgroups are alike and independent: each has a ring of `stages` stages, an operand and sums in tensor
memory of its own, and every `warpgroups`-th K stage is its to do. What each does over time:

    start    start the copies (TMA) of packed codes, high bits, block scales and x into all its stages
    loop     load the group scales of the stage from device memory, ahead of need
             wait for the stage's barrier; a thread a row, codes to bfloat16 (exact), to tensor memory
             multiply each group with the stage's x, each into sums of its own; wait; add scale times each group's sum
             to the float32 totals in registers
             start the copies of a later K stage into the stage just read
    end      totals to shared memory; wait for the other warpgroups; the first one adds them up and stores them (TMA)

While a warpgroup waits for the tensor cores another one unpacks. NVFP4's block scales go into the bfloat16 operand,
exactly. Float32 sums [split_k, N, 16] go back to XLA, which adds, transposes, casts and applies what scales whole rows,
in one fusion. Rows and columns past the end of W are zeros that the copy engine puts there, and sums past the end are
dropped by it. Leaves out M > 16 (prefill_sm100). Source: gpu-kernels, ops-and-criteria.
"""

import functools
import itertools
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import B200, Hardware
from pallas_kernels.mosaic_gpu._epilogue import finish_sums
from pallas_kernels.mosaic_gpu._prefill_plan_sm100 import INSTRUCTIONS, TMEM_COLUMNS
from pallas_kernels.mosaic_gpu._row_tiles import RowTiles, tile_transforms
from pallas_kernels.mosaic_gpu._row_unpack import LANES
from pallas_kernels.planes import WeightPlanes, plane_bytes
from pallas_kernels.tiling import DecodeConfig, require_fits, weight_kind

MAX_M = 16
#: Bytes left free for barriers and the compiler's own use.
_SMEM_RESERVE = 2048
#: Seconds from a copy's start to its data, and seconds of a launch before its first and after its last stage.
_LATENCY, _RAMP = 0.9e-6, 2.5e-6


def _sums_layout() -> Any:
    """Layout of [128, 16] float32: a thread has its row, as tensor memory has it."""
    return plgpu.Layout.TCGEN05_TMEM_NATIVE


class _Plan:
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


def _start_copies(plan: _Plan, gmem: dict[str, Any], smem: dict[str, Any], row: Any, block: Any, slot: Any) -> None:
    """Start filling a stage with K stage `block`, for the 128 rows from `row` on."""
    full, block_k = smem["full"].at[slot], plan.config.block_k
    plan.weights.copy(gmem, smem["ring"], row, block, slot, full)
    plgpu.copy_gmem_to_smem(gmem["x"].at[:, pl.ds(block * block_k, block_k)], smem["x"].at[slot], full)


def _load_scales(plan: _Plan, gmem: dict[str, Any], row: Any, block: Any) -> list[jax.Array]:
    """float32 [128] of each group of K stage `block`; empty where sums are not scaled here."""
    if not plan.weights.grouped:
        return []
    layout = _sums_layout().reduce(1)
    scales = []
    for g in range(plan.sums):
        words_gmem = gmem["scales"].at[pl.ds(row, LANES), block * plan.sums + g]
        words = plgpu.load(words_gmem, layout=layout, optimized=False)
        scales.append(lax.bitcast_convert_type(words, jnp.float16).astype(jnp.float32))
    return scales


def _add_products(
    plan: _Plan, smem: dict[str, Any], wg: Any, slot: Any, scales: list[jax.Array], total: jax.Array, interpret: bool
) -> jax.Array:
    """total + the scaled products of one full stage, float32 [128, 16]."""
    config, columns = plan.config, plan.sum_columns
    operand = wg * config.block_k
    plan.weights.store_operand(smem["ring"], slot, None, smem["operand"], operand, interpret)
    plgpu.commit_tmem()
    parts = [smem["sums"].at[:, pl.ds((wg * plan.sums + g) * MAX_M, MAX_M)] for g in range(plan.sums)]
    for g, part in enumerate(parts):
        plgpu.tcgen05_mma(
            part,
            smem["operand"].at[:, pl.ds(operand + g * columns, columns)],
            smem["x"].at[slot, :, pl.ds(g * columns, columns)].T,
            accumulate=False,
        )
    plgpu.tcgen05_commit_arrive(smem["summed"].at[wg])
    plgpu.barrier_wait(smem["summed"].at[wg])
    for g, part in enumerate(parts):
        product = plgpu.async_load_tmem(part, layout=_sums_layout())
        total = total + (product * lax.broadcast_in_dim(scales[g], product.shape, (0,)) if scales else product)
    plgpu.wait_load_tmem()
    return plgpu.layout_cast(total, _sums_layout())


def _body(plan: _Plan, interpret: bool, gmem: dict[str, Any], sums_gmem: Any, smem: dict[str, Any]) -> None:
    """The kernel: one warpgroup of one block."""
    config, wg = plan.config, lax.axis_index("warpgroup")
    row, split = lax.axis_index("tile") * LANES, lax.axis_index("split")
    first = split * plan.blocks // plan.split_k + wg
    last = (split + 1) * plan.blocks // plan.split_k
    for stage in range(config.stages):
        block = first + stage * config.warpgroups

        @pl.when(block < last)
        def _fill(block=block, stage=stage):
            _start_copies(plan, gmem, smem, row, block, wg * config.stages + stage)

    def turn(index: Any, total: jax.Array) -> jax.Array:
        block = first + index * config.warpgroups
        slot = wg * config.stages + lax.rem(index, config.stages)
        scales = _load_scales(plan, gmem, row, block)
        plgpu.barrier_wait(smem["full"].at[slot])
        total = _add_products(plan, smem, wg, slot, scales, total, interpret)
        later = block + config.warpgroups * config.stages

        @pl.when(later < last)
        def _refill():
            plgpu.commit_smem()  # the copy engine must not overtake this warpgroup's reads of the stage
            _start_copies(plan, gmem, smem, row, later, slot)

        return total

    zero = plgpu.layout_cast(jnp.zeros((LANES, MAX_M), jnp.float32), _sums_layout())
    turns = lax.div(jnp.maximum(last - first + config.warpgroups - 1, 0), config.warpgroups)
    smem["totals"].at[wg][...] = lax.fori_loop(0, turns, turn, zero)
    plgpu.barrier_arrive(smem["done"])
    plgpu.barrier_wait(smem["done"])

    @pl.when(wg == 0)
    def _store():
        load = functools.partial(plgpu.load, layout=_sums_layout(), optimized=False)
        smem["totals"].at[0][...] = functools.reduce(
            jnp.add, [load(smem["totals"].at[i]) for i in range(config.warpgroups)]
        )
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem["totals"].at[0], sums_gmem.at[split, pl.ds(row, LANES)])
        plgpu.wait_smem_to_gmem(0)


def _launch(x: jax.Array, planes: WeightPlanes, plan: _Plan, interpret: Any) -> jax.Array:
    """float32 [n, 16]: sums of x times codes and group or block scales."""
    interpreted = interpret is not None and interpret is not False
    columns = plan.blocks * plan.config.block_k
    x = jnp.pad(x, ((0, MAX_M - x.shape[0]), (0, columns - x.shape[1])))
    kernel = plgpu.kernel(
        functools.partial(_body, plan, interpreted),
        out_type=jax.ShapeDtypeStruct((plan.split_k, plan.n, MAX_M), jnp.float32),
        scratch_types=[plan.scratch()],
        grid=(plan.tiles, plan.split_k),
        grid_names=("tile", "split"),
        num_threads=plan.config.warpgroups,
        thread_name="warpgroup",
        interpret=interpret,
    )
    return jnp.sum(kernel({"x": x, **plan.weights.views(planes, plan.tiles * LANES)}), axis=0)


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
    plan = _Plan(LANES, k, kind, config)
    columns = config.warpgroups * (config.block_k // 2 + plan.sums * MAX_M)
    require_fits(f"{config} for {kind}: tensor memory (columns)", columns, TMEM_COLUMNS)
    stage = plan.weights.stage_bytes + MAX_M * config.block_k * 2
    need = config.warpgroups * (config.stages * stage + LANES * MAX_M * 4) + _SMEM_RESERVE
    require_fits(f"{config} for {kind}: shared memory (bytes)", need, hardware.smem_per_block)


def candidate_configs(*, kind: str, m: int, n: int, k: int, hardware: Hardware = B200) -> tuple[DecodeConfig, ...]:
    """Every configuration worth trying: those that fit, with the deepest ring that does.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      m: tokens, 1 to 16; the sums of all take the same room.
      n: rows of the weight.
      k: columns of the weight.
      hardware: the device.
    """
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


def predicted_seconds(config: DecodeConfig, *, kind: str, m: int, n: int, k: int, hardware: Hardware = B200) -> float:
    """A rough time of a launch: waves of blocks at the slower of memory and instruction issue, and what surrounds them.

    Args:
      config: the configuration.
      kind: a name of `WEIGHT_KINDS`.
      m: tokens, 1 to 16.
      n: rows of the weight.
      k: columns of the weight.
      hardware: the device.
    """
    plan = _Plan(n, k, kind, config)
    waves = -(-plan.tiles * plan.split_k // hardware.sms)
    turns = -(-plan.blocks // plan.split_k)
    memory = plan.weights.stage_bytes * hardware.sms / hardware.memory_bandwidth
    # What is in flight cannot arrive faster than the latency allows.
    memory = max(memory, _LATENCY / (config.warpgroups * config.stages))
    issue = LANES * config.block_k * INSTRUCTIONS[kind] / 128 / hardware.clock_hz
    body = waves * turns * max(memory, issue)
    sums = 2 * plan.split_k * n * MAX_M * 4
    traffic = plane_bytes(kind, n, k) + 2 * m * k + sums
    return max(body, hardware.memory_seconds(traffic)) + _RAMP


def heuristic_config(*, kind: str, m: int, n: int, k: int, hardware: Hardware = B200) -> DecodeConfig:
    """The candidate with the smallest predicted time.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      m: tokens, 1 to 16.
      n: rows of the weight.
      k: columns of the weight.
      hardware: the device.
    """
    problem: dict[str, Any] = {"kind": kind, "m": m, "n": n, "k": k, "hardware": hardware}
    return min(candidate_configs(**problem), key=lambda config: predicted_seconds(config, **problem))


def run(
    x: jax.Array, planes: WeightPlanes, *, kind: str, n: int, k: int, out_dtype: Any, config: DecodeConfig,
    bias: jax.Array | None = None, residual: jax.Array | None = None, activation: str | None = None,
    interpret: Any = False,
) -> jax.Array:  # fmt: skip
    """y = x @ W.T, or act(x @ gate.T) * (x @ up.T), plus bias and residual.

    Args:
      x: bfloat16 [m, k], m at most 16.
      planes: raw planes of the [n, k] weight.
      kind: a name of `WEIGHT_KINDS`.
      n: rows of the weight; with an activation they are [gate; up], n / 2 each.
      k: columns of the weight.
      out_dtype: bfloat16 or float32.
      config: how to cut up the work.
      bias: [n] added to each row's product, or None.
      residual: [m, n or n / 2] added to the result, or None.
      activation: a name of `ACTIVATIONS` for a gated product, or None.
      interpret: False, or the parameters of Pallas' GPU interpreter.

    Returns:
      out_dtype [m, n], or [m, n / 2] for a gated product.
    """
    check_config(config, kind=kind, k=k)
    sums = _launch(x, planes, _Plan(n, k, kind, config), interpret).T[: x.shape[0]]
    if kind == "fp8":
        sums = sums * lax.bitcast_convert_type(jnp.asarray(planes.scales), jnp.bfloat16).astype(jnp.float32)
    if kind == "nvfp4":
        # A division: the reciprocal of a small divisor may overflow where the quotient does not.
        sums = sums / lax.bitcast_convert_type(jnp.asarray(planes.divisor), jnp.float32)
    return finish_sums(sums, bias, activation, residual, out_dtype)
