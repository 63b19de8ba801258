"""Unpackers of the prefill kernel that Mosaic has no conversion for, each beside its jnp twin.

A tile of 4-bit codes is read 32 bits a thread: thread t of a quad holds columns 8t..8t+7 of every 32. One exchange
inside the quad gives it columns 8j+2t, 8j+2t+1 for j = 0..3, which is what a wgmma register operand wants, so columns
keep their order and x needs no permutation:

    q5:  code = low - 16 * h            q6:  code = low + 16 * h0 - 32 * h1           nvfp4:  code = E2M1 value

The words of the middle part, `split_pairs` and `e2m1_pairs`, are programs over `_words`, tested for every code and lane
with `JnpWords` and `transpose_quad` over four lanes. The twins state the same equations column by column; they run when
the kernel is interpreted, where inlined code cannot.
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

from pallas_kernels.mosaic_gpu._words import PtxWords

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
    last bits of w * lo (2**-17 of the product). A scale of at most 8 significant bits has lo = 0: one multiply.

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


def _asm(text: str, *operands: ir.Value) -> Any:
    """One 32-bit result of a few instructions without side effects."""
    return llvm.inline_asm(_i32(), list(operands), text, "=r" + ",r" * len(operands))


#: Selectors of the two steps of the exchange, by lane of the quad: own bytes are 0..3, the partner's 4..7.
QUAD_HALVES = (0x5410, 0x5410, 0x3276, 0x3276)
QUAD_BYTES = (0x6240, 0x3715, 0x6240, 0x3715)


def transpose_quad(words: Any, word: Any, exchange: Callable[[Any, int], Any], halves: Any, odds: Any) -> Any:
    """Byte j of lane t becomes byte t of lane j, for the four lanes of a quad.

    Args:
      words: `PtxWords` or `JnpWords`.
      word: the word of every lane.
      exchange: (word, distance) to the word of the lane whose number differs in that bit.
      halves: each lane's selector of `QUAD_HALVES`.
      odds: each lane's selector of `QUAD_BYTES`.
    """
    word = words.prmt(word, exchange(word, 2), halves)
    return words.prmt(word, exchange(word, 1), odds)


def split_pairs(words: Any, kind: str, low: Any, high: Sequence[Any]) -> list[Any]:
    """bfloat16 pairs of the columns 8j + 2t, 8j + 2t + 1 of one row and 32 columns, j = 0..3.

    Args:
      words: `PtxWords` or `JnpWords`.
      kind: "q5" or "q6".
      low: byte j holds the low nibbles of pair j (what `transpose_quad` gives).
      high: the row's words of the high plane for these 32 columns (1 of q5, 2 of q6), shifted right by the
        `2 * HIGH_BITS` * t bits that lead up to lane t's columns.
    """
    # A bfloat16 of exponent 2**7 counts in ones: its low bits are the unsigned code with the sign bit flipped, and
    # 128 + half the range is taken off again.
    bits = HIGH_BITS[kind]
    sign = 16 << (bits - 1)
    bias = (0x4300 | sign) * 0x10001
    mask = ((2**bits - 1) << 4) * 0x10001
    and_xor = lambda a, b, c: (a & b) ^ c
    # High bits of the even and of the odd column of a pair, both moved to bits 4 and up of their byte.
    even, odd = [words.shift(w, 4) for w in high], [words.shift(w, 4 - bits) for w in high]
    odd_nibbles = words.shift(low, -4)
    pairs = []
    for j in range(4):
        source, byte = (0, j) if bits == 1 else (j // 2, 2 * (j % 2))
        # Bytes 1 and 3 are masked away, whatever is picked for them.
        top = words.prmt(even[source], odd[source], (4 + byte) << 8 | byte)
        top = words.lop3(top, mask, bias, and_xor)
        code = words.lop3(words.prmt(low, odd_nibbles, (4 + j) << 8 | j), 0x000F000F, top, and_xor)
        pairs.append(words.sub_bf16x2(code, bias))
    return pairs


def e2m1_pairs(words: Any, codes: Any) -> list[Any]:
    """bfloat16 pairs of the E2M1 values of 8 nibbles, lowest first.

    Args:
      words: `PtxWords` or `JnpWords`.
      codes: byte j holds the two codes of pair j.
    """
    # A code's low three bits pick the two bytes of its bfloat16 from tables; its sign picks the high byte with or
    # without the sign bit.
    either = lambda a, b, c: (a & b) | c
    magnitudes = words.lop3(codes, 0x77777777, 0, either)
    signs = words.lop3(words.shift(codes, -1), 0x44444444, 0x32103210, either)
    pairs = []
    for half in range(2):
        pick, signed = words.shift(magnitudes, -16 * half), words.shift(signs, -16 * half)
        low = words.prmt(0xC0800000, 0xC0804000, pick)
        plus = words.prmt(0x3F3F3F00, 0x40404040, pick)
        minus = words.lop3(plus, 0x80808080, 0, lambda a, b, c: (a | b) | c)
        high = words.prmt(plus, minus, signed)
        pairs += [words.prmt(low, high, select) for select in (0x5140, 0x7362)]
    return pairs


def _assemble(codes: Any, pairs: Callable[[Any, tuple[int, ...], ir.Value], list[ir.Value]]) -> Any:
    """The bfloat16 tile whose register pairs `pairs(words, index, transposed word)` gives, four to a word."""
    words, lane = PtxWords(), _quad_lane()
    at_most_one = arith.cmpi(arith.CmpIPredicate.ult, lane, _const(2))
    even = arith.cmpi(arith.CmpIPredicate.eq, arith.andi(lane, _const(1)), _const(0))
    halves = arith.select(at_most_one, _const(QUAD_HALVES[0]), _const(QUAD_HALVES[2]))
    odds = arith.select(even, _const(QUAD_BYTES[0]), _const(QUAD_BYTES[1]))
    pair_type = ir.VectorType.get((2,), ir.BF16Type.get())
    registers = np.empty(mgpu.WGMMA_LAYOUT.registers_shape(codes.shape), dtype=object)
    for index, register in np.ndenumerate(codes.registers):
        word = transpose_quad(words, mgpu_utils.bitcast(register, _i32()), mgpu_utils.shfl_bfly, halves, odds)
        for j, pair in enumerate(pairs(words, index, word)):
            registers[(index[0], index[1] * 4 + j, *index[2:])] = mgpu_utils.bitcast(pair, pair_type)
    return mgpu.FragmentedArray(_registers=registers, _layout=mgpu.WGMMA_LAYOUT, _is_signed=None)


def _split_body(kind: str) -> Callable[..., Any]:
    bits = HIGH_BITS[kind]

    def body(ctx: Any, codes: Any, high: Any) -> Any:
        del ctx
        shift = arith.muli(_quad_lane(), _const(2 * bits))

        def word_at(column: int, half: int) -> ir.Value:
            run = high.registers[0, column // 4, 0, 0, half, 0, 0, 0]
            word = mgpu_utils.bitcast(mgpu_utils.vector_slice(run, slice(column % 4, column % 4 + 1)), _i32())
            return arith.shrui(word, shift)

        def pairs(words: Any, index: tuple[int, ...], word: ir.Value) -> list[ir.Value]:
            return split_pairs(words, kind, word, [word_at(index[1] * bits + i, index[4]) for i in range(bits)])

        return _assemble(codes, pairs)

    return body


def _e2m1_body(ctx: Any, codes: Any) -> Any:
    del ctx
    return _assemble(codes, lambda words, index, word: e2m1_pairs(words, word))


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
