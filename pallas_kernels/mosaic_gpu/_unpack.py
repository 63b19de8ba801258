"""Packed codes to bfloat16, one program a code width, for tiles of 64 rows and 64 columns.

A thread of a warpgroup reads, of each of its rows, eight adjacent bytes of codes out of 32 (layout WGMMA_UPCAST_4X on
bytes). It turns each 32-bit word of them into bfloat16 pairs without talking to its neighbors, and hands each pair to
the place wgmma wants one at. Columns therefore come out in an order of their own, `column_order`: whoever multiplies
puts x in the same order. Every value is exact: an integer code below 2^8, an FP8 code, or an FP4 code times its block
scale (over 256) all have a bfloat16 of their own. Group, row and matrix scales are left out; they multiply sums.

The word programs run on `PtxWords` in a kernel and on `JnpWords` when a kernel is interpreted. Source:
storage-layouts; tensor-formats §3.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.mosaic.gpu as mgpu
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith, vector

from pallas_kernels.mosaic_gpu._words import JnpWords, Word, ptx_words
from pallas_kernels.tiling import weight_kind

ROWS = COLUMNS = 64
# What the scaled FP4 weights of `unpack` have to be multiplied by: their block scales carry 2^-8 to stay in range.
NVFP4_FACTOR = 256.0
_NIBBLES = 0x000F000F


def _signed_pairs(word: Word, ops: Any, sign_bit: int, high: Sequence[Word] | None = None) -> list[Word]:
    """Pair j is codes j and j + 4 of a word of eight nibbles; high[j] holds their further bits in place.

    A bfloat16 between 128 and 255 is 0x4300 plus an integer, so OR-ing 0x4300 is a conversion; flipping the sign bit
    first makes the code unsigned, and 128 + 2^sign_bit comes off again in one exact subtraction.
    """
    bias = (0x4300 + (1 << sign_bit)) * 0x00010001
    further = ((1 << (sign_bit + 1)) - 1 & ~0xF) * 0x00010001
    pairs = []
    for j in range(4):
        pair = ops.lop3(ops.shift(word, -4 * j), _NIBBLES, bias, lambda a, b, c: (a & b) ^ c)
        if high is not None:
            pair = ops.lop3(high[j], further, pair, lambda a, b, c: (a & b) ^ c)
        pairs.append(ops.sub_bf16x2(pair, bias))
    return pairs


def _q4(words: Sequence[Word], high: Word | None, scale: Word | None, ops: Any) -> list[Word]:
    return [pair for word in words for pair in _signed_pairs(word, ops, 3)]


def _q5(words: Sequence[Word], high: Word | None, scale: Word | None, ops: Any) -> list[Word]:
    # Bit k of the low half belongs to column k; the copy 12 bits up puts column k + 4 at bit k of the high half.
    spread = ops.lop3(high, ops.shift(high, 12), 0, lambda a, b, c: a | b | c)
    return [
        pair
        for w, word in enumerate(words)
        for pair in _signed_pairs(word, ops, 4, [ops.shift(spread, 4 - 8 * w - j) for j in range(4)])
    ]


def _q6(words: Sequence[Word], high: Word | None, scale: Word | None, ops: Any) -> list[Word]:
    # Byte b of the high word has the two bits of columns 4b to 4b + 3; one byte goes to each half.
    spread = [ops.prmt(high, 0, 0x4140), ops.prmt(high, 0, 0x4342)]
    return [
        pair
        for w, word in enumerate(words)
        for pair in _signed_pairs(word, ops, 5, [ops.shift(spread[w], 4 - 2 * j) for j in range(4)])
    ]


def _w8(words: Sequence[Word], high: Word | None, scale: Word | None, ops: Any) -> list[Word]:
    """Pair j is bytes j and j + 2: (128 + low seven bits) - (128, or 256 where the sign bit is set)."""
    pairs = []
    for word in words:
        for j in range(2):
            bytes_ = ops.shift(word, -8 * j)
            magnitude = ops.lop3(bytes_, 0x007F007F, 0x43004300, lambda a, b, c: (a & b) | c)
            sign = ops.lop3(bytes_, 0x00800080, 0x43004300, lambda a, b, c: (a & b) | c)
            pairs.append(ops.sub_bf16x2(magnitude, sign))
    return pairs


def _float_pair(word: Word, ops: Any, sign_left: int, rest_left: int, rest_mask: int) -> Word:
    """Sign to bit 15 and exponent with fraction to where bfloat16 has them, which leaves the exponent bias wrong."""
    rest = ops.lop3(ops.shift(word, rest_left), rest_mask, 0, lambda a, b, c: (a & b) | c)
    return ops.lop3(ops.shift(word, sign_left), 0x80008000, rest, lambda a, b, c: (a & b) | c)


def _fp8(words: Sequence[Word], high: Word | None, scale: Word | None, ops: Any) -> list[Word]:
    # Pair j is bytes j and j + 2; 2^120 makes up for the biases, 127 and 7, and normalizes the subnormals.
    return [
        ops.mul_bf16x2(_float_pair(word, ops, 8 - 8 * j, 4 - 8 * j, 0x07F007F0), 0x7B807B80)
        for word in words
        for j in range(2)
    ]


def _nvfp4(words: Sequence[Word], high: Word | None, scale: Word | None, ops: Any) -> list[Word]:
    # Pair j is codes j and j + 4, 2^-126 too small; `scale` is their block scale times 2^118, in both halves.
    return [
        ops.mul_bf16x2(_float_pair(word, ops, 12 - 4 * j, 6 - 4 * j, 0x01C001C0), scale)
        for word in words
        for j in range(4)
    ]


def block_scale_pair(word: Word, selector: Word | int, ops: Any) -> Word:
    """The E4M3FN byte that selector picks out of a word, times 2^118, as a bfloat16 pair of two equal halves."""
    pair = ops.shift(ops.prmt(word, 0, selector), 4)
    return ops.mul_bf16x2(ops.mul_bf16x2(pair, 0x7B007B00), 0x7B007B00)


#: kind -> (words of a part, high bits, block scale, operations) to bfloat16 pairs.
PROGRAMS: dict[str, Callable[..., list[Word]]] = {
    "q4": _q4, "q5": _q5, "q6": _q6, "w8": _w8, "fp8": _fp8, "nvfp4": _nvfp4,
}  # fmt: skip


def tile_bytes(kind: str) -> int:
    """Bytes of codes 64 columns take: 32, or 64 where a code takes a byte."""
    return 8 * weight_kind(kind).code_plane_bits


def order_columns(kind: str, x: jax.Array) -> jax.Array:
    """y[m, 64 * b + p] = x[m, 64 * b + column_order(kind)[p]], a transposition, which XLA fuses with what made x.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      x: [m, columns], columns a multiple of 64.

    Returns:
      An array like x.
    """
    # Column = thread, word of the thread, half of the pair, pair of the word: 4 * 2 * 2 * pairs of a word.
    parts = x.reshape(x.shape[0], -1, 4, 2, 2, 16 // weight_kind(kind).code_plane_bits)
    return parts.transpose(0, 1, 3, 5, 2, 4).reshape(x.shape)


def column_order(kind: str) -> np.ndarray:
    """order[p] = the column, of 64, whose value `unpack` puts at p."""
    return np.asarray(order_columns(kind, np.arange(COLUMNS)[None]))[0]  # type: ignore[arg-type]


def codes_layout() -> Any:
    """Layout to load codes with: of each 32 bytes of a row a thread has eight."""
    return plgpu.Layout.WGMMA_UPCAST_4X


def high_layout(kind: str) -> Any:
    """Layout to load high bits with: those of the sixteen columns whose codes the thread has."""
    return plgpu.Layout.WGMMA if kind == "q5" else plgpu.Layout.WGMMA_8BIT


def block_scale_layout() -> Any:
    """Layout of [64, 4] scale words: a thread has the one of its row and of its sixteen columns."""
    return plgpu.Layout.TILED(
        plgpu.Tiling(((64, 4), (16, 4), (8, 4), (1,))), warp_dims=(-7,), lane_dims=(-3, -2), vector_dim=-1
    )


def unpack(
    kind: str,
    codes: jax.Array,
    high: jax.Array | None = None,
    scales: jax.Array | None = None,
    *,
    interpret: bool = False,
    layout: Any = plgpu.Layout.WGMMA,
) -> jax.Array:
    """a[r, p] = code[r, column_order(kind)[p]], times its block scale / 256 for nvfp4, inside a kernel.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      codes: uint8 [64, tile_bytes(kind)] in `codes_layout`.
      high: uint8 [64, 8] (q5) or [64, 16] (q6) in `high_layout`.
      scales: uint32 [64, 4] in `block_scale_layout`, from `block_scales` (nvfp4).
      interpret: whether the kernel is being interpreted.
      layout: layout of the result, one in which a thread has the same registers in the same order as in WGMMA.

    Returns:
      bfloat16 [64, 64] in `layout`.
    """
    if interpret:
        return _unpack_jnp(kind, codes, high, scales)
    layouts = {"codes": codes_layout(), "high": high_layout(kind), "scales": block_scale_layout()}
    arrays = {name: a for name, a in zip(layouts, (codes, high, scales), strict=True) if a is not None}

    @plgpu.inline_mgpu(
        arg_types=tuple(layouts[name] for name in arrays),
        return_type=plgpu.ShapeDtypeStruct((ROWS, COLUMNS), jnp.bfloat16, layout),
    )
    def emit(ctx: Any, *fragments: Any) -> Any:
        return _unpack_registers(kind, dict(zip(arrays, fragments, strict=True)), layout.to_mgpu())

    return emit(*arrays.values())


def _unpack_jnp(kind: str, codes: jax.Array, high: jax.Array | None, scales: jax.Array | None) -> jax.Array:
    """`unpack` on whole arrays, by the same word program."""
    words = words_of_codes(codes)
    lanes = None if high is None else words_of_high(high)
    pairs = []
    for part in range(words.shape[1]):
        pairs += PROGRAMS[kind]([words[:, part, :, w] for w in range(2)], lanes, scales, JnpWords())
    return columns_of_pairs(pairs)


def words_of_codes(codes: jax.Array) -> jax.Array:
    """Codes [64, bytes] as uint32 [row, 32 byte part, thread, word]: the two words a thread has of each part."""
    return lax.bitcast_convert_type(codes.reshape(ROWS, -1, 4, 2, 4), jnp.uint32)


def words_of_high(high: jax.Array) -> jax.Array:
    """High bits [64, bytes] as uint32 [row, thread], those of the thread's sixteen columns."""
    lanes = jnp.zeros((ROWS, 4), jnp.uint32)
    for i in range(high.shape[1] // 4):
        lanes |= high.reshape(ROWS, 4, -1)[:, :, i].astype(jnp.uint32) << (8 * i)
    return lanes


def columns_of_pairs(pairs: Sequence[jax.Array]) -> jax.Array:
    """Pairs [row, thread], in the order of a thread's registers, as bfloat16 [64, 64]."""
    return lax.bitcast_convert_type(jnp.stack(pairs, axis=1), jnp.bfloat16).reshape(ROWS, COLUMNS)


def _unpack_registers(
    kind: str, fragments: dict[str, mgpu.FragmentedArray], layout: mgpu.FragmentedLayout
) -> mgpu.FragmentedArray:
    """`unpack` on the registers of a thread: its two rows of the tile are 8 apart."""
    pair_type = ir.VectorType.get((2,), ir.BF16Type.get())
    codes = fragments["codes"].registers.reshape(-1, 2)
    high = fragments["high"].registers.reshape(2) if "high" in fragments else None
    scales = fragments["scales"].registers.reshape(2) if "scales" in fragments else None
    out = np.empty((COLUMNS // 8, 2), dtype=object)
    for row in range(2):
        further = as_words(high[row])[0] if high is not None else None
        scale = as_words(scales[row])[0] if scales is not None else None
        pairs = []
        for part in range(codes.shape[0]):
            pairs += PROGRAMS[kind](as_words(codes[part, row]), further, scale, ptx_words())
        for p, pair in enumerate(pairs):
            out[p, row] = mgpu.utils.bitcast(pair, pair_type)
    registers = out.reshape(layout.registers_shape((ROWS, COLUMNS)))
    return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None)


def as_words(register: ir.Value) -> list[ir.Value]:
    """The 32-bit words of a vector register; one of 16 bits is zero extended."""
    i32 = ir.IntegerType.get_signless(32)
    bits = mgpu.utils.bitwidth(register.type)
    if bits < 32:
        return [arith.extui(i32, mgpu.utils.bitcast(register, ir.IntegerType.get_signless(bits)))]
    words = vector.bitcast(ir.VectorType.get((bits // 32,), i32), register)
    return [vector.extract(words, [], [i]) for i in range(bits // 32)]
