"""Packed codes to bfloat16 where a thread holds a whole row of W: the unpackers of the Blackwell kernels.

Tensor memory has 128 lanes and a warpgroup 128 threads, one a lane, so a thread unpacks the codes of one row, in the
order they are stored, and needs no other thread's. Columns keep their order, so x is read as it lies:

    a[r, c] = bfloat16(code[r, c] * scale[r, c // group])

A code alone is exact, an E2M1 code times its E4M3FN scale is too; a product with a binary16 scale is rounded once but
for 2^-17 of it. The word programs run on `PtxWords` in a kernel, and on arrays in the tests; `rows_twin` states the
equation column by column and runs where a kernel is interpreted, which inlined code cannot. Leaves out where words come
from (_row_tiles) and what multiplies finished sums. Source: storage-layouts; tensor-formats §3.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.experimental.mosaic.gpu as mgpu
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith, vector

from pallas_kernels.mosaic_gpu._unpack import _fp8, _w8
from pallas_kernels.mosaic_gpu._words import PtxWords, Word, scale_pairs
from pallas_kernels.tiling import weight_kind

#: Rows of a tile: the lanes of tensor memory.
LANES = 128
#: Columns `unpack_rows` unpacks at a time.
COLUMNS = 64
_SIGN_BITS = {"q4": 3, "q5": 4, "q6": 5}


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


def integer_pairs(kind: str, words: Sequence[Word], high: Sequence[Word], ops: Any) -> list[Word]:
    """bfloat16 pairs of the codes of q4, q5 or q6, in order: columns 2i and 2i + 1 for i = 0..31.

    Args:
      kind: "q4", "q5" or "q6".
      words: eight words of the base plane, eight nibbles each.
      high: the words of the high plane for the same 64 columns: none, 2 or 4.
      ops: the word operations, `PtxWords` in a kernel.
    """
    # A bfloat16 between 128 and 255 is 0x4300 plus an integer: OR-ing the code with its sign bit flipped converts it,
    # and 128 + 2^sign_bit comes off again exactly.
    sign_bit = _SIGN_BITS[kind]
    bits = sign_bit - 3
    bias = (0x4300 + (1 << sign_bit)) * 0x00010001
    further = ((1 << (sign_bit + 1)) - 1 & ~0xF) * 0x00010001
    and_xor = lambda a, b, c: (a & b) ^ c
    spread: dict[int, Word] = {}
    pairs = []
    for i in range(COLUMNS // 2):
        word, j = words[i // 4], i % 4
        if not j:
            odd_nibbles = ops.shift(word, -4)
        pair = ops.lop3(ops.prmt(word, odd_nibbles, (4 + j) << 8 | j), 0x000F000F, bias, and_xor)
        if bits:
            # One byte of the high plane serves 8 / bits columns; it goes, moved by a column, to the upper half too.
            byte, place = divmod(2 * i * bits, 8)
            if byte not in spread:
                source = high[byte // 4]
                spread[byte] = ops.prmt(source, ops.shift(source, -bits), (4 + byte % 4) << 8 | byte % 4)
            pair = ops.lop3(ops.shift(spread[byte], 4 - place), further, pair, and_xor)
        pairs.append(ops.sub_bf16x2(pair, bias))
    return pairs


def _code_pairs(kind: str, words: Sequence[Word], high: Sequence[Word], ops: Any) -> list[Word]:
    """Exact bfloat16 pairs of 64 codes, in order."""
    if kind in _SIGN_BITS:
        return integer_pairs(kind, words, high, ops)
    if kind == "nvfp4":
        return [pair for word in words for pair in e2m1_pairs(ops, word)]
    # Those programs pair bytes j and j + 2; with the middle bytes swapped these are neighbors.
    program = _w8 if kind == "w8" else _fp8
    return program([ops.prmt(word, 0, 0x3120) for word in words], None, None, ops)


def scaled_pairs(
    kind: str, words: Sequence[Word], high: Sequence[Word], scales: Sequence[Word], ops: Any
) -> list[Word]:
    """bfloat16 pairs of 64 codes times their scales, in order.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      words: the words of the plane of codes: 8, or 16 where a code takes a byte.
      high: the words of the high plane.
      scales: nothing for codes alone; one word a group, binary16 in its low half; for nvfp4 one word, a byte a block.
      ops: the word operations, `PtxWords` in a kernel.
    """
    pairs = _code_pairs(kind, words, high, ops)
    if not scales:
        return pairs
    if kind == "nvfp4":
        # An E4M3FN byte four bits up is its value times 2^-120, possibly subnormal.
        values = [ops.shift(ops.prmt(scales[0], 0, 0x4040 + 0x0101 * b), 4) for b in range(4)]
        values = [ops.mul_bf16x2(value, 0x7B807B80) for value in values]
        return [ops.mul_bf16x2(pair, values[i // 8]) for i, pair in enumerate(pairs)]
    each = len(pairs) // len(scales)
    parts = [pairs[g * each : (g + 1) * each] for g in range(len(scales))]
    return [pair for part, scale in zip(parts, scales, strict=True) for pair in scale_pairs(part, scale, ops)]


def code_words(kind: str) -> int:
    """Words of the plane of codes that 64 columns of a row take."""
    return 2 * weight_kind(kind).code_plane_bits


def high_words(kind: str) -> int:
    """Words of the high plane that 64 columns of a row take."""
    return weight_kind(kind).high_bytes // 4


def words_layout(words: int) -> Any:
    """Layout of [128, i * words]: a thread has a row, in vectors of that many elements."""
    return plgpu.Layout.TCGEN05_TMEM_NATIVE(words)


def block_scales_layout() -> Any:
    """Layout of a stored block scale tile, uint32 [32, 4]: the thread of lane 32 a + i has word [i, a]."""
    return plgpu.Layout.TILED(plgpu.Tiling(((32, 4), (32, 1))), warp_dims=(-3,), lane_dims=(-2,), vector_dim=-1)


def operand_layout() -> Any:
    """Layout of the bfloat16 [128, 64] result: what a packed store to tensor memory takes."""
    return plgpu.Layout.TCGEN05_TMEM_NATIVE(2)


def unpack_rows(
    kind: str, codes: jax.Array, high: jax.Array | None, scales: Sequence[jax.Array], *, interpret: bool
) -> jax.Array:
    """a[r, c] = code[r, c], times its scale where scales are given, for 128 rows and 64 u columns, inside a kernel.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      codes: uint32 [128, u * code_words(kind)] in `words_layout(4)`.
      high: uint32 [128, u * high_words(kind)] in `words_layout(high_words(kind))` (q5, q6), or None.
      scales: nothing; or uint16 [128, groups] in `words_layout(groups)`; or for nvfp4 u arrays uint32 [32, 4] in
        `block_scales_layout`.
      interpret: whether the kernel is being interpreted.

    Returns:
      bfloat16 [128, 64 u] in `operand_layout`.
    """
    units = codes.shape[1] // code_words(kind)
    if interpret:
        return rows_twin(kind, codes, high, scales)
    layouts = [words_layout(4)]
    if high is not None:
        layouts.append(words_layout(high_words(kind)))
    layouts += [block_scales_layout() if kind == "nvfp4" else words_layout(s.shape[1]) for s in scales]

    @plgpu.inline_mgpu(
        arg_types=tuple(layouts),
        return_type=plgpu.ShapeDtypeStruct((LANES, units * COLUMNS), jnp.bfloat16, operand_layout()),
    )
    def emit(ctx: Any, *fragments: Any) -> Any:
        words = [[w for register in f.registers.flat for w in _as_words(register)] for f in fragments]
        further = words[1] if high is not None else []
        scale_words = [w for fragment in words[len(words) - len(scales) :] for w in fragment]
        pairs = _units(kind, units, words[0], further, scale_words, PtxWords())
        layout, pair_type = operand_layout().to_mgpu(), ir.VectorType.get((2,), ir.BF16Type.get())
        registers = np.empty(len(pairs), dtype=object)
        for i, pair in enumerate(pairs):
            registers[i] = mgpu.utils.bitcast(pair, pair_type)
        registers = registers.reshape(layout.registers_shape((LANES, units * COLUMNS)))
        return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None)

    return emit(codes, *([] if high is None else [high]), *scales)


def _units(
    kind: str, units: int, words: Sequence[Word], high: Sequence[Word], scales: Sequence[Word], ops: Any
) -> list[Word]:
    """`scaled_pairs` of 64 columns after 64 columns."""
    part = lambda array, unit: array[unit * len(array) // units : (unit + 1) * len(array) // units]
    return [
        pair
        for unit in range(units)
        for pair in scaled_pairs(kind, part(words, unit), part(high, unit), part(scales, unit), ops)
    ]


def _as_words(register: ir.Value) -> list[ir.Value]:
    """A word an element of a vector register, zero extended."""
    i32 = ir.IntegerType.get_signless(32)
    elements = [vector.extract(register, [], [i]) for i in range(ir.VectorType(register.type).shape[0])]
    return [e if e.type == i32 else arith.extui(i32, e) for e in elements]


def rows_twin(kind: str, codes: jax.Array, high: jax.Array | None, scales: Sequence[jax.Array]) -> jax.Array:
    """`unpack_rows` in plain jnp."""
    width = weight_kind(kind).code_plane_bits
    bits = _fields(codes, width)
    if kind == "w8":
        values = lax.bitcast_convert_type(bits.astype(jnp.uint8), jnp.int8).astype(jnp.float32)
    elif kind == "fp8":
        values = lax.bitcast_convert_type(bits.astype(jnp.uint8), jnp.float8_e4m3fn).astype(jnp.float32)
    elif kind == "nvfp4":
        values = e2m1_twin(bits).astype(jnp.float32)
    else:
        if high is not None:
            bits = bits | _fields(high, _SIGN_BITS[kind] - 3) << 4
        sign = 1 << _SIGN_BITS[kind]
        values = ((bits ^ sign) - sign).astype(jnp.float32)
    if scales:
        if kind == "nvfp4":
            words = jnp.stack([word.T.reshape(LANES) for word in scales], axis=1)
            factors = lax.bitcast_convert_type(_fields(words, 8).astype(jnp.uint8), jnp.float8_e4m3fn)
        else:
            factors = lax.bitcast_convert_type(scales[0], jnp.float16)
        factors = factors.astype(jnp.float32)
        values = values * jnp.repeat(factors, values.shape[1] // factors.shape[1], axis=1)
    return values.astype(jnp.bfloat16)


def _fields(words: jax.Array, bits: int) -> jax.Array:
    """int32 [rows, columns]: the fields of that many bits of uint32 [rows, words], lowest first."""
    places = jnp.arange(0, 32, bits, dtype=jnp.uint32)
    fields = words[:, :, None] >> places & jnp.uint32((1 << bits) - 1)
    return fields.reshape(words.shape[0], -1).astype(jnp.int32)


def e2m1_twin(codes: jax.Array) -> jax.Array:
    """`unpack_e2m1` in plain jnp."""
    code = codes.astype(jnp.int32)
    exponent, fraction = (code >> 1) & 3, code & 1
    magnitude = jnp.where(exponent == 0, fraction, (2 + fraction) << (jnp.maximum(exponent, 1) - 1))
    value = magnitude.astype(jnp.float32) * 0.5
    return jnp.where(code & 8, -value, value).astype(jnp.bfloat16)
