"""Decode on Hopper: y = x @ W.T for M = 1..16, reading only packed bytes. Has not run on a GPU.

    y[m, n] = sum over groups g of scale[n, g] * (sum over k in g of x[m, k] * code[n, k])

W is on the 64 row side of wgmma, x on its 8 or 16 column side. A block takes `rows` rows of W and one of `split_k`
parts of K. Its warpgroups are alike and independent: each has a ring of `stages` stages of its own, and every
`warpgroups`-th K stage is its to do. What each does over time:

    start    start the copies (TMA) of packed codes, high bits and x into all its stages
    loop     load the group scales of the stage from device memory, ahead of need
             wait for the stage's barrier
             for each 64 columns: codes to registers, to bfloat16, wgmma with that register operand and the stage's x,
             and while it runs unpack the next 64; add scale times the group's sum to the float32 totals
             start the copies of a later K stage into the stage just read
    end      totals to shared memory; wait for the other warpgroups; the first one adds them up and stores them (TMA)

Nothing but the end is shared, so a warpgroup that waits for memory never holds up another. Float32 sums [split_k, M, N]
go back to XLA, which adds, casts and applies what scales whole rows, in one fusion with whatever follows. XLA also puts
x in the column order of the unpacker, fused with whatever made it. Rows and columns past the end of W are zeros that
the copy engine puts there. Leaves out M > 16 (prefill_sm90). Source:
gpu-kernels, ops-and-criteria.
"""

import functools
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.mosaic_gpu import _scales, _unpack
from pallas_kernels.mosaic_gpu._decode_plan import (
    MAX_M as MAX_M,
    SCALE_TILE_ROWS,
    SCALE_TILE_WORDS,
    DecodePlan,
    candidate_configs as candidate_configs,
    check_config as check_config,
    heuristic_config as heuristic_config,
    predicted_seconds as predicted_seconds,
)
from pallas_kernels.mosaic_gpu._epilogue import finish_sums
from pallas_kernels.mosaic_gpu._products import Sum, add_sums
from pallas_kernels.planes import WeightPlanes
from pallas_kernels.tiling import DecodeConfig

ROWS, COLUMNS = _unpack.ROWS, _unpack.COLUMNS


def _start_copies(plan: DecodePlan, gmem: dict[str, Any], smem: dict[str, Any], row: Any, block: Any, slot: Any) -> None:
    """Start filling a stage with K stage `block` of W, for the rows from `row` on."""
    full = smem["full_barrier"].at[slot]
    rows, part = pl.ds(row, plan.rows), lambda size: pl.ds(block * size, size)
    plgpu.copy_gmem_to_smem(gmem["codes"].at[rows, part(plan.row_bytes)], smem["codes_smem"].at[slot], full)
    if plan.high_row_bytes:
        plgpu.copy_gmem_to_smem(gmem["high"].at[rows, part(plan.high_row_bytes)], smem["high_smem"].at[slot], full)
    if plan.kind == "nvfp4":
        tiles = pl.ds(row // SCALE_TILE_ROWS, plan.scale_tiles)
        scales = gmem["scales"].at[tiles, part(plan.block_k // COLUMNS)]
        plgpu.copy_gmem_to_smem(scales, smem["scales_smem"].at[slot], full)
    plgpu.copy_gmem_to_smem(gmem["x"].at[:, part(plan.block_k)], smem["x_smem"].at[slot], full)


def _load_group_scales(plan: DecodePlan, gmem: dict[str, Any], row: Any, block: Any, interpret: bool) -> list[jax.Array]:
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
    warpgroup = lax.axis_index("warpgroup")
    row = lax.axis_index("tile") * plan.rows
    split = lax.axis_index("split")
    first = split * plan.blocks // plan.split_k + warpgroup
    last = (split + 1) * plan.blocks // plan.split_k
    for stage in range(plan.stages):
        block = first + stage * plan.warpgroups

        @pl.when(block < last)
        def _fill(block=block, stage=stage):
            _start_copies(plan, gmem, smem, row, block, warpgroup * plan.stages + stage)

    def turn(index: Any, totals: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        block = first + index * plan.warpgroups
        slot = warpgroup * plan.stages + lax.rem(index, plan.stages)
        tiles = range(plan.rows // ROWS)
        scales = [_load_group_scales(plan, gmem, row + t * ROWS, block, interpret) for t in tiles]
        plgpu.barrier_wait(smem["full_barrier"].at[slot])
        new = []
        for t, total in zip(tiles, totals, strict=True):
            half = lax.rem(row // ROWS + t, 2)
            new.append(add_sums(total, _stage_sums(plan, smem, slot, t, half, scales[t], interpret), interpret))
        later = block + plan.slots

        @pl.when(later < last)
        def _refill():
            plgpu.commit_smem()  # the copy engine must not overtake this warpgroup's reads of the stage
            _start_copies(plan, gmem, smem, row, later, slot)

        return tuple(new)

    zero = plgpu.layout_cast(jnp.zeros((ROWS, plan.m_tile), jnp.float32), plgpu.Layout.WGMMA)
    turns = lax.div(jnp.maximum(last - first + plan.warpgroups - 1, 0), plan.warpgroups)
    totals = lax.fori_loop(0, turns, turn, (zero,) * (plan.rows // ROWS))
    for t, total in enumerate(totals):
        place = smem["sums_smem"].at[warpgroup, :, pl.ds(t * ROWS, ROWS)]
        place.T[...] = plgpu.layout_cast(total, plgpu.Layout.WGMMA_TRANSPOSED)
    plgpu.commit_smem()
    plgpu.barrier_arrive(smem["done_barrier"])
    plgpu.barrier_wait(smem["done_barrier"])

    @pl.when(warpgroup == 0)
    def _store():
        # A traced zero: where M is short of the tile, Pallas would refuse a static slice that the copy engine clips.
        all_rows = pl.ds(split * 0, plan.m_tile)
        _store_sums(plan, smem["sums_smem"], sums_gmem.at[split, all_rows, pl.ds(row, plan.rows)])


def _store_sums(plan: DecodePlan, sums_smem: Any, sums_gmem: Any) -> None:
    """Add up what the warpgroups left in shared memory and copy it out; rows past M are out of bounds and dropped."""
    load = functools.partial(plgpu.load, layout=plgpu.Layout.WGMMA_TRANSPOSED, optimized=False)
    for t in range(plan.rows // ROWS):
        parts = [load(sums_smem.at[i, :, pl.ds(t * ROWS, ROWS)].T) for i in range(plan.warpgroups)]
        sums_smem.at[0, :, pl.ds(t * ROWS, ROWS)].T[...] = functools.reduce(jnp.add, parts)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(sums_smem.at[0], sums_gmem)
    plgpu.wait_smem_to_gmem(0)


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


def _launch(x: jax.Array, planes: WeightPlanes, plan: DecodePlan, interpret: Any) -> jax.Array:
    """float32 [m, n]: sums of x times codes and group or block scales."""
    kernel = plgpu.kernel(
        functools.partial(_body, plan, interpret is not False),
        out_type=jax.ShapeDtypeStruct((plan.split_k, plan.m, plan.tiles * plan.rows), jnp.float32),
        scratch_types=plan.scratch(),
        grid=(plan.tiles, plan.split_k),
        grid_names=("tile", "split"),
        num_threads=plan.warpgroups,
        thread_name="warpgroup",
        interpret=interpret,
    )
    return jnp.sum(kernel(_operands(x, planes, plan)), axis=0)[:, : plan.n]


def run(
    x: jax.Array, planes: WeightPlanes, *, kind: str, n: int, k: int, out_dtype: Any, config: DecodeConfig,
    bias: jax.Array | None = None, residual: jax.Array | None = None, activation: str | None = None,
    interpret: Any = False,
) -> jax.Array:
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
    sums = _launch(x, planes, DecodePlan(x.shape[0], n, k, kind, config), interpret)
    if kind == "fp8":
        sums = sums * lax.bitcast_convert_type(jnp.asarray(planes.scales), jnp.bfloat16).astype(jnp.float32)
    if kind == "nvfp4":
        divisor = lax.bitcast_convert_type(jnp.asarray(planes.divisor), jnp.float32)
        sums = sums * _unpack.NVFP4_FACTOR / divisor
    return finish_sums(sums, bias, activation, residual, out_dtype)
