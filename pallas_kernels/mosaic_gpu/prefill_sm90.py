"""Prefill on Hopper: y = x @ W.T for M > 16, weights dequantized in registers. Has not run on a GPU.

A block computes tiles of y^T = W x^T, [64 * consumers rows of W, block_m tokens], one after another (a persistent grid),
with one producer warpgroup and one or two compute warpgroups over a ring of `stages` stages:

    producer     wait until a stage is empty; start the copies of x [block_m, block_k] and of the packed planes
                 [64 * consumers, block_k] into it (TMA, out of bounds gives zeros); on to the next K step, across the
                 seams between tiles; at the end wait until every stage was emptied.
    consumer w   fetch the scale words of the next K step from device memory; wait until the stage is full; packed words
                 to registers, to bfloat16, times the group scale; wgmma with that register operand (64 rows) and the
                 stage's x (block_m columns); wait for the wgmma; release the stage. After the last K step: epilogue in
                 float32, transpose through shared memory, copy to y (TMA, out of bounds is dropped).

While one consumer unpacks, the other one's wgmma runs. A gated product keeps two accumulators, a gate row and the up row
n/2 below it, over the same x. Splitting K writes float32 partial sums, which XLA adds. Leaves out M <= 16 (decode_sm90).
Source: gpu-kernels.
"""

import math
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.hardware import H100, Hardware
from pallas_kernels.mosaic_gpu._epilogue import Epilogue, finish_sums
from pallas_kernels.mosaic_gpu._weight_tiles import CHUNK, ROWS, WeightTiles, tiled
from pallas_kernels.planes import WeightPlanes
from pallas_kernels.tiling import PrefillConfig, weight_kind

#: Registers a thread of the producer keeps and of a consumer asks for, by the number of consumers: 65536 in all.
_REGISTERS = {1: (40, 240), 2: (40, 232)}
#: Tokens and rows of W of one epilogue step, and how many steps may be on their way out at once.
_OUT_TOKENS, _OUT_SLOTS = 64, 2


class _Plan:
    """Sizes of one launch: tiles, K steps, shared memory. All static."""

    def __init__(self, m: int, n: int, k: int, kind: str, config: PrefillConfig, gated: bool, out_dtype: Any):
        info = weight_kind(kind)
        self.config, self.kind, self.parts = config, kind, 2 if gated else 1
        self.m, self.n_out = m, n // self.parts
        self.out_dtype = jnp.dtype(out_dtype)
        self.rows = ROWS * config.consumers
        self.m_tiles, self.n_tiles = -(-m // config.block_m), -(-self.n_out // self.rows)
        self.k_steps = -(-info.k_padded(k) // config.block_k)
        self.split_k = min(config.split_k, self.k_steps)
        self.steps = -(-self.k_steps // self.split_k)  # of the longest split; copies past K give zeros
        self.tiles = self.m_tiles * self.n_tiles * self.split_k
        self.padded_rows = n - self.n_out + self.n_tiles * self.rows
        self.out_tokens = min(_OUT_TOKENS, config.block_m)
        self.weights = WeightTiles(kind, n, config.block_k, self.parts * self.rows)

    def coordinates(self, tile: Any) -> tuple[Any, Any, Any]:
        """First token, first output row and split of a tile; tiles that follow each other share rows of W."""
        m_tile, rest = tile % self.m_tiles, tile // self.m_tiles
        return m_tile * self.config.block_m, rest % self.n_tiles * self.rows, rest // self.n_tiles

    def scratch(self, residual: bool, interpret: bool) -> dict[str, Any]:
        """Shared memory and barriers."""
        config, bits = self.config, self.out_dtype.itemsize * 8
        ring = (config.stages, config.block_m, config.block_k)
        out = (config.consumers, _OUT_SLOTS, self.out_tokens, ROWS)
        scratch = {
            "x": plgpu.SMEM(ring, jnp.bfloat16, transforms=tiled(config.block_k * 2, 16)),
            "ring": self.weights.scratch(config.stages),
            "out": plgpu.SMEM(out, self.out_dtype, transforms=tiled(ROWS * bits // 8, bits)),
            "full": plgpu.Barrier(num_arrivals=1 + self.parts * self.weights.copies, num_barriers=config.stages),
            "empty": plgpu.Barrier(num_arrivals=config.consumers, num_barriers=config.stages),
        }
        if residual:
            scratch["arrived"] = plgpu.Barrier(num_barriers=config.consumers * _OUT_SLOTS)
        if interpret:
            scratch["operand"] = plgpu.SMEM((config.consumers, ROWS, CHUNK), jnp.bfloat16)
        return scratch


def smem_bytes(config: PrefillConfig, kind: str, gated: bool, out_bytes: int) -> int:
    """Shared memory a launch takes, bytes, barriers left out."""
    info = weight_kind(kind)
    rows = ROWS * config.consumers * (2 if gated else 1)
    group = info.group_size or 64
    packed = config.block_k * info.code_plane_bits // 8 + config.block_k // group * info.high_bytes
    ring = config.stages * (config.block_m * config.block_k * 2 + rows * packed)
    return ring + config.consumers * _OUT_SLOTS * min(_OUT_TOKENS, config.block_m) * ROWS * out_bytes


def _multiply(accumulator: Any, operand: jax.Array, x: Any, scratch: Any | None) -> None:
    """accumulator += operand @ x with a register operand; through shared memory when interpreted, which has no such."""
    if scratch is None:
        plgpu.wgmma(accumulator, operand, x)
        return
    scratch[...] = operand
    plgpu.commit_smem()
    plgpu.wgmma(accumulator, scratch, x)
    plgpu.wgmma_wait(0)


def _produce(plan: _Plan, gmem: dict[str, Any], smem: dict[str, Any], cta: Any, blocks: int, tiles: Any) -> None:
    """The producer warpgroup's part."""
    config = plan.config

    def step(index, _):
        m0, n0, split = plan.coordinates(cta + index // plan.steps * blocks)
        k_step, slot = split * plan.steps + index % plan.steps, index % config.stages

        @pl.when(index >= config.stages)
        def _wait_for_consumers():
            plgpu.barrier_wait(smem["empty"].at[slot])

        full = smem["full"].at[slot]
        k0 = k_step * config.block_k
        plgpu.copy_gmem_to_smem(
            gmem["x"].at[pl.ds(m0, config.block_m), pl.ds(k0, config.block_k)], smem["x"].at[slot], full
        )
        for part in range(plan.parts):
            plan.weights.copy(
                gmem, smem["ring"], n0 + part * plan.n_out, k_step, slot, part * plan.rows, plan.rows, full
            )

    total = tiles * plan.steps
    lax.fori_loop(0, total, step, None)
    left = jnp.minimum(total, config.stages)

    def drain(index, _):
        plgpu.barrier_wait(smem["empty"].at[(total - left + index) % config.stages])

    lax.fori_loop(0, left, drain, None)


def _accumulate(
    plan: _Plan, gmem: dict[str, Any], smem: dict[str, Any], wg: Any, first: Any, rows: list[Any], split: Any,
    interpret: bool,
) -> list[jax.Array]:
    """The K loop of one tile: the accumulators [ROWS, block_m] of each part, the stages from index `first` on."""
    config = plan.config

    def fetch(step):
        k_step = jnp.minimum(split * plan.steps + step, plan.k_steps - 1)
        return [plan.weights.fetch_scales(gmem, row, k_step, interpret) for row in rows]

    def scope(*accumulators):
        def k_step(step, scales):
            slot = (first + step) % config.stages
            following = fetch(step + 1)
            plgpu.barrier_wait(smem["full"].at[slot])
            for part, accumulator in enumerate(accumulators):
                local = part * plan.rows + wg * ROWS
                operands = plan.weights.read(smem["ring"], slot, local, scales[part], interpret)
                for i, operand in enumerate(operands):
                    x = smem["x"].at[slot, :, pl.ds(i * CHUNK, CHUNK)].T
                    _multiply(accumulator, operand, x, smem["operand"].at[wg] if interpret else None)
            plgpu.wgmma_wait(0)
            plgpu.barrier_arrive(smem["empty"].at[slot])
            return following

        lax.fori_loop(0, plan.steps, k_step, fetch(0))
        return [accumulator[...] for accumulator in accumulators]

    return pl.run_scoped(scope, *[plgpu.ACC((ROWS, config.block_m), jnp.float32)] * plan.parts)


def _consume(
    plan: _Plan, epilogue: Epilogue, gmem: dict[str, Any], y: Any, smem: dict[str, Any], wg: Any, cta: Any, blocks: int,
    tiles: Any, interpret: bool,
) -> None:
    """A compute warpgroup's part."""
    tokens, steps = plan.out_tokens, plan.config.block_m // plan.out_tokens

    def tile(index, _):
        m0, n0, split = plan.coordinates(cta + index * blocks)
        n0 = n0 + wg * ROWS

        def target(ref, i):
            where = (pl.ds(m0 + i * tokens, tokens), pl.ds(n0, ROWS))
            return ref.at[(split, *where)] if ref is y and plan.split_k > 1 else ref.at[where]

        def fetch_residual(i):
            slot = i % _OUT_SLOTS
            plgpu.copy_gmem_to_smem(
                target(gmem["residual"], i), smem["out"].at[wg, slot], smem["arrived"].at[wg * _OUT_SLOTS + slot]
            )

        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        if epilogue.residual:
            for i in range(min(_OUT_SLOTS, steps)):
                fetch_residual(i)
        rows = [n0 + part * plan.n_out for part in range(plan.parts)]
        accumulators = _accumulate(plan, gmem, smem, wg, index * plan.steps, rows, split, interpret)
        result = epilogue.finish(accumulators, gmem, rows)
        for i in range(steps):
            slot = i % _OUT_SLOTS
            out = smem["out"].at[wg, slot]
            block = result[:, i * tokens : (i + 1) * tokens]
            if epilogue.residual:
                plgpu.barrier_wait(smem["arrived"].at[wg * _OUT_SLOTS + slot])
                residual = plgpu.load(out.T, layout=plgpu.Layout.WGMMA_TRANSPOSED)
                block = block + plgpu.layout_cast(residual, plgpu.Layout.WGMMA).astype(jnp.float32)
            elif i >= _OUT_SLOTS:
                plgpu.wait_smem_to_gmem(_OUT_SLOTS - 1, wait_read_only=True)
            out.T[...] = plgpu.layout_cast(block.astype(plan.out_dtype), plgpu.Layout.WGMMA_TRANSPOSED)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out, target(y, i))
            if epilogue.residual and i + _OUT_SLOTS < steps:
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                fetch_residual(i + _OUT_SLOTS)

    lax.fori_loop(0, tiles, tile, None)
    plgpu.wait_smem_to_gmem(0)


def _launch(
    x: jax.Array, planes: WeightPlanes, plan: _Plan, epilogue: Epilogue, bias: jax.Array | None,
    residual: jax.Array | None, blocks: int, interpret: Any,
) -> jax.Array:
    """One kernel: [m, n_out], or [split_k, m, n_out] float32 partial sums; columns padded to whole 16 byte rows."""
    config, interpreted = plan.config, interpret is not None and interpret is not False
    align = 16 // plan.out_dtype.itemsize
    columns = -(-plan.n_out // align) * align
    operands = {"x": x, **plan.weights.views(planes, plan.padded_rows)}
    operands |= epilogue.operands(planes, bias, plan.padded_rows)
    if residual is not None:
        operands["residual"] = jnp.pad(residual, ((0, 0), (0, columns - plan.n_out)))
    shape = (plan.m, columns) if plan.split_k == 1 else (plan.split_k, plan.m, columns)

    def body(gmem, y, smem):
        wg, cta = lax.axis_index("warpgroup"), lax.axis_index("block")
        tiles = (plan.tiles - cta + blocks - 1) // blocks
        give, take = _REGISTERS[config.consumers]

        @pl.when(wg == config.consumers)
        def _producer():
            plgpu.set_max_registers(give, action="decrease")
            _produce(plan, gmem, smem, cta, blocks, tiles)

        @pl.when(wg < config.consumers)
        def _consumer():
            plgpu.set_max_registers(take, action="increase")
            _consume(plan, epilogue, gmem, y, smem, wg, cta, blocks, tiles, interpreted)

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(shape, plan.out_dtype),
        scratch_types=[plan.scratch(residual is not None, interpreted)],
        grid=(blocks,),
        grid_names=("block",),
        num_threads=config.consumers + 1,
        thread_name="warpgroup",
        interpret=interpret,
    )
    return kernel(operands)[..., : plan.n_out]


def run(
    x: jax.Array, planes: WeightPlanes, *, kind: str, n: int, k: int, out_dtype: Any, config: PrefillConfig,
    bias: jax.Array | None = None, residual: jax.Array | None = None, activation: str | None = None,
    sms: int = H100.sms, interpret: Any = False,
) -> jax.Array:
    """y = x @ W.T, or act(x @ gate.T) * (x @ up.T), with the epilogue of `Epilogue`.

    Args:
      x: bfloat16 [m, k].
      planes: raw planes of the [n, k] weight.
      kind: a name of `WEIGHT_KINDS`.
      n: rows of the weight; with an activation they are [gate; up], n / 2 each.
      k: columns of the weight.
      out_dtype: bfloat16 or float32.
      config: how to cut up the work.
      bias: [n] added to each row's product, or None.
      residual: out_dtype [m, n or n / 2] added to the result, or None.
      activation: a name of `ACTIVATIONS` for a gated product, or None.
      sms: blocks that run at once, one a multiprocessor.
      interpret: False, or the parameters of Pallas' GPU interpreter.

    Returns:
      out_dtype [m, n], or [m, n / 2] for a gated product.
    """
    if x.shape[1] % 8:
        x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % 8)))  # the copy engine needs rows of a multiple of 16 bytes
    if config.split_k > 1:
        plan = _Plan(x.shape[0], n, k, kind, config, False, jnp.float32)
        if plan.split_k > 1:
            sums = _launch(x, planes, plan, Epilogue(kind), None, None, min(plan.tiles, sms), interpret)
            return finish_sums(jnp.sum(sums, axis=0), bias, activation, residual, out_dtype)
    plan = _Plan(x.shape[0], n, k, kind, config, activation is not None, out_dtype)
    epilogue = Epilogue(kind, bias is not None, residual is not None, activation)
    return _launch(x, planes, plan, epilogue, bias, residual, min(plan.tiles, sms), interpret)
