"""Prefill on Hopper: y = x @ W.T for M > 16, weights dequantized in registers. Has not run on a GPU.

A block computes tiles of y^T = W x^T, [64 * consumers rows of W, block_m tokens], one after another (a persistent
grid), with one producer warpgroup and one to three compute warpgroups over a ring of `stages` stages:

    producer     wait until a stage is empty; start the copies of x [block_m, block_k] and of the packed planes
                 [64 * consumers, block_k] into it (TMA, out of bounds gives zeros); on to the next K step, across the
                 seams between tiles; at the end wait until every stage was emptied.
    consumer w   fetch the scale words of the next K step from device memory; wait until the stage is full; packed words
                 to registers, to bfloat16, times the group scale; wgmma with that register operand (64 rows) and the
                 stage's x (block_m columns); wait for the wgmma; release the stage. After the last K step: epilogue in
                 float32, transpose through shared memory, copy to y (TMA, out of bounds is dropped).

XLA puts the columns of x in the unpacker's order beforehand, so that no thread needs a neighbor's codes. While one
consumer unpacks, the other one's wgmma runs. A gated product keeps two accumulators, a gate row and the up
row n/2 below it, over the same x. Splitting K writes float32 partial sums, which XLA adds. Sizes and configurations
are _prefill_plan's, weight tiles _weight_tiles'. Leaves out M <= 16 (decode_sm90). Source: gpu-kernels.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.mosaic_gpu import _unpack
from pallas_kernels.mosaic_gpu._epilogue import Epilogue
from pallas_kernels.mosaic_gpu._prefill_plan import OUT_SLOTS, PLANNER as PLANNER, PrefillPlan
from pallas_kernels.mosaic_gpu._unpack_tile import factor, scale_parts
from pallas_kernels.mosaic_gpu._weight_tiles import CHUNK, ROWS
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.planes import WeightPlanes
from pallas_kernels.tiling import PrefillConfig

# The type checker sees jax 0.10.2, whose plgpu.load wants an index.
# pyright: reportCallIssue=false

#: Registers a thread of the producer keeps, and a thread of a consumer asks for, by the number of consumers: 65536 are
#: shared by all. A single consumer has enough as it is.
_PRODUCER_REGISTERS, _CONSUMER_REGISTERS = 40, {2: 232, 3: 152}


@dataclasses.dataclass(frozen=True)
class _Block:
    """What the warpgroups of one block share.

    Attributes:
      plan: sizes.
      epilogue: what happens after the last wgmma.
      gmem: references to the operands.
      y: reference to the result.
      smem: references to shared memory and barriers.
      index: which block this is.
      blocks: how many there are; a block's tiles are index, index + blocks, ...
      interpret: whether the kernel is interpreted.
    """

    plan: PrefillPlan
    epilogue: Epilogue
    gmem: dict[str, Any]
    y: Any
    smem: dict[str, Any]
    index: Any
    blocks: int
    interpret: bool

    @property
    def tiles(self) -> Any:
        """Tiles this block computes."""
        return (self.plan.tiles - self.index + self.blocks - 1) // self.blocks

    def coordinates(self, i: Any) -> tuple[Any, Any, Any]:
        """First token, first output row and split of the block's tile i."""
        return self.plan.coordinates(self.index + i * self.blocks)


def _produce(block: _Block) -> None:
    """The producer warpgroup's part."""
    plan, gmem, smem = block.plan, block.gmem, block.smem
    config = plan.config

    def step(index, _):
        m0, n0, split = block.coordinates(index // plan.steps)
        k_step, slot = split * plan.steps + index % plan.steps, index % config.stages

        @pl.when(index >= config.stages)
        def _wait_for_consumers():
            plgpu.barrier_wait(smem["empty"].at[slot])

        full = smem["full"].at[slot]
        x = gmem["x"].at[pl.ds(m0, config.block_m), pl.ds(k_step * config.block_k, config.block_k)]
        plgpu.copy_gmem_to_smem(x, smem["x"].at[slot], full)
        for part in range(plan.parts):
            row = n0 + part * plan.part_stride
            plan.weights.copy(gmem, smem["ring"], row, k_step, slot, part * plan.part_rows, plan.part_rows, full)

    total = block.tiles * plan.steps
    lax.fori_loop(0, total, step, None)
    left = jnp.minimum(total, config.stages)

    def drain(index, _):
        plgpu.barrier_wait(smem["empty"].at[(total - left + index) % config.stages])

    lax.fori_loop(0, left, drain, None)


def _multiply(accumulator: Any, operand: jax.Array, x: Any, scratch: Any | None) -> None:
    """accumulator += operand @ x with a register operand; through shared memory when interpreted, which has no such."""
    if scratch is None:
        plgpu.wgmma(accumulator, operand, x)
        return
    scratch[...] = operand
    plgpu.commit_smem()
    plgpu.wgmma(accumulator, scratch, x)
    plgpu.wgmma_wait(0)


def _accumulate(block: _Block, wg: Any, first: Any, rows: list[Any], split: Any) -> list[jax.Array]:
    """The K loop of one tile.

    Args:
      block: the block.
      wg: which consumer this is.
      first: stages the ring has seen before this tile.
      rows: first row of W of each part.
      split: which part of K.

    Returns:
      float32 [ROWS, block_m] of each part.
    """
    plan, gmem, smem, interpret = block.plan, block.gmem, block.smem, block.interpret
    scratch = smem["operand"].at[wg] if interpret else None

    def fetch(step):
        k_step = jnp.minimum(split * plan.steps + step, plan.k_steps - 1)
        return [plan.weights.fetch_scales(gmem, row, k_step, interpret) for row in rows]

    def scope(*accumulators):
        def k_step(step, scales):
            slot = (first + step) % plan.config.stages
            following = fetch(step + 1)
            plgpu.barrier_wait(smem["full"].at[slot])
            for part, accumulator in enumerate(accumulators):
                local = part * plan.part_rows + wg * ROWS
                operands = plan.weights.read(smem["ring"], slot, local, scales[part], interpret)
                for i, operand in enumerate(operands):
                    _multiply(accumulator, operand, smem["x"].at[slot, :, pl.ds(i * CHUNK, CHUNK)].T, scratch)
            plgpu.wgmma_wait(0)
            plgpu.barrier_arrive(smem["empty"].at[slot])
            return following

        lax.fori_loop(0, plan.steps, k_step, fetch(0))
        return [accumulator[...] for accumulator in accumulators]

    return pl.run_scoped(scope, *[plgpu.WGMMAAccumulatorRef((ROWS, plan.config.block_m), jnp.float32)] * plan.parts)


def _store(block: _Block, wg: Any, pieces: list[Any], source: Callable[[int], jax.Array]) -> None:
    """Write out a tile, `OUT_SLOTS` pieces in flight; each piece's residual was started, or is as a slot gets free.

    Args:
      block: the block.
      wg: which consumer this is.
      pieces: indices of each piece, [tokens, ROWS], in y and the residual.
      source: piece number to its values, float32 [ROWS, tokens], without the residual.
    """
    plan, smem = block.plan, block.smem
    for i, piece in enumerate(pieces):
        slot, values = i % OUT_SLOTS, source(i)
        out = smem["out"].at[wg, slot]
        if block.epilogue.residual:
            plgpu.barrier_wait(smem["arrived"].at[wg * OUT_SLOTS + slot])
            residual = plgpu.load(out.T, layout=plgpu.Layout.WGMMA_TRANSPOSED)
            values = values + plgpu.layout_cast(residual, plgpu.Layout.WGMMA).astype(jnp.float32)
        elif i >= OUT_SLOTS:
            plgpu.wait_smem_to_gmem(OUT_SLOTS - 1, wait_read_only=True)
        out.T[...] = plgpu.layout_cast(values.astype(plan.out_dtype), plgpu.Layout.WGMMA_TRANSPOSED)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out, block.y.at[piece])
        if block.epilogue.residual and i + OUT_SLOTS < len(pieces):
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            _fetch_residual(block, wg, slot, pieces[i + OUT_SLOTS])


def _fetch_residual(block: _Block, wg: Any, slot: int, piece: Any) -> None:
    arrived = block.smem["arrived"].at[wg * OUT_SLOTS + slot]
    plgpu.copy_gmem_to_smem(block.gmem["residual"].at[piece], block.smem["out"].at[wg, slot], arrived)


def _consume(block: _Block, wg: Any) -> None:
    """A compute warpgroup's part."""
    plan, tokens = block.plan, block.plan.out_tokens
    per_part = plan.config.block_m // tokens

    def tile(i, _):
        m0, n0, split = block.coordinates(i)
        rows = [n0 + wg * ROWS + part * plan.part_stride for part in range(plan.parts)]
        outputs = rows[:1] if block.epilogue.activation else rows
        pieces = [
            ((split,) if plan.split_k > 1 else ()) + (pl.ds(m0 + j * tokens, tokens), pl.ds(row, ROWS))
            for row in outputs
            for j in range(per_part)
        ]
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        if block.epilogue.residual:
            for slot, piece in enumerate(pieces[:OUT_SLOTS]):
                _fetch_residual(block, wg, slot, piece)
        accumulators = _accumulate(block, wg, i * plan.steps, rows, split)
        results = block.epilogue.finish(accumulators, block.gmem, rows)

        def source(number):
            part, j = divmod(number, per_part)
            return results[part][:, j * tokens : (j + 1) * tokens]

        _store(block, wg, pieces, source)

    lax.fori_loop(0, block.tiles, tile, None)
    plgpu.wait_smem_to_gmem(0)


def _launch(x: jax.Array, planes: WeightPlanes, plan: PrefillPlan, epilogue: Epilogue, call: Call) -> jax.Array:
    """One kernel: [m, n_out], or [split_k, m, n_out] float32 partial sums."""
    consumers, blocks = plan.config.consumers, min(plan.tiles, call.hardware.sms)
    columns = -(-plan.n_out // plan.out_tile) * plan.out_tile
    operands = {"x": x, **plan.weights.views(planes, plan.padded_rows)}
    operands |= epilogue.operands(planes, call.bias, plan.padded_rows)
    if epilogue.residual and call.residual is not None:
        operands["residual"] = _pad_to_multiples(call.residual, 8, plan.out_tile)
    shape = (plan.m, columns) if plan.split_k == 1 else (plan.split_k, plan.m, columns)

    def body(gmem, y, smem):
        wg = lax.axis_index("warpgroup")
        block = _Block(plan, epilogue, gmem, y, smem, lax.axis_index("block"), blocks, call.interpreted)

        @pl.when(wg == consumers)
        def _producer():
            if consumers > 1:
                plgpu.set_max_registers(_PRODUCER_REGISTERS, action="decrease")
            _produce(block)

        @pl.when(wg < consumers)
        def _consumer():
            if consumers > 1:
                plgpu.set_max_registers(_CONSUMER_REGISTERS[consumers], action="increase")
            _consume(block, wg)

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(shape, plan.out_dtype),
        scratch_types=[plan.scratch(epilogue.residual, call.interpreted)],
        grid=(blocks,),
        grid_names=("block",),
        num_threads=consumers + 1,
        thread_name="warpgroup",
        interpret=call.interpret,
    )
    return kernel(operands)[..., : plan.n_out]


def run(x: jax.Array, planes: WeightPlanes, config: PrefillConfig, call: Call) -> jax.Array:
    """The product that `Call` describes; a residual is out_dtype."""
    m, kind = x.shape[0], call.kind
    PLANNER.check_config(config, call.product(m))
    # The copy engine moves whole tiles of 8 rows and 128 bytes.
    x = _unpack.order_columns(kind, _pad_to_multiples(x, 8, CHUNK))
    parts = scale_parts(kind, call.out_dtype)
    power = factor(kind, parts)
    if config.split_k > 1:
        plan = PrefillPlan(x.shape[0], call.n, call.k, kind, config, False, jnp.float32, parts)
        if plan.split_k > 1:
            sums = _launch(x, planes, plan, Epilogue(kind, factor=power), call)
            return call.finish(jnp.sum(sums, axis=0)[:m])
    plan = PrefillPlan(x.shape[0], call.n, call.k, kind, config, call.gated, call.out_dtype, parts)
    fused = call.bias is not None, call.residual is not None, call.activation
    return _launch(x, planes, plan, Epilogue(kind, *fused, factor=power), call)[:m]


def _pad_to_multiples(array: jax.Array, rows: int, columns: int) -> jax.Array:
    """The array with zero rows and columns appended up to the multiples; the array itself where it has them."""
    padding = ((0, -array.shape[0] % rows), (0, -array.shape[1] % columns))
    return jnp.pad(array, padding) if any(after for _, after in padding) else array
