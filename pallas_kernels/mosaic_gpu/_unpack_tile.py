"""Unpackers of the prefill kernel that Mosaic has no conversion for, each beside its jnp twin.

A tile of 4-bit codes arrives in the layout that lets the copy engine's rows be read 32 bits a thread: thread t of a quad
holds columns 8t..8t+7 of every 32. One exchange inside the quad gives it columns 8j+2t, 8j+2t+1 for j = 0..3, which is
what a wgmma register operand wants, so columns keep their order and x needs no permutation:

    q5:  code = low - 16 * h            q6:  code = low + 16 * h0 - 32 * h1           nvfp4:  code = E2M1 value

The twins state the same equations column by column; they run when the kernel is interpreted, where inlined code cannot.
Leaves out Q4, W8 and FP8, which Mosaic converts itself, and all scales. Source: storage-layouts, gpu-kernels.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.mosaic.gpu as mgpu
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, memref

#: Bits of the high plane a column of each kind takes.
HIGH_BITS = {"q5": 1, "q6": 2}


def high_words_layout() -> Any:
    """Layout of uint32 [64, 4 * i] in which a thread holds whole runs of 4 words of its accumulator rows."""
    tiling = plgpu.Tiling(((64, 4), (16, 4), (8, 4)))
    return plgpu.Layout.TILED(tiling, warp_dims=(-6,), lane_dims=(-2, plgpu.Replicated(4)), vector_dim=-1)


def unpack_split(kind: str, codes: jax.Array, high: jax.Array, interpret: bool) -> jax.Array:
    """Codes of q5 or q6: low nibble and high bits put together.

    Args:
      kind: "q5" or "q6".
      codes: int4 [64, columns], the base plane, layout WGMMA_UPCAST_4X.
      high: uint32 [64, words], the high plane, layout `high_words_layout`.
      interpret: use the twin.

    Returns:
      bfloat16 [64, columns], layout WGMMA, exact.
    """
    if interpret:
        return split_twin(kind, codes, high)
    inlined = plgpu.inline_mgpu(
        arg_types=(plgpu.Layout.WGMMA_UPCAST_4X, high_words_layout()), return_type=_tile_type(codes.shape)
    )
    return inlined(_split_body(kind))(codes, high)


def unpack_e2m1(codes: jax.Array, interpret: bool) -> jax.Array:
    """Values of E2M1 codes.

    Args:
      codes: int4 [64, columns], the bit patterns, layout WGMMA_UPCAST_4X.
      interpret: use the twin.

    Returns:
      bfloat16 [64, columns], layout WGMMA, exact.
    """
    if interpret:
        return e2m1_twin(codes)
    inlined = plgpu.inline_mgpu(arg_types=(plgpu.Layout.WGMMA_UPCAST_4X,), return_type=_tile_type(codes.shape))
    return inlined(_e2m1_body)(codes)


def scale_tile(weights: jax.Array, scales: Sequence[jax.Array], short: bool, interpret: bool) -> jax.Array:
    """weights[r, c] * scales[c // group][r], rounded to bfloat16.

    The product is fma(w, hi, w * lo) with scale = hi + lo in bfloat16, which is the exact product rounded but for the
    last bits of w * lo (2**-17 of the product); a scale of at most 8 significant bits has lo = 0 and needs one multiply.

    Args:
      weights: bfloat16 [64, columns], layout WGMMA.
      scales: float32 [64] vectors, one a group of columns / len(scales), of at most 16 significant bits.
      short: every scale has at most 8 significant bits.
      interpret: use the twin.

    Returns:
      bfloat16 [64, columns], layout WGMMA.
    """
    if interpret:
        return scale_twin(weights, scales)
    row = plgpu.Layout.WGMMA.reduce(1)
    inlined = plgpu.inline_mgpu(
        arg_types=(plgpu.Layout.WGMMA, *[row] * len(scales)), return_type=_tile_type(weights.shape)
    )
    return inlined(_scale_body(short))(weights, *scales)


def load_scale_words(words: Any, interpret: bool) -> jax.Array:
    """The scale words of 64 rows from a 128x4 block-scale tile, as stored.

    Args:
      words: uint32 [32, 2] reference into device memory: word [i, a] holds the four scales of row 32*a + i.
      interpret: use the twin.

    Returns:
      uint32 [64], one word a row.
    """
    if interpret:
        return words[...].T.reshape(64)
    row = plgpu.Layout.WGMMA.reduce(1)
    inlined = plgpu.inline_mgpu(
        arg_types=(plgpu.RefType(),), return_type=plgpu.ShapeDtypeStruct((64,), jnp.uint32, layout=row)
    )
    return inlined(_scale_words_body)(words)


def split_twin(kind: str, codes: jax.Array, high: jax.Array) -> jax.Array:
    """`unpack_split` in plain jnp."""
    bits = HIGH_BITS[kind]
    lanes = 32 // bits
    low = codes.astype(jnp.int32) & 15
    shifts = jnp.arange(lanes, dtype=jnp.uint32) * bits
    top = ((high[:, :, None] >> shifts) & (2**bits - 1)).reshape(codes.shape).astype(jnp.int32)
    code = low | (top << 4)
    sign = 16 << (bits - 1)
    return ((code ^ sign) - sign).astype(jnp.bfloat16)


def e2m1_twin(codes: jax.Array) -> jax.Array:
    """`unpack_e2m1` in plain jnp."""
    code = codes.astype(jnp.int32)
    exponent, fraction = (code >> 1) & 3, code & 1
    magnitude = jnp.where(exponent == 0, fraction, (2 + fraction) << (jnp.maximum(exponent, 1) - 1))
    value = magnitude.astype(jnp.float32) * 0.5
    return jnp.where(code & 8, -value, value).astype(jnp.bfloat16)


def scale_twin(weights: jax.Array, scales: Sequence[jax.Array]) -> jax.Array:
    """`scale_tile` in plain jnp; the float32 product of 8 and 16 bits is exact."""
    spread = jnp.repeat(jnp.stack(scales, axis=1), weights.shape[1] // len(scales), axis=1)
    return (weights.astype(jnp.float32) * spread).astype(jnp.bfloat16)


def _tile_type(shape: tuple[int, ...]) -> Any:
    return plgpu.ShapeDtypeStruct(shape, jnp.bfloat16, layout=plgpu.Layout.WGMMA)


def _i32() -> ir.Type:
    return ir.IntegerType.get_signless(32)


def _const(value: int) -> ir.Value:
    return arith.constant(_i32(), ir.IntegerAttr.get(_i32(), value - (1 << 32) if value >= 1 << 31 else value))


def _quad_lane() -> ir.Value:
    return arith.andi(mgpu_utils.thread_idx(), _const(3))


def _shr(value: ir.Value, count: int | ir.Value) -> ir.Value:
    return arith.shrui(value, _const(count) if isinstance(count, int) else count)


def _shl(value: ir.Value, count: int) -> ir.Value:
    return arith.shli(value, _const(count))


def _asm(text: str, *operands: ir.Value) -> ir.Value:
    """One 32-bit result of a few instructions without side effects."""
    return llvm.inline_asm(_i32(), list(operands), text, "=r" + ",r" * len(operands))


def _transpose_quad(lane: ir.Value) -> Callable[[ir.Value], ir.Value]:
    """Byte j of thread t becomes byte t of thread j, for the four threads of a quad."""
    below_two = arith.cmpi(arith.CmpIPredicate.ult, lane, _const(2))
    even = arith.cmpi(arith.CmpIPredicate.eq, arith.andi(lane, _const(1)), _const(0))
    # Own bytes are 0..3 of the selector, the partner's 4..7; a thread keeps the half that is already in place.
    halves = arith.select(below_two, _const(0x5410), _const(0x3276))
    bytes_ = arith.select(even, _const(0x6240), _const(0x3715))

    def transpose(word: ir.Value) -> ir.Value:
        word = mgpu_utils.prmt(word, mgpu_utils.shfl_bfly(word, 2), halves)
        return mgpu_utils.prmt(word, mgpu_utils.shfl_bfly(word, 1), bytes_)

    return transpose


def _assemble(codes: Any, pairs: Callable[[tuple[int, ...], ir.Value], list[ir.Value]]) -> Any:
    """The bfloat16 tile whose register pairs `pairs(index, transposed word)` gives, four to a word."""
    transpose = _transpose_quad(_quad_lane())
    pair_type = ir.VectorType.get((2,), ir.BF16Type.get())
    registers = np.empty(mgpu.WGMMA_LAYOUT.registers_shape(codes.shape), dtype=object)
    for index, word in np.ndenumerate(codes.registers):
        for j, pair in enumerate(pairs(index, transpose(mgpu_utils.bitcast(word, _i32())))):
            registers[(index[0], index[1] * 4 + j, *index[2:])] = mgpu_utils.bitcast(pair, pair_type)
    return mgpu.FragmentedArray(_registers=registers, _layout=mgpu.WGMMA_LAYOUT, _is_signed=None)


def _split_body(kind: str) -> Callable[..., Any]:
    # A bfloat16 of exponent 2**7 counts in ones: bits under the mantissa's top are the unsigned code, the sign bit of
    # the code is flipped, and 128 + half the range is taken off again.
    bits = HIGH_BITS[kind]
    sign = 16 << (bits - 1)
    bias = (0x4300 | sign) * 0x10001
    mask = ((2**bits - 1) << 4) * 0x10001

    def body(ctx: Any, codes: Any, high: Any) -> Any:
        del ctx
        shift = arith.muli(_quad_lane(), _const(2 * bits))

        def word_at(column: int, half: int) -> ir.Value:
            run = high.registers[0, column // 4, 0, 0, half, 0, 0, 0]
            return mgpu_utils.bitcast(mgpu_utils.vector_slice(run, slice(column % 4, column % 4 + 1)), _i32())

        def pairs(index: tuple[int, ...], word: ir.Value) -> list[ir.Value]:
            block, half = index[1], index[4]
            # High bits of the even and of the odd column of a pair, both moved to bits 4 and up of their byte.
            words = [_shr(word_at(block * bits + i, half), shift) for i in range(bits)]
            even, odd = [_shl(w, 4) for w in words], [_shl(w, 4 - bits) for w in words]
            odd_nibbles = _shr(word, 4)
            out = []
            for j in range(4):
                source, byte = (0, j) if bits == 1 else (j // 2, 2 * (j % 2))
                out.append(
                    _asm(
                        f"""
                        {{
                        .reg .b32 low, top, code;
                        prmt.b32 low, $1, $2, 0xF{4 + j}F{j};
                        prmt.b32 top, $3, $4, 0xF{4 + byte}F{byte};
                        lop3.b32 top, top, {mask}, {bias}, (0xf0 & 0xcc) ^ 0xaa;
                        lop3.b32 code, low, 0x000F000F, top, (0xf0 & 0xcc) ^ 0xaa;
                        mov.b32 top, {bias};
                        sub.bf16x2 $0, code, top;
                        }}
                        """,
                        word,
                        odd_nibbles,
                        even[source],
                        odd[source],
                    )
                )
            return out

        return _assemble(codes, pairs)

    return body


def _e2m1_body(ctx: Any, codes: Any) -> Any:
    del ctx

    def pairs(index: tuple[int, ...], word: ir.Value) -> list[ir.Value]:
        del index
        # A code's low three bits pick the two bytes of its bfloat16 from tables; its sign picks the high byte with or
        # without the sign bit.
        magnitudes = arith.andi(word, _const(0x77777777))
        signs = arith.ori(_shr(arith.andi(word, _const(0x88888888)), 1), _const(0x32103210))
        out = []
        for half in range(2):
            pick = magnitudes if half == 0 else _shr(magnitudes, 16)
            signed = signs if half == 0 else _shr(signs, 16)
            low = _asm("prmt.b32 $0, 0xC0800000, 0xC0804000, $1;", pick)
            high = _asm(
                """
                {
                .reg .b32 plus, minus;
                prmt.b32 plus, 0x3F3F3F00, 0x40404040, $1;
                or.b32 minus, plus, 0x80808080;
                prmt.b32 $0, plus, minus, $2;
                }
                """,
                pick,
                signed,
            )
            out += [_asm(f"prmt.b32 $0, $1, $2, {select};", low, high) for select in ("0x5140", "0x7362")]
        return out

    return _assemble(codes, pairs)


def _scale_body(short: bool) -> Callable[..., Any]:
    def split(scale: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The scale as bfloat16 pairs hi, lo with the same value in both halves."""
        high = _asm("cvt.rn.bf16x2.f32 $0, $1, $1;", mgpu_utils.bitcast(scale, _i32()))
        rest = "{ .reg .b32 high; shl.b32 high, $2, 16; sub.f32 high, $1, high; cvt.rn.bf16x2.f32 $0, high, high; }"
        return high, _asm(rest, mgpu_utils.bitcast(scale, _i32()), high)

    multiply = "mul.rn.bf16x2 $0, $1, $2;"
    multiply_add = "{ .reg .b32 rest; mul.rn.bf16x2 rest, $1, $3; fma.rn.bf16x2 $0, $1, $2, rest; }"

    def body(ctx: Any, weights: Any, *scales: Any) -> Any:
        del ctx
        pairs = [[split(value) for value in scale.registers.flat] for scale in scales]
        registers = np.empty_like(weights.registers)
        tiles = weights.registers.shape[1] // len(scales)  # of 8 columns
        for index, weight in np.ndenumerate(weights.registers):
            high, low = pairs[index[1] // tiles][index[4]]
            word = mgpu_utils.bitcast(weight, _i32())
            product = _asm(multiply, word, high) if short else _asm(multiply_add, word, high, low)
            registers[index] = mgpu_utils.bitcast(product, weight.type)
        return mgpu.FragmentedArray(_registers=registers, _layout=weights.layout, _is_signed=None)

    return body


def _scale_words_body(ctx: Any, words: Any) -> Any:
    del ctx
    layout = mgpu.WGMMA_LAYOUT.reduce((1,))
    index_type = ir.IndexType.get()
    registers = np.empty(layout.registers_shape((64,)), dtype=object)
    for position, (row,) in zip(np.ndindex(registers.shape), layout.thread_idxs((64,)), strict=True):
        row = arith.index_cast(index_type, row) if row.type != index_type else row
        width = arith.constant(index_type, ir.IntegerAttr.get(index_type, 32))
        word = memref.load(words, [arith.remui(row, width), arith.divui(row, width)])
        registers[position] = mgpu_utils.bitcast(word, ir.VectorType.get((1,), _i32()))
    return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=False)
