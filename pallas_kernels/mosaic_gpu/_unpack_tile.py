"""Packed codes and their scales to the bfloat16 operand of the prefill kernel, 64 rows and 64 columns at a time.

Columns come out in `_unpack.column_order`, so that no thread needs another one's codes, and x is put in that order:

    tile[r, p] = bfloat16(code[r, column_order[p]] * scale[r] / FACTORS[kind])        (fp8: the code alone)

A code becomes a bfloat16 by bit operations and one exact subtraction or fma. The factor is a power of two that keeps
those in range; the epilogue multiplies sums by it. FP4 codes times their block scales, and FP8 codes, are exact.

A binary16 scale is taken as hi + lo in bfloat16 and the product as fma(code, hi, code * lo), which is rounded once:
1/257 of the weight at most. A scale in one part, rounded to bfloat16 before the product, saves q4 an instruction a
weight and may cost it 1.86/256. q4 takes that where the result is bfloat16, whose own rounding no operand can make up
for; random weights stay well inside the criterion of 1/256 either way. No two operations a pair can do better,
because a bfloat16 multiplier has no place for the rest of a scale.

Programs run on `PtxWords` in a kernel and on `JnpWords` when a kernel is interpreted. Leaves out FP4's and FP8's
codes, which are `_unpack`'s. Source: storage-layouts, gpu-kernels.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.experimental.mosaic.gpu as mgpu
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, memref

from pallas_kernels.mosaic_gpu import _unpack
from pallas_kernels.mosaic_gpu._unpack import COLUMNS, ROWS
from pallas_kernels.mosaic_gpu._words import JnpWords, Word, ptx_words, scale_pairs
from pallas_kernels.tiling import weight_kind

#: What sums of tiles have to be multiplied by, with scales in two parts.
FACTORS = MappingProxyType(
    {"q4": 2.0**6, "q5": 2.0**6, "q6": 2.0**6, "w8": 2.0**6, "fp8": 1.0, "nvfp4": _unpack.NVFP4_FACTOR}
)
#: Bits a nibble of each of the four pairs of a word is lifted by.
_PLACES = MappingProxyType({"q4": (0, 4, 0, 4), "q5": (0, 1, 2, 3), "q6": (0, 2, 0, 2)})
# bfloat16 powers of two, and their negatives, in both halves of a word.
_POWER = lambda exponent: (exponent + 127 << 7) * 0x00010001
_MINUS = 0x80008000
#: What `FACTORS` is for q4 with scales in one part.
_Q4_ONE_PART_FACTOR = 2.0**22


def scale_parts(kind: str, out_dtype: Any) -> int:
    """Parts a binary16 scale is taken in for a result of that dtype: 1 or 2."""
    return 1 if kind == "q4" and jnp.dtype(out_dtype) == jnp.bfloat16 else 2


def factor(kind: str, parts: int) -> float:
    """What sums of tiles have to be multiplied by, for scales in that many parts."""
    return _Q4_ONE_PART_FACTOR if (kind, parts) == ("q4", 1) else FACTORS[kind]


def q4_pairs(words: Sequence[Word], scale: Word, ops: Any) -> list[Word]:
    """Pair j is codes j and j + 4 of each word, times the bfloat16 of the scale, over 2^22.

    As `nibble_pairs`, but the one fma multiplies by the scale too: fma(2^-133 * (code + 8), 2^111 * scale, -8 * 2^-22 *
    scale) is the product.
    """
    hi = ops.bf16x2_of_f32(ops.float_of_half(scale))
    times = [ops.mul_bf16x2(hi, _POWER(111 - place)) for place in (0, 4)]
    offset = ops.mul_bf16x2(hi, _POWER(-19) | _MINUS)
    pairs = []
    for word in words:
        for j in range(4):
            lift = 0x00010001 << _PLACES["q4"][j]
            code = ops.lop3(ops.shift(word, -8 * (j // 2)), 0xF * lift, 8 * lift, lambda a, b, c: (a & b) ^ c)
            pairs.append(ops.fma_bf16x2(code, times[j % 2], offset))
    return pairs


def w8_pairs(words: Sequence[Word], ops: Any) -> list[Word]:
    """Pair j is bytes j and j + 2 of each word, over 2^6: 2^-133 * (code + 128) times 2^127, less 2."""
    pairs = []
    for word in words:
        for j in range(2):
            code = ops.lop3(ops.shift(word, -8 * j), 0x00FF00FF, 0x00800080, lambda a, b, c: (a & b) ^ c)
            pairs.append(ops.fma_bf16x2(code, _POWER(127), _POWER(1) | _MINUS))
    return pairs


def nibble_pairs(kind: str, words: Sequence[Word], high: Word | None, ops: Any) -> list[Word]:
    """Pair j is codes j and j + 4 of each word of q4, q5 or q6, over 2^6.

    Of a bfloat16 whose upper 8 bits are zero, the lower 8 are an integer in units of 2^-133, subnormal or not. So a
    code with its sign bit flipped is one wherever it lies in them, its multiplier makes up for the place, and what the
    flip added comes off in the same fma. Places are those where high bits need no shift of their own.
    """
    bits = weight_kind(kind).code_bits - 4
    places = _PLACES[kind]
    pairs = []
    for word, top in zip(words, _tops(kind, high, ops), strict=True):
        for j, place in enumerate(places):
            lift = 0x00010001 << place
            upper, mask = (8 << bits) * lift, ((1 << bits) - 1 << 4) * lift
            if bits:
                upper = ops.lop3(top[j], mask, upper, lambda a, b, c: (a & b) ^ c)
            code = ops.lop3(ops.shift(word, place - 4 * j), 0xF * lift, upper, lambda a, b, c: (a & b) ^ c)
            pairs.append(ops.fma_bf16x2(code, _POWER(127 - place), _POWER(bits - 3) | _MINUS))
    return pairs


def _tops(kind: str, high: Word | None, ops: Any) -> list[list[Word]]:
    """Of each of the two words of codes, the words with the high bits of its four pairs in place."""
    if kind == "q4":
        return [[], []]
    if kind == "q5":
        # Bit k of the low half belongs to column k; the copy 12 bits up puts column k + 4 at bit k of the high half.
        spread = ops.lop3(high, ops.shift(high, 12), 0, lambda a, b, c: a | b | c)
        return [[ops.shift(spread, 4 - 8 * w)] * 4 for w in range(2)]
    # Byte b of the high word has the two bits of columns 4b to 4b + 3; one byte goes to each half.
    spreads = [ops.prmt(high, 0, selector) for selector in (0x4140, 0x4342)]
    return [[ops.shift(spread, 4)] * 2 + [spread] * 2 for spread in spreads]


def tile_pairs(
    kind: str,
    parts: Sequence[Sequence[Word]],
    high: Word | None,
    scales: Sequence[Word],
    selector: Word,
    ops: Any,
    parts_of_scale: int = 2,
) -> list[Word]:
    """The 8 bfloat16 pairs of a row that a thread has of every 64 columns.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      parts: two words of codes a thread has of each 32 bytes.
      high: the high bits of the thread's columns, or None.
      scales: scale words of the row: one a group, or one for four blocks (nvfp4).
      selector: prmt selector of the thread's block (nvfp4).
      ops: `PtxWords` or `JnpWords`.
      parts_of_scale: what `scale_parts` says.
    """
    if (kind, parts_of_scale) == ("q4", 1):
        return q4_pairs(parts[0], scales[0], ops)
    if kind == "w8":
        return [
            pair
            for part, scale in zip(parts, scales, strict=True)
            for pair in scale_pairs(w8_pairs(part, ops), scale, ops)
        ]
    if kind in _PLACES:
        return scale_pairs(nibble_pairs(kind, parts[0], high, ops), scales[0], ops)
    block = _unpack.block_scale_pair(scales[0], selector, ops) if kind == "nvfp4" else None
    return [pair for part in parts for pair in _unpack.PROGRAMS[kind](part, None, block, ops)]


def unpack_tile(
    kind: str,
    codes: jax.Array,
    high: jax.Array | None,
    scales: Sequence[jax.Array],
    interpret: bool,
    parts_of_scale: int = 2,
) -> jax.Array:
    """The tile of the module's equation, inside a kernel.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      codes: uint8 [64, tile_bytes(kind)] in `_unpack.codes_layout`.
      high: uint8 [64, 8] (q5) or [64, 16] (q6) in `_unpack.high_layout`.
      scales: [64] in WGMMA.reduce(1): uint16 a group, uint32 for four blocks (nvfp4), none (fp8).
      interpret: whether the kernel is interpreted.
      parts_of_scale: what `scale_parts` says.

    Returns:
      bfloat16 [64, 64], layout WGMMA.
    """
    if interpret:
        return _interpreted_tile(kind, codes, high, scales, parts_of_scale)
    layouts = [_unpack.codes_layout()] + [_unpack.high_layout(kind)] * (high is not None)
    layouts += [plgpu.Layout.WGMMA.reduce(1)] * len(scales)

    @plgpu.inline_mgpu(
        arg_types=tuple(layouts),
        return_type=plgpu.ShapeDtypeStruct((ROWS, COLUMNS), jnp.bfloat16, layout=plgpu.Layout.WGMMA),
    )
    def emit(ctx: Any, codes: Any, *rest: Any) -> Any:
        del ctx
        return _emitted_tile(
            kind, codes, rest[0] if high is not None else None, rest[high is not None :], parts_of_scale
        )

    return emit(codes, *([] if high is None else [high]), *scales)


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


def _selector(lane: Word) -> Word:
    """The prmt selector that puts byte `lane` at bytes 0 and 2 and zeros (byte 4, of the second operand) elsewhere."""
    return lane * jnp.uint32(0x0101) + jnp.uint32(0x4040)


def _interpreted_tile(
    kind: str, codes: jax.Array, high: jax.Array | None, scales: Sequence[jax.Array], parts_of_scale: int
) -> jax.Array:
    """`unpack_tile` on whole arrays, by the same word programs: words are [row, thread of the quad]."""
    words = _unpack.words_of_codes(codes)
    parts = [[words[:, part, :, w] for w in range(2)] for part in range(words.shape[1])]
    lanes = None if high is None else _unpack.words_of_high(high)
    spread = [jnp.broadcast_to(scale.astype(jnp.uint32)[:, None], (ROWS, 4)) for scale in scales]
    selector = _selector(jnp.arange(4, dtype=jnp.uint32))
    pairs = tile_pairs(kind, parts, lanes, spread, selector, JnpWords(), parts_of_scale)
    return _unpack.columns_of_pairs(pairs)


def _emitted_tile(kind: str, codes: Any, high: Any, scales: Sequence[Any], parts_of_scale: int) -> Any:
    """`unpack_tile` on the registers of a thread: its two rows are 8 apart."""
    ops, pair_type = ptx_words(), ir.VectorType.get((2,), ir.BF16Type.get())
    registers = codes.registers.reshape(-1, 2)
    selector = arith.addi(arith.muli(arith.andi(mgpu_utils.thread_idx(), _const(3)), _const(0x0101)), _const(0x4040))
    out = np.empty((COLUMNS // 8, 2), dtype=object)
    for row in range(2):
        lanes = None if high is None else _unpack.as_words(high.registers.reshape(2)[row])[0]
        words = [_unpack.as_words(scale.registers.reshape(2)[row])[0] for scale in scales]
        parts = [_unpack.as_words(registers[part, row]) for part in range(len(registers))]
        for p, pair in enumerate(tile_pairs(kind, parts, lanes, words, selector, ops, parts_of_scale)):
            out[p, row] = mgpu_utils.bitcast(pair, pair_type)
    layout = mgpu.WGMMA_LAYOUT
    registers = out.reshape(layout.registers_shape((ROWS, COLUMNS)))
    return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None)


def _const(value: int) -> ir.Value:
    i32 = ir.IntegerType.get_signless(32)
    return arith.constant(i32, ir.IntegerAttr.get(i32, value))


def _scale_words_body(ctx: Any, words: Any) -> Any:
    del ctx
    layout = mgpu.WGMMA_LAYOUT.reduce((1,))
    index_type = ir.IndexType.get()
    registers = np.empty(layout.registers_shape((64,)), dtype=object)
    for position, (row,) in zip(np.ndindex(registers.shape), layout.thread_idxs((64,)), strict=True):
        row = arith.index_cast(index_type, row) if row.type != index_type else row
        width = arith.constant(index_type, ir.IntegerAttr.get(index_type, 32))
        word = memref.load(words, [arith.remui(row, width), arith.divui(row, width)])
        registers[position] = mgpu_utils.bitcast(word, ir.VectorType.get((1,), ir.IntegerType.get_signless(32)))
    return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=False)
