"""Prefill on Blackwell (sm_100a): y = x @ W.T for M > 16 with tcgen05. Has not run on a GPU.

A block computes tiles of y^T = W x^T, [128 rows of W, block_m tokens], one after another (a persistent grid). Rows of W
are the 128 lanes of tensor memory, which holds the accumulators and the unpacked weights. What runs over time:

    copier     (a warp) wait until a stage is empty; start the copies of x [block_m, block_k] and of the packed planes
               [128, block_k] into it (TMA, out of bounds gives zeros); on to the next K step, across the seams between
               tiles; at the end wait until every stage was emptied.
    unpackers  (one or two warpgroups, stages in turn) fetch the group scales of the next stage from device memory; wait
               until the stage was multiplied and is full again; a thread a row, packed words to bfloat16 times scales,
               to the stage's place in tensor memory; tell the multiplier, and the copier that the packed words were
               read.
    multiplier (a warp) wait for the stage's operand; accumulate += operand (tensor memory) @ x (shared memory), at
               block_m columns; its completion empties the stage of x; after the last K step it hands the sums over.
    finisher   (a warpgroup) wait for an accumulator; epilogue in float32, transpose through shared memory, copy to y
               (TMA, out of bounds is dropped); give the accumulator back, while the next tile is multiplied into
               another one where tensor memory has room for two.

A gated product keeps two accumulators, a gate row and the up row n/2 below it, over the same x. Splitting K writes
float32 partial sums, which XLA adds. Sizes and configurations are _prefill_plan_sm100's, weight tiles _row_tiles'.
Leaves out M <= 16 (decode_sm100) and pairs of blocks that share a multiply. Source: gpu-kernels.
"""

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.mosaic_gpu._epilogue import Epilogue
from pallas_kernels.mosaic_gpu._prefill_plan_sm100 import OUT_SLOTS, PLANNER as PLANNER, PrefillPlan, fuses, row_layout
from pallas_kernels.mosaic_gpu._row_unpack import COLUMNS, LANES
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.planes import WeightPlanes
from pallas_kernels.tiling import PrefillConfig

# Newer jax makes the index of plgpu.load optional.
# pyright: reportCallIssue=false


def _copy_stages(plan: PrefillPlan, gmem: dict[str, Any], smem: dict[str, Any], cta: Any, blocks: int, total: Any):
    """The copier's part: `total` K steps."""
    config = plan.config

    def step(index, _):
        m0, n0, split = plan.coordinates(cta + index // plan.steps * blocks)
        k_step, slot = split * plan.steps + index % plan.steps, index % config.stages

        @pl.when(index >= config.stages)
        def _wait_until_empty():
            plgpu.barrier_wait(smem["empty"].at[slot])

        plan.copy_stage(gmem, smem, m0, n0, k_step, slot)

    lax.fori_loop(0, total, step, None)
    left = jnp.minimum(total, config.stages)

    def drain(index, _):
        plgpu.barrier_wait(smem["empty"].at[(total - left + index) % config.stages])

    lax.fori_loop(0, left, drain, None)


def _unpack_stages(
    plan: PrefillPlan,
    gmem: dict[str, Any],
    smem: dict[str, Any],
    wg: Any,
    cta: Any,
    blocks: int,
    total: Any,
    interpret: bool,
) -> None:
    """An unpacker's part: every `consumers`-th of `total` K steps, from the wg-th on."""
    config = plan.config

    def fetch(index):
        index = jnp.minimum(index, total - 1)
        _, n0, split = plan.coordinates(cta + index // plan.steps * blocks)
        k_step = split * plan.steps + index % plan.steps
        return [plan.weights.fetch_scales(gmem, n0 + part * plan.n_out, k_step) for part in range(plan.parts)]

    def step(turn, scales):
        index = wg + turn * config.consumers
        slot = index % config.stages
        following = fetch(index + config.consumers)

        @pl.when(index >= config.stages)
        def _wait_until_multiplied():
            # A full stage was emptied before, but only this wait orders stores to tensor memory after its multiply.
            plgpu.barrier_wait(smem["empty"].at[slot])

        plgpu.barrier_wait(smem["full"].at[slot])
        for part in range(plan.parts):
            place = slot * plan.parts + part
            plan.weights.store_operand(
                smem["ring"], place, scales[part], smem["operand"], place * config.block_k, interpret
            )
        plgpu.commit_tmem()
        plgpu.barrier_arrive(smem["unpacked"].at[slot])
        plgpu.commit_smem()  # the copy engine must not overtake this warpgroup's reads of the stage
        plgpu.barrier_arrive(smem["empty"].at[slot])
        return following

    turns = lax.div(total - wg + config.consumers - 1, config.consumers)
    lax.fori_loop(0, turns, step, fetch(wg))
    left = jnp.minimum(turns, config.stages // config.consumers)

    def drain(turn, _):
        index = wg + (turns - left + turn) * config.consumers
        plgpu.barrier_wait(smem["empty"].at[index % config.stages])

    lax.fori_loop(0, left, drain, None)


def _multiply_stages(plan: PrefillPlan, smem: dict[str, Any], tiles: Any, interpret: bool) -> None:
    """The multiplier's part."""

    def tile(index, _):
        accumulator = index % plan.accumulators

        @pl.when(index >= plan.accumulators)
        def _wait_until_read():
            plgpu.barrier_wait(smem["read"].at[accumulator])

        def step(k_step, _):
            slot = (index * plan.steps + k_step) % plan.config.stages
            plgpu.barrier_wait(smem["full"].at[slot])
            plan.multiply_stage(smem, slot, accumulator, k_step > 0, interpret)
            plgpu.tcgen05_commit_arrive(smem["empty"].at[slot])

        lax.fori_loop(0, plan.steps, step, None)
        plgpu.tcgen05_commit_arrive(smem["summed"].at[accumulator])

    lax.fori_loop(0, tiles, tile, None)
    left = jnp.minimum(tiles, plan.accumulators)

    def drain(index, _):
        plgpu.barrier_wait(smem["read"].at[(tiles - left + index) % plan.accumulators])

    lax.fori_loop(0, left, drain, None)


def _finish_tiles(
    plan: PrefillPlan,
    epilogue: Epilogue,
    gmem: dict[str, Any],
    y: Any,
    smem: dict[str, Any],
    cta: Any,
    blocks: int,
    tiles: Any,
) -> None:
    """The finisher's part."""
    tokens, pieces = plan.out_tokens, plan.config.block_m // plan.out_tokens

    def tile(index, _):
        m0, n0, split = plan.coordinates(cta + index * blocks)
        accumulator = index % plan.accumulators
        plgpu.barrier_wait(smem["summed"].at[accumulator])
        rows = [n0 + part * plan.n_out for part in range(plan.parts)]
        for i in range(pieces):
            columns = pl.ds(i * tokens, tokens)
            sums = [
                plgpu.async_load_tmem(plan.accumulator(smem["sums"], accumulator, part).at[:, columns])
                for part in range(plan.parts)
            ]
            if "token_factors" in gmem:
                factors = plgpu.load(
                    gmem["token_factors"].at[pl.ds(m0 + i * tokens, tokens)],
                    layout=plgpu.Layout.TCGEN05.reduce(0),
                    optimized=False,
                )
                sums = [s * lax.broadcast_in_dim(factors, s.shape, (1,)) for s in sums]
            [block] = epilogue.finish(sums, gmem, rows)
            out = smem["out"].at[(index * pieces + i) % OUT_SLOTS]
            plgpu.wait_smem_to_gmem(OUT_SLOTS - 1, wait_read_only=True)
            out.T[...] = plgpu.layout_cast(block.astype(plan.out_dtype), plgpu.Layout.TCGEN05_TRANSPOSED)
            plgpu.commit_smem()
            where = (pl.ds(m0 + i * tokens, tokens), pl.ds(n0, LANES))
            plgpu.copy_smem_to_gmem(out, y.at[(split, *where)] if plan.split_k > 1 else y.at[where])
        plgpu.wait_load_tmem()
        plgpu.barrier_arrive(smem["read"].at[accumulator])

    lax.fori_loop(0, tiles, tile, None)
    plgpu.wait_smem_to_gmem(0)


def launch(plan: PrefillPlan, epilogue: Epilogue, operands: dict[str, jax.Array], call: Call) -> jax.Array:
    """One kernel: [m, n_out], or [split_k, m, n_out] float32 partial sums.

    Args:
      plan: sizes, and how a stage is copied and multiplied.
      epilogue: what happens to finished sums.
      operands: the arrays in device memory that plan and epilogue read.
      call: what is asked for; here, the device and whether to interpret.
    """
    interpreted, blocks = call.interpreted, min(plan.tiles, call.hardware.sms)
    columns = -(-plan.n_out // plan.out_tile) * plan.out_tile
    shape = (plan.m, columns) if plan.split_k == 1 else (plan.split_k, plan.m, columns)

    def body(gmem, y, smem):
        wg, cta = lax.axis_index("warpgroup"), lax.axis_index("block")
        tiles = (plan.tiles - cta + blocks - 1) // blocks

        if plan.unpackers:

            @pl.when(wg < plan.unpackers)
            def _unpacker():
                _unpack_stages(plan, gmem, smem, wg, cta, blocks, tiles * plan.steps, interpreted)

        @pl.when(wg == plan.unpackers)
        def _finisher():
            _finish_tiles(plan, epilogue, gmem, y, smem, cta, blocks, tiles)

        @pl.when(wg == plan.unpackers + 1)
        def _copier_and_multiplier():
            @plgpu.warp_map
            def _warps(warp):
                @pl.when(warp == 0)
                def _copier():
                    _copy_stages(plan, gmem, smem, cta, blocks, tiles * plan.steps)

                @pl.when(warp == 1)
                def _multiplier():
                    _multiply_stages(plan, smem, tiles, interpreted)

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(shape, plan.out_dtype),
        scratch_types=[plan.scratch(interpreted)],
        grid=(blocks,),
        grid_names=("block",),
        num_threads=plan.unpackers + 2,
        thread_name="warpgroup",
        interpret=call.interpret,
    )
    return kernel(operands)[..., : plan.n_out]


def run(x: jax.Array, planes: WeightPlanes, config: PrefillConfig, call: Call) -> jax.Array:
    """The product that `Call` describes; XLA adds a residual."""
    m, kind = x.shape[0], call.kind
    PLANNER.check_config(config, call.product(m))
    x = jnp.pad(x, ((0, -m % 8), (0, -x.shape[1] % COLUMNS)))  # the copy engine moves whole tiles of 8 rows, 128 bytes
    plan_for = lambda gated, dtype: PrefillPlan(x.shape[0], call.n, call.k, kind, config, gated, dtype)

    def start(plan, *fused):
        epilogue = Epilogue(kind, *fused, rows=LANES, row_layout=row_layout())
        operands = {"x": x, **plan.weights.views(planes, plan.padded_rows)}
        operands |= epilogue.operands(planes, call.bias, plan.padded_rows)
        return launch(plan, epilogue, operands, call)

    plain = plan_for(False, jnp.float32)
    if plain.split_k > 1 or (call.gated and not fuses(config, kind, call.n)):
        sums = start(plain)
        return call.finish((jnp.sum(sums, axis=0) if plain.split_k > 1 else sums)[:m])
    # A residual is added in float32, before the one rounding: the kernel leaves that to XLA.
    last = call.residual is None
    plan = plan_for(call.gated, call.out_dtype if last else jnp.float32)
    y = start(plan, call.bias is not None, False, call.activation)[:m]
    return y if last else call.without_affine().finish(y)
