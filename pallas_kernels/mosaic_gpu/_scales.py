"""Scale words to registers: binary16 group scales as float32 rows, E4M3FN block scales as bfloat16 pairs.

A group scale multiplies the sum of its group's products, so a thread needs it once a group and row, in float32, in the
layout of an accumulator's rows. A block scale of NVFP4 multiplies 16 columns, all of one thread, before the product.
Leaves out FP8's row scales and NVFP4's divisor, which multiply finished sums. Source: storage-layouts; tensor-formats
§3.3, §5.
"""

# The type checker sees jax 0.10.2, whose plgpu.load wants an index and whose inline_mgpu hides the context argument.
# pyright: reportCallIssue=false
from typing import Any

import jax
import jax.experimental.mosaic.gpu as mgpu
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith, memref, vector

from pallas_kernels.mosaic_gpu._unpack import ROWS, block_scale_layout, block_scale_pair
from pallas_kernels.mosaic_gpu._words import JnpWords, ptx_words


def row_layout() -> Any:
    """Layout of one value a row of an accumulator, the same for the four threads that share a row."""
    return plgpu.Layout.WGMMA.reduce(1)


def group_scale_layout(groups: int) -> Any:
    """Layout to load [64, groups] scale words with: adjacent words of a row in one thread."""
    return plgpu.Layout.TILED(
        plgpu.Tiling(((ROWS, groups), (16, groups), (8, groups))),
        warp_dims=(-6,),
        lane_dims=(-2, plgpu.Replicated(4)),
        vector_dim=-1,
    )


def group_scales(words: jax.Array, *, interpret: bool = False) -> tuple[jax.Array, ...]:
    """s[g][r] = the float32 value of binary16 word [r, g].

    Args:
      words: uint16 [64, groups] in `group_scale_layout(groups)`.
      interpret: whether the kernel is being interpreted.

    Returns:
      groups arrays, float32 [64] in `row_layout`.
    """
    groups = words.shape[1]
    if interpret:
        values = lax.bitcast_convert_type(words, jnp.float16).astype(jnp.float32)
        return tuple(values[:, g] for g in range(groups))

    @plgpu.inline_mgpu(
        arg_types=(group_scale_layout(groups),),
        return_type=tuple(plgpu.ShapeDtypeStruct((ROWS,), jnp.float32, row_layout()) for _ in range(groups)),
    )
    def emit(ctx: Any, fragment: mgpu.FragmentedArray) -> tuple[mgpu.FragmentedArray, ...]:
        layout, f32 = row_layout().to_mgpu(), ir.F32Type.get()
        rows = [mgpu.utils.bitcast(r, ir.VectorType.get((groups,), ir.F16Type.get())) for r in fragment.registers.flat]
        scales = []
        for g in range(groups):
            registers = np.empty(len(rows), dtype=object)
            for i, row in enumerate(rows):
                value = arith.extf(f32, vector.extract(row, [], [g]))
                registers[i] = vector.broadcast(ir.VectorType.get((1,), f32), value)
            registers = registers.reshape(layout.registers_shape((ROWS,)))
            scales.append(mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None))
        return tuple(scales)

    return emit(words)


def block_scales(tile_smem: Any, half: jax.Array | int, *, interpret: bool = False) -> jax.Array:
    """s[r, t] = E4M3FN byte [64 * half + r, t] of a scale tile, times 2^118, as a bfloat16 pair.

    Args:
      tile_smem: reference to uint32 [128], the stored bytes of 128 rows and 4 blocks: row r % 32, then r // 32.
      half: which 64 of the 128 rows, 0 or 1.
      interpret: whether the kernel is being interpreted.

    Returns:
      uint32 [64, 4] in `block_scale_layout`.
    """
    if interpret:
        words = tile_smem[...].reshape(32, 4).T.reshape(2, ROWS)
        words = jnp.broadcast_to(words[half][:, None], (ROWS, 4))
        return block_scale_pair(words, _byte_selector(jnp.arange(4, dtype=jnp.uint32)), JnpWords())

    @plgpu.inline_mgpu(
        arg_types=(plgpu.RefType(), plgpu.Layout.WG_SPLAT(())),
        return_type=plgpu.ShapeDtypeStruct((ROWS, 4), jnp.uint32, block_scale_layout()),
    )
    def emit(ctx: Any, ref: ir.Value, half: ir.Value) -> mgpu.FragmentedArray:
        layout = block_scale_layout().to_mgpu()
        index = ir.IndexType.get()
        half = half.registers.item() if isinstance(half, mgpu.FragmentedArray) else half
        start = arith.muli(arith.index_cast(index, half), mgpu.c(2, index))
        registers = np.empty(2, dtype=object)
        selector = None
        for i, (row, thread) in enumerate(layout.thread_idxs((ROWS, 4))):
            if selector is None:
                selector = _emit_byte_selector(thread)
            place = arith.muli(arith.remui(row, mgpu.c(32, index)), mgpu.c(4, index))
            place = arith.addi(arith.addi(place, start), arith.divui(row, mgpu.c(32, index)))
            pair = block_scale_pair(memref.load(ref, [place]), selector, ptx_words())
            registers[i] = vector.broadcast(ir.VectorType.get((1,), pair.type), pair)
        registers = registers.reshape(layout.registers_shape((ROWS, 4)))
        return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=False)

    return emit(tile_smem, jnp.asarray(half, jnp.int32))


def _byte_selector(thread: jax.Array) -> jax.Array:
    """prmt selector that puts byte `thread` at bytes 0 and 2 and zeros (byte 4, of the second operand) elsewhere."""
    return thread * jnp.uint32(0x0101) + jnp.uint32(0x4040)


def _emit_byte_selector(thread: ir.Value) -> ir.Value:
    i32 = ir.IntegerType.get_signless(32)
    thread = arith.index_cast(i32, thread)
    return arith.addi(arith.muli(thread, mgpu.c(0x0101, i32)), mgpu.c(0x4040, i32))
