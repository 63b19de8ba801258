"""Decode on Hopper: y = x @ W.T for M = 1..16, reading only packed bytes. Has not run on a GPU.

    y[m, n] = sum over groups g of scale[n, g] * (sum over k in g of x[m, k] * code[n, k])

W is on the 64 row side of wgmma, x on its 8 or 16 column side. W is cut into stages of `rows` rows and `block_k`
columns, all stages of a row tile before those of the next, and each of the blocks, as many as run at once, gets an
equal run of them, so that every multiprocessor streams weights to the end. The warpgroups of a block are alike: each
has a ring of `stages` stages of its own and takes the block's stages in turn. What each does over time:

    start    start the copies (TMA) of packed codes, high bits and x into its whole ring
    stage    load the group scales of the stage from device memory, ahead of need
             wait for the stage's barrier
             for each 64 columns: codes to registers, to bfloat16, wgmma with that register operand and the stage's x,
             and while it runs unpack the next 64; add scale times the group's sum to the float32 totals
             start the copies of a later stage, of whatever tile, into the place just read
    tile     after a tile's last stage: totals to shared memory; wait for the other warpgroups to have put theirs there;
             the first one adds them up and starts copying them out (TMA), which the next tile does not wait for

Float32 sums of each part of a tile go back to XLA, which adds the parts, casts and applies what scales whole rows, in
one fusion with whatever follows. XLA also puts x in the column order of the unpacker, fused with whatever made it. Rows
and columns past the end of W are zeros that the copy engine puts there. Leaves out M > 16 (prefill_sm90). Source:
gpu-kernels, ops-and-criteria.
"""

# The type checker sees jax 0.10.2, whose plgpu.load wants an index and whose inline_mgpu hides the context argument.
# pyright: reportCallIssue=false
import functools
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.mosaic_gpu import _scales, _unpack
from pallas_kernels.mosaic_gpu._decode_plan import MAX_M as MAX_M, PLANNER as PLANNER, DecodePlan
from pallas_kernels.mosaic_gpu._products import Sum, add_sums
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.mosaic_gpu.planning import SCALE_TILE_ROWS, SCALE_TILE_WORDS
from pallas_kernels.planes import WeightPlanes
from pallas_kernels.tiling import StreamConfig

ROWS, COLUMNS = _unpack.ROWS, _unpack.COLUMNS


def _start_copies(plan: DecodePlan, gmem: dict[str, Any], smem: dict[str, Any], stage: Any, slot: Any) -> None:
    """Start filling a slot with a stage."""
    full = smem["full_barrier"].at[slot]
    row, block = stage // plan.k_stages * plan.rows, lax.rem(stage, plan.k_stages)
    rows, part = pl.ds(row, plan.rows), lambda size: pl.ds(block * size, size)
    plgpu.copy_gmem_to_smem(gmem["codes"].at[rows, part(plan.row_bytes)], smem["codes_smem"].at[slot], full)
    if plan.high_row_bytes:
        plgpu.copy_gmem_to_smem(gmem["high"].at[rows, part(plan.high_row_bytes)], smem["high_smem"].at[slot], full)
    if plan.kind == "nvfp4":
        tiles = pl.ds(row // SCALE_TILE_ROWS, plan.scale_tiles)
        scales = gmem["scales"].at[tiles, part(plan.block_k // COLUMNS)]
        plgpu.copy_gmem_to_smem(scales, smem["scales_smem"].at[slot], full)
    plgpu.copy_gmem_to_smem(gmem["x"].at[:, part(plan.block_k)], smem["x_smem"].at[slot], full)


def _load_group_scales(
    plan: DecodePlan, gmem: dict[str, Any], row: Any, block: Any, interpret: bool
) -> list[jax.Array]:
    """float32 [64] of each group of K stage `block`, for 64 rows; empty where sums are not scaled here."""
    scales: list[jax.Array] = []
    for first in range(0, plan.groups, plan.scale_vector or 1):
        words_gmem = gmem["scales"].at[pl.ds(row, ROWS), pl.ds(block * plan.groups + first, plan.scale_vector)]
        layout = _scales.group_scale_layout(plan.scale_vector)
        words = plgpu.load(words_gmem, layout=layout, optimized=False)
        scales += _scales.group_scales(words, interpret=interpret)
    return scales


def _stage_sums(
    plan: DecodePlan, smem: dict[str, Any], slot: Any, tile: int, half: Any, scales: list[jax.Array], interpret: bool
) -> list[Sum]:
    """The products of one stage with 64 rows: what `add_sums` has to add to their totals, in order."""
    rows, x_smem = pl.ds(tile * ROWS, ROWS), smem["x_smem"].at[slot]
    tile_bytes = _unpack.tile_bytes(plan.kind)
    chunk = max(plan.swizzle, tile_bytes)
    load = functools.partial(plgpu.load, optimized=False)
    high = None
    if plan.high_row_bytes:
        high = load(smem["high_smem"].at[slot, rows, :], layout=_unpack.high_layout(plan.kind))

    def operand(codes: jax.Array, unit: int) -> jax.Array:
        start, bytes_ = unit * plan.info.high_bytes, plan.info.high_bytes
        block_scales = None
        if plan.kind == "nvfp4":
            words_smem = smem["scales_smem"].at[slot, tile * ROWS // SCALE_TILE_ROWS, unit]
            block_scales = _scales.block_scales(words_smem, half, interpret=interpret)
        high_bits = None if high is None else high[:, start : start + bytes_]
        return _unpack.unpack(plan.kind, codes, high_bits, block_scales, interpret=interpret)

    sums = []
    for first in range(0, plan.row_bytes, chunk):
        codes = load(smem["codes_smem"].at[slot, rows, pl.ds(first, chunk)], layout=_unpack.codes_layout())
        for start in range(0, chunk, tile_bytes):
            unit = (first + start) // tile_bytes
            make = functools.partial(operand, codes[:, start : start + tile_bytes], unit)
            for part in range(COLUMNS // plan.sum_columns):
                at = unit * COLUMNS + part * plan.sum_columns
                scale = scales[at // plan.info.group_size] if plan.grouped else None
                sums.append(Sum(make, part * plan.sum_columns, x_smem.at[:, pl.ds(at, plan.sum_columns)], scale))
    return sums


def _body(plan: DecodePlan, interpret: bool, gmem: dict[str, Any], sums_gmem: Any, **smem: Any) -> None:
    """The kernel: one warpgroup of one block."""
    warpgroup, cta = lax.axis_index("warpgroup"), lax.axis_index("block")
    first = cta * plan.stages_in_all // plan.blocks
    last = (cta + 1) * plan.stages_in_all // plan.blocks
    mine = first + warpgroup  # and every `warpgroups`-th stage from there on
    for i in range(plan.stages):
        stage = mine + i * plan.warpgroups

        @pl.when(stage < last)
        def _fill(stage=stage, i=i):
            _start_copies(plan, gmem, smem, stage, warpgroup * plan.stages + i)

    def turn(index: Any, totals: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        stage = mine + index * plan.warpgroups
        slot = warpgroup * plan.stages + lax.rem(index, plan.stages)
        new = _multiply_stage(plan, gmem, smem, stage, slot, totals, interpret)

        @pl.when(stage + plan.slots < last)
        def _refill():
            plgpu.commit_smem()  # the copy engine must not overtake this warpgroup's reads of the stage
            _start_copies(plan, gmem, smem, stage + plan.slots, slot)

        return new

    first_tile, last_tile = first // plan.k_stages, (last - 1) // plan.k_stages

    def do_tile(tile: Any, index: Any) -> Any:
        end = jnp.minimum((tile + 1) * plan.k_stages, last)
        # Stages mine + i * warpgroups below the end; a warpgroup may have none.
        next_index = lax.div(jnp.maximum(end - mine + plan.warpgroups - 1, 0), plan.warpgroups)
        zero = plgpu.layout_cast(jnp.zeros((ROWS, plan.m_tile), jnp.float32), plgpu.Layout.WGMMA)
        totals = lax.fori_loop(index, next_index, turn, (zero,) * (plan.rows // ROWS))
        _put_sums(plan, smem, warpgroup, lax.rem(tile - first_tile, 2), totals, sums_gmem.at[tile + cta])
        return next_index

    lax.fori_loop(first_tile, last_tile + 1, do_tile, jnp.int32(0))
    plgpu.wait_smem_to_gmem(0)


def _multiply_stage(
    plan: DecodePlan,
    gmem: dict[str, Any],
    smem: dict[str, Any],
    stage: Any,
    slot: Any,
    totals: tuple[jax.Array, ...],
    interpret: bool,
) -> tuple[jax.Array, ...]:
    """The totals with the products of a stage added, 64 rows each."""
    row, block = stage // plan.k_stages * plan.rows, lax.rem(stage, plan.k_stages)
    tiles = range(plan.rows // ROWS)
    scales = [_load_group_scales(plan, gmem, row + t * ROWS, block, interpret) for t in tiles]
    plgpu.barrier_wait(smem["full_barrier"].at[slot])
    new = []
    for t, total in zip(tiles, totals, strict=True):
        half = lax.rem(row // ROWS + t, SCALE_TILE_ROWS // ROWS)
        new.append(add_sums(total, _stage_sums(plan, smem, slot, t, half, scales[t], interpret), interpret))
    return tuple(new)


def _put_sums(
    plan: DecodePlan, smem: dict[str, Any], warpgroup: Any, turn: Any, totals: tuple[jax.Array, ...], sums_gmem: Any
) -> None:
    """Add up the totals of the warpgroups and start copying them out.

    Two buffers take turns. Nobody is two tiles ahead, because everybody waits for everybody at each tile's end, so the
    one being read is never written; the copy engine has read its own before the last time but one is forgotten.
    """
    sums_smem = smem["sums_smem"].at[turn]
    plgpu.wait_smem_to_gmem(1, wait_read_only=True)
    for t, total in enumerate(totals):
        place = sums_smem.at[warpgroup, :, pl.ds(t * ROWS, ROWS)]
        place.T[...] = plgpu.layout_cast(total, plgpu.Layout.WGMMA_TRANSPOSED)
    plgpu.commit_smem()
    plgpu.barrier_arrive(smem["done_barrier"])
    plgpu.barrier_wait(smem["done_barrier"])

    @pl.when(warpgroup == 0)
    def _store():
        load = functools.partial(plgpu.load, layout=plgpu.Layout.WGMMA_TRANSPOSED, optimized=False)
        for t in range(plan.rows // ROWS):
            columns = pl.ds(t * ROWS, ROWS)
            parts = [load(sums_smem.at[i, :, columns].T) for i in range(plan.warpgroups)]
            sums_smem.at[0, :, columns].T[...] = functools.reduce(jnp.add, parts)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(sums_smem.at[0], sums_gmem)


def _arrange_x(plan: DecodePlan, x: jax.Array) -> jax.Array:
    """bfloat16 [m_tile, columns]: rows and columns padded with zeros, columns in the unpacker's order."""
    x = jnp.pad(x, ((0, plan.m_tile - x.shape[0]), (0, plan.columns - x.shape[1])))
    return _unpack.order_columns(plan.kind, x)


def _operands(x: jax.Array, planes: WeightPlanes, plan: DecodePlan) -> dict[str, jax.Array]:
    """What the kernel reads, as views of the planes.

    The copy engine moves whole tiles of 8 rows and of a swizzle's bytes. A weight without a whole number of them (rows,
    or an FP8 weight's columns) is copied and padded; no model has one. So are the group scales where N is no multiple
    of `rows`, because they are loaded without the copy engine's bounds.
    """
    pad = lambda plane, rows, columns: jnp.pad(plane, ((0, rows), (0, columns))) if rows or columns else plane
    odd_rows = -plan.n % 8
    operands = {"x": _arrange_x(plan, x)}
    operands["codes"] = pad(planes.codes, odd_rows, -planes.codes.shape[1] % COLUMNS if plan.kind == "fp8" else 0)
    if planes.high is not None:
        operands["high"] = pad(planes.high, odd_rows, 0)
    if plan.grouped:
        operands["scales"] = pad(planes.scales, plan.tiles * plan.rows - plan.n, 0)
    if plan.kind == "nvfp4":
        tiles = jnp.asarray(planes.scales).reshape(plan.n // SCALE_TILE_ROWS, -1, SCALE_TILE_WORDS, 4)
        operands["scales"] = lax.bitcast_convert_type(tiles, jnp.uint32)
    return operands


def _launch(x: jax.Array, planes: WeightPlanes, plan: DecodePlan, call: Call) -> jax.Array:
    """float32 [m, n]: sums of x times codes and group or block scales."""
    kernel = plgpu.kernel(
        functools.partial(_body, plan, call.interpreted),
        out_type=jax.ShapeDtypeStruct((plan.tiles + plan.blocks - 1, plan.m_tile, plan.rows), jnp.float32),
        scratch_types=plan.scratch(),
        grid=(plan.blocks,),
        grid_names=("block",),
        num_threads=plan.warpgroups,
        thread_name="warpgroup",
        interpret=call.interpret,
    )
    segments = kernel(_operands(x, planes, plan))
    indices, present = plan.segments()
    parts = jnp.where(present[:, :, None, None], segments[indices, : plan.m], 0)
    return jnp.sum(parts, axis=1).transpose(1, 0, 2).reshape(plan.m, -1)[:, : plan.n]


def run(x: jax.Array, planes: WeightPlanes, config: StreamConfig, call: Call) -> jax.Array:
    """The product that `Call` describes, of at most 16 tokens; XLA does all that follows the sums."""
    m = x.shape[0]
    PLANNER.check_config(config, call.product(m))
    sums = _launch(x, planes, DecodePlan(m, call.n, call.k, call.kind, config, call.hardware.sms), call)
    return call.finish(call.scale_rows(sums, planes, _unpack.NVFP4_FACTOR))
