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
dropped by it. Sizes and configurations are _decode_plan_sm100's. Leaves out M > 16
(prefill_sm100). Source: gpu-kernels, ops-and-criteria.
"""

import functools
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.mosaic_gpu._decode_plan_sm100 import (
    INSTRUCTIONS as INSTRUCTIONS,
    MAX_M as MAX_M,
    PLANNER as PLANNER,
    DecodePlan,
    sums_layout,
)
from pallas_kernels.mosaic_gpu._row_unpack import LANES
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.planes import WeightPlanes
from pallas_kernels.tiling import DecodeConfig

# Newer jax makes the index of plgpu.load optional.
# pyright: reportCallIssue=false


def _start_copies(
    plan: DecodePlan, gmem: dict[str, Any], smem: dict[str, Any], row: Any, block: Any, slot: Any
) -> None:
    """Start filling a stage with K stage `block`, for the 128 rows from `row` on."""
    full, block_k = smem["full"].at[slot], plan.config.block_k
    plan.weights.copy(gmem, smem["ring"], row, block, slot, full)
    plgpu.copy_gmem_to_smem(gmem["x"].at[:, pl.ds(block * block_k, block_k)], smem["x"].at[slot], full)


def _load_scales(plan: DecodePlan, gmem: dict[str, Any], row: Any, block: Any) -> list[jax.Array]:
    """float32 [128] of each group of K stage `block`; empty where sums are not scaled here."""
    if not plan.weights.grouped:
        return []
    layout = sums_layout().reduce(1)
    scales = []
    for g in range(plan.sums):
        words_gmem = gmem["scales"].at[pl.ds(row, LANES), block * plan.sums + g]
        words = plgpu.load(words_gmem, layout=layout, optimized=False)
        scales.append(lax.bitcast_convert_type(words, jnp.float16).astype(jnp.float32))
    return scales


def _add_products(
    plan: DecodePlan,
    smem: dict[str, Any],
    wg: Any,
    slot: Any,
    scales: list[jax.Array],
    total: jax.Array,
    interpret: bool,
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
        product = plgpu.async_load_tmem(part, layout=sums_layout())
        total = total + (product * lax.broadcast_in_dim(scales[g], product.shape, (0,)) if scales else product)
    plgpu.wait_load_tmem()
    return plgpu.layout_cast(total, sums_layout())


def _body(plan: DecodePlan, interpret: bool, gmem: dict[str, Any], sums_gmem: Any, smem: dict[str, Any]) -> None:
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

    zero = plgpu.layout_cast(jnp.zeros((LANES, MAX_M), jnp.float32), sums_layout())
    turns = lax.div(jnp.maximum(last - first + config.warpgroups - 1, 0), config.warpgroups)
    smem["totals"].at[wg][...] = lax.fori_loop(0, turns, turn, zero)
    plgpu.barrier_arrive(smem["done"])
    plgpu.barrier_wait(smem["done"])

    @pl.when(wg == 0)
    def _store():
        load = functools.partial(plgpu.load, layout=sums_layout(), optimized=False)
        smem["totals"].at[0][...] = functools.reduce(
            jnp.add, [load(smem["totals"].at[i]) for i in range(config.warpgroups)]
        )
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem["totals"].at[0], sums_gmem.at[split, pl.ds(row, LANES)])
        plgpu.wait_smem_to_gmem(0)


def _launch(x: jax.Array, planes: WeightPlanes, plan: DecodePlan, call: Call) -> jax.Array:
    """float32 [n, 16]: sums of x times codes and group or block scales."""
    columns = plan.blocks * plan.config.block_k
    x = jnp.pad(x, ((0, MAX_M - x.shape[0]), (0, columns - x.shape[1])))
    kernel = plgpu.kernel(
        functools.partial(_body, plan, call.interpreted),
        out_type=jax.ShapeDtypeStruct((plan.split_k, plan.n, MAX_M), jnp.float32),
        scratch_types=[plan.scratch()],
        # The last axis is the one that may have more than 65535.
        grid=(plan.split_k, plan.tiles),
        grid_names=("split", "tile"),
        num_threads=plan.config.warpgroups,
        thread_name="warpgroup",
        interpret=call.interpret,
    )
    return jnp.sum(kernel({"x": x, **plan.weights.views(planes, plan.tiles * LANES)}), axis=0)


def run(x: jax.Array, planes: WeightPlanes, config: DecodeConfig, call: Call) -> jax.Array:
    """The product that `Call` describes, of at most 16 tokens; XLA does all that follows the sums."""
    m = x.shape[0]
    PLANNER.check_config(config, call.product(m))
    sums = _launch(x, planes, DecodePlan(call.n, call.k, call.kind, config), call).T[:m]
    return call.finish(call.scale_rows(sums, planes))
