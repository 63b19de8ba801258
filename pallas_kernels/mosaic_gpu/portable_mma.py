"""y = x @ W.T on GPUs without wgmma or tcgen05, by the warp level mma every one since Ampere has. Has not run on a GPU.

    y[m, n] = sum over groups g of scale[n, g] * (sum over k in g of x[m, k] * code[n, k])

W is on the 16 row side of the mma, x on its 8 column side: a block is one warpgroup, which computes 64 rows of W, 16 a
warp, times `block_m` tokens, over its part of K. Several blocks share a multiprocessor; while one waits another works.
What a block does over time:

    start    start the copies of packed codes, high bits and x for the first `stages` stages
    stage    wait for the oldest copies; load the group scales of the next stage from device memory, ahead of need
             for each 64 columns: codes to registers, to bfloat16; for each 32 tokens x to registers, the mma, and
             scale times the group's sum added to the float32 totals
             start the copies of a later stage into the place just read
    end      totals times what scales whole rows, plus bias, to shared memory, and from there in whole rows to the
             device's

Copies are cp.async before compute capability 9.0, the copy engine's after it. Neither may leave the arrays before 9.0:
the last tile of 64 rows starts early where N is no multiple of 64, and x is padded. XLA puts x in the column order of
the unpacker, adds the parts of K and finishes gated products and residuals, in one fusion with what follows. Leaves out
row gathers. Source: gpu-kernels, ops-and-criteria.
"""

# The oldest jax, which the type checker sees, wants an index in `plgpu.load` and has no mma and no layouts for it.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

import functools
from typing import Any

import jax
import jax.experimental.mosaic.gpu as mgpu
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.mosaic_gpu import _scales, _unpack
from pallas_kernels.mosaic_gpu._epilogue import Epilogue
from pallas_kernels.mosaic_gpu._portable_plan import PLANNER as PLANNER, PortablePlan, tiled
from pallas_kernels.mosaic_gpu._weight_tiles import pad_rows
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.mosaic_gpu.planning import SCALE_TILE_ROWS, SCALE_TILE_WORDS
from pallas_kernels.planes import WeightPlanes
from pallas_kernels.tiling import PortableConfig

ROWS, COLUMNS = _unpack.ROWS, _unpack.COLUMNS


def multiply_add(total: jax.Array, weights: jax.Array, x: jax.Array, *, interpret: bool) -> jax.Array:
    """total + weights @ x, products of bfloat16 values summed in float32, inside a kernel.

    Args:
      total: float32 [64, tokens] in layout MMA_ACC.
      weights: bfloat16 [64, columns] in layout MMA_LHS, columns a multiple of 16.
      x: bfloat16 [columns, tokens] in layout MMA_RHS.
      interpret: use the twin; the interpreter knows no mma.

    Returns:
      float32 [64, tokens] in layout MMA_ACC.
    """
    if interpret:
        return total + jnp.dot(weights.astype(jnp.float32), x.astype(jnp.float32), precision=lax.Precision.HIGHEST)
    return plgpu.mma(total, weights, x)


def operand_layout() -> Any:
    """Layout of the weights of a product."""
    return plgpu.Layout.MMA_LHS(jnp.bfloat16)


def result_layout() -> Any:
    """Layout in which a tile of the result leaves: a warp has two rows of 64 values, a thread four neighbors."""
    return plgpu.Layout.TILED(
        plgpu.Tiling(((8, ROWS), (2, ROWS), (4,))), warp_dims=(-5,), lane_dims=(-3, -2), vector_dim=-1
    )


def _zero(plan: PortablePlan) -> jax.Array:
    return plgpu.layout_cast(jnp.zeros((ROWS, plan.part_tokens), jnp.float32), plgpu.Layout.MMA_ACC(jnp.bfloat16))


def _operand(
    plan: PortablePlan, smem: dict[str, Any], codes: jax.Array, high: jax.Array | None, unit: int, half: Any,
    interpret: bool,
) -> jax.Array:  # fmt: skip
    """bfloat16 [64, 64]: the weights of 64 columns of a stage."""
    start, bytes_ = unit * plan.info.high_bytes, plan.info.high_bytes
    block_scales = None
    if plan.kind == "nvfp4":
        block_scales = _scales.block_scales(smem["scales"].at[unit], half, interpret=interpret)
    high_bits = None if high is None else high[:, start : start + bytes_]
    return _unpack.unpack(plan.kind, codes, high_bits, block_scales, interpret=interpret, layout=operand_layout())


def _add_stage(
    plan: PortablePlan, smem: dict[str, Any], totals: tuple[jax.Array, ...], scales: list[jax.Array], half: Any,
    interpret: bool,
) -> tuple[jax.Array, ...]:  # fmt: skip
    """The totals, one a part of the tokens, with the products of a stage added."""
    load = functools.partial(plgpu.load, optimized=False)
    tile_bytes = _unpack.tile_bytes(plan.kind)
    # Shared memory cannot be sliced below a swizzle's width, registers can.
    chunk = max(tile_bytes, next(width for width in (128, 64, 32) if plan.row_bytes % width == 0))
    high = load(smem["high"], layout=_unpack.high_layout(plan.kind)) if plan.high_row_bytes else None
    for first in range(0, plan.row_bytes, chunk):
        codes = load(smem["codes"].at[:, pl.ds(first, chunk)], layout=_unpack.codes_layout())
        for start in range(0, chunk, tile_bytes):
            unit = (first + start) // tile_bytes
            weights = _operand(plan, smem, codes[:, start : start + tile_bytes], high, unit, half, interpret)
            totals = tuple(
                _add_tokens(plan, smem["x"], total, part, weights, unit, scales, interpret)
                for part, total in enumerate(totals)
            )
    return totals


def _add_tokens(
    plan: PortablePlan, x_smem: Any, total: jax.Array, part: int, weights: jax.Array, unit: int,
    scales: list[jax.Array], interpret: bool,
) -> jax.Array:  # fmt: skip
    """The total of one part of the tokens with the products of 64 columns added."""
    tokens, columns = pl.ds(part * plan.part_tokens, plan.part_tokens), pl.ds(unit * COLUMNS, COLUMNS)
    x = plgpu.load(x_smem.at[tokens, columns].T, layout=plgpu.Layout.MMA_RHS(jnp.bfloat16), optimized=False)
    if not plan.grouped:
        return multiply_add(total, weights, x, interpret=interpret)
    for start in range(0, COLUMNS, plan.sum_columns):
        end = start + plan.sum_columns
        group_sum = multiply_add(_zero(plan), weights[:, start:end], x[start:end, :], interpret=interpret)
        scale = scales[(unit * COLUMNS + start) // plan.info.group_size]
        total = total + group_sum * lax.broadcast_in_dim(scale, group_sum.shape, (0,))
    return total


def _inputs(plan: PortablePlan, gmem: dict[str, Any], row: Any, part: Any, m_tile: Any) -> dict[str, tuple[Any, Any]]:
    """What a block copies: the part of each array that is its own, and how a stage is cut from it."""
    own = lambda width: pl.ds(part * plan.steps * width, plan.steps * width)
    rows, tokens = pl.ds(row, ROWS), pl.ds(m_tile * plan.block_m, plan.block_m)

    def spec(rows: int, width: int, element_bytes: int) -> Any:
        transforms = tiled(width * element_bytes, element_bytes, rows // 8)
        return plgpu.BlockSpec((rows, width), lambda step: (0, step), transforms=transforms)

    inputs = {
        "x": (gmem["x"].at[tokens, own(plan.block_k)], spec(plan.block_m, plan.block_k, 2)),
        "codes": (gmem["codes"].at[rows, own(plan.row_bytes)], spec(ROWS, plan.row_bytes, 1)),
    }
    if plan.high_row_bytes:
        inputs["high"] = (gmem["high"].at[rows, own(plan.high_row_bytes)], spec(ROWS, plan.high_row_bytes, 1))
    if plan.kind == "nvfp4":
        units = plan.block_k // COLUMNS
        tiles = gmem["scales"].at[row // SCALE_TILE_ROWS, own(units)]
        inputs["scales"] = (tiles, plgpu.BlockSpec((units, SCALE_TILE_WORDS), lambda step: (step, 0)))
    return inputs


def _body(plan: PortablePlan, epilogue: Epilogue, interpret: bool, gmem: dict[str, Any], out_gmem: Any) -> None:
    """The kernel: one block. Token tiles are neighbors, so that a weight is read from memory once."""
    block = lax.axis_index("block")
    m_tile, tile = lax.rem(block, plan.m_tiles), lax.rem(block // plan.m_tiles, plan.tiles)
    part = block // (plan.m_tiles * plan.tiles)
    row = jnp.minimum(tile * ROWS, max(plan.n, ROWS) - ROWS)
    half = lax.rem(row // ROWS, SCALE_TILE_ROWS // ROWS)
    inputs = _inputs(plan, gmem, row, part, m_tile)

    def scale_words(step: Any) -> tuple[jax.Array, ...]:
        if not plan.grouped:
            return ()
        columns = pl.ds((part * plan.steps + step) * plan.groups, plan.groups)
        layout = _scales.group_scale_layout(plan.groups)
        return (plgpu.load(gmem["scales"].at[pl.ds(row, ROWS), columns], layout=layout, optimized=False),)

    def stage(indices: tuple[Any], *arguments: Any) -> Any:
        *refs, (totals, words) = arguments
        next_words = scale_words(jnp.minimum(indices[0] + 1, plan.steps - 1))
        scales = [scale for word in words for scale in _scales.group_scales(word, interpret=interpret)]
        smem = dict(zip(inputs, refs, strict=True))
        totals = _add_stage(plan, smem, totals, scales, half, interpret)
        if mgpu.utils.get_arch().major >= 9:
            plgpu.commit_smem()  # the copy engine must not overtake the reads; before it a barrier is enough
        return totals, next_words

    zeros = tuple(_zero(plan) for _ in range(plan.block_m // plan.part_tokens))
    pipeline = plgpu.emit_pipeline(
        stage,
        grid=(plan.steps,),
        in_specs=[spec for _, spec in inputs.values()],
        max_concurrent_steps=plan.stages,
        init_carry=(zeros, scale_words(jnp.int32(0))),
    )
    totals, _ = pipeline(*(array for array, _ in inputs.values()))
    place = out_gmem.at[part, pl.ds(m_tile * plan.block_m, plan.block_m), pl.ds(tile * ROWS, ROWS)]
    _put(plan, epilogue, gmem, row, totals, place)


def _put(
    plan: PortablePlan, epilogue: Epilogue, gmem: dict[str, Any], row: Any, totals: tuple[jax.Array, ...], place: Any
) -> None:
    """Finish the totals and write them out, tokens by rows, through shared memory."""
    if plan.kind == "nvfp4":
        totals = tuple(total * _unpack.NVFP4_FACTOR for total in totals)
    finished = [epilogue.finish([total], gmem, [row])[0] for total in totals]

    def put(out_smem: Any) -> None:
        for part, values in enumerate(finished):
            tokens = pl.ds(part * plan.part_tokens, plan.part_tokens)
            out_smem.at[tokens].T[...] = plgpu.layout_cast(values, plgpu.Layout.WGMMA_TRANSPOSED)
        values = plgpu.load(out_smem, layout=result_layout(), optimized=False)
        plgpu.store(place, values.astype(place.dtype), optimized=False)

    # The ring is not in use any more; this takes its place.
    pl.run_scoped(put, plgpu.SMEM((plan.block_m, ROWS), jnp.float32, transforms=tiled(4 * ROWS, 4, 4)))


def _arrays(x: jax.Array, planes: WeightPlanes, plan: PortablePlan) -> dict[str, jax.Array]:
    """What the kernel reads, as views of the planes: only a weight of fewer than 64 rows is copied and padded, and an
    FP8 weight whose columns are no multiple of 64."""
    x = jnp.pad(x, ((0, plan.m_tiles * plan.block_m - x.shape[0]), (0, plan.columns - x.shape[1])))
    codes = pad_rows(jnp.asarray(planes.codes), ROWS)
    if plan.kind == "fp8" and codes.shape[1] < plan.columns:
        codes = jnp.pad(codes, ((0, 0), (0, plan.columns - codes.shape[1])))
    arrays = {"x": _unpack.order_columns(plan.kind, x), "codes": codes}
    if planes.high is not None:
        arrays["high"] = pad_rows(jnp.asarray(planes.high), ROWS)
    if plan.grouped:
        arrays["scales"] = pad_rows(jnp.asarray(planes.scales), ROWS)
    if plan.kind == "nvfp4":
        tiles = jnp.asarray(planes.scales).reshape(plan.n // SCALE_TILE_ROWS, -1, SCALE_TILE_WORDS, 4)
        arrays["scales"] = lax.bitcast_convert_type(tiles, jnp.uint32)
    return arrays


def _launch(
    x: jax.Array, planes: WeightPlanes, plan: PortablePlan, with_bias: bool, dtype: Any, call: Call
) -> jax.Array:
    """dtype [split_k, m, n]: parts of the products, scaled, the bias added where it is to be."""
    epilogue = Epilogue(plan.kind, with_bias)
    kernel = plgpu.kernel(
        functools.partial(_body, plan, epilogue, call.interpreted),
        out_type=jax.ShapeDtypeStruct((plan.split_k, plan.m_tiles * plan.block_m, plan.tiles * ROWS), dtype),
        grid=(plan.blocks,),
        grid_names=("block",),
        interpret=call.interpret,
    )
    out = kernel(_arrays(x, planes, plan) | epilogue.operands(planes, call.bias, ROWS))[:, : plan.m]
    tail = plan.n % ROWS
    if tail and plan.n > ROWS:
        # The last tile starts early, so as not to leave the planes; its last rows are the ones missing.
        return jnp.concatenate([out[:, :, : plan.n - tail], out[:, :, out.shape[2] - tail :]], axis=2)
    return out[:, :, : plan.n]


def run(x: jax.Array, planes: WeightPlanes, config: PortableConfig, call: Call) -> jax.Array:
    """The product that `Call` describes; XLA applies an activation and adds a residual."""
    m = x.shape[0]
    PLANNER.check_config(config, call.product(m))
    plan = PortablePlan(m, call.n, call.k, call.kind, config)
    if plan.split_k == 1 and not call.gated and call.residual is None:
        return _launch(x, planes, plan, call.bias is not None, call.out_dtype, call)[0]
    return call.finish(jnp.sum(_launch(x, planes, plan, False, jnp.float32, call), axis=0))
