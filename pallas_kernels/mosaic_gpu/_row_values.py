"""Packed words of rows to their exact values, a thread a word: what the row gather decodes with.

    y = round(code * scale),    nvfp4: y = round(code * block scale / divisor)

rounded once to float32, and then to bfloat16 where that is asked for. A span is 32 bytes of codes of a row: eight
words, of 8 columns each or, where a code takes a byte, of 4. Eight threads share a span, so that no value moves between
threads and what they write is in order. The word program runs on `PtxWords` in a kernel and on `JnpWords` where a
kernel is interpreted; both round to nearest even and keep subnormals. Of words that a format does not allow, a NaN of
fp8 reads as 480. Leaves out where words come from (gather). Source: storage-layouts; tensor-formats §3, §5.
"""

# The type checker sees jax 0.10.2, whose inline_mgpu hides the context argument.
# pyright: reportCallIssue=false
from typing import Any, NamedTuple

import jax
import jax.experimental.mosaic.gpu as mgpu
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import vector

from pallas_kernels.mosaic_gpu._unpack import as_words
from pallas_kernels.mosaic_gpu._words import JnpWords, PtxWords, Word
from pallas_kernels.tiling import weight_kind

#: Words of codes, and so threads, of a span.
WORDS = 8
#: Blocks that four warps hold at a time.
TILE_SPANS = 16
_WARP_SPANS = 4
#: float32 words of powers of two.
_TWO_TO_8, _TWO_TO_22 = 0x43800000, 0x4A800000
#: The word of 2^23, whose lowest bit is 1: an integer in its low bits is added to it.
_INTEGER = 0x4B000000


class PackedWords(NamedTuple):
    """What is decoded together; a field a kind does not have is None.

    Attributes:
      codes: uint32 [spans, 8] in `span_layout(spans, 8)`.
      high: uint8 (q5) or uint16 (q6) [spans, 8] in the same layout: the high bits of each word's columns.
      scales: in `scales_layout(kind, spans)`, uint16 [spans] binary16 words (grouped) or uint8 [spans, 4] E4M3FN words
        (nvfp4).
      whole: uint32 scalar, the float32 word of the row's scale (fp8) or of the divisor (nvfp4).
    """

    codes: Any
    high: Any = None
    scales: Any = None
    whole: Any = None


def columns_of_word(kind: str) -> int:
    """Columns whose codes a word of the plane of codes holds."""
    return 32 // weight_kind(kind).code_plane_bits


def span_layout(spans: int, width: int, own: int = 1, vector: int = 1) -> Any:
    """Layout of [spans, width]: four spans a warp; where there are fewer, or threads, all have the same.

    Args:
      spans: 1, 2, 4, 8 or a multiple of 16.
      width: elements of a span, at most 8 times `own`.
      own: neighbors that a thread has.
      vector: neighbors in a register.
    """
    tile = min(spans, TILE_SPANS)
    warps, lanes = max(1, tile // _WARP_SPANS), width // own * min(tile, _WARP_SPANS)
    tiles = [(tile, width)] + [(_WARP_SPANS, width)] * (warps > 1) + [(own,)] + [(vector,)] * (vector < own)
    inner = len(tiles) - 2 - (warps > 1)  # dimensions of what a thread has, but for the vector
    warp_dims = [-5 - inner] * (warps > 1) + [plgpu.Replicated(4 // warps)] * (warps < 4)
    lane_dims = [-3 - inner] * (tile > 1) + [-2 - inner] + [plgpu.Replicated(32 // lanes)] * (lanes < 32)
    return plgpu.Layout.TILED(
        plgpu.Tiling(tuple(tiles)), warp_dims=tuple(warp_dims), lane_dims=tuple(lane_dims), vector_dim=-1
    )


def scales_layout(kind: str, spans: int) -> Any:
    """Layout of the scales `row_values` takes: [spans], or [spans, 4] of nvfp4; the threads of a scale all have it."""
    return span_layout(spans, 4) if kind == "nvfp4" else span_layout(spans, WORDS).reduce(1)


def values_layout(kind: str, spans: int, out_dtype: Any) -> Any:
    """Layout of the values `row_values` gives: registers of 16 bytes, or of the 8 a thread has."""
    columns = columns_of_word(kind)
    return span_layout(spans, WORDS * columns, columns, min(columns, 16 // jnp.dtype(out_dtype).itemsize))


def word_values(kind: str, packed: PackedWords, ops: Any) -> list[Word]:
    """float32 words of the columns of a word of codes, in order.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      packed: that word; its high bits and its scale in the low bits of words of their own.
      ops: the word operations, `PtxWords` in a kernel.
    """
    word, high, scale, whole = packed
    if kind == "fp8":
        values = (_e4m3(ops.shift(word, 7 - 8 * i), ops.shift(word, 8 - 8 * i), ops) for i in range(4))
        return [ops.mul_f32(value, whole) for value in values]
    if kind == "nvfp4":
        # 2^14 makes good the exponent of a code's binary16, 2^8 that of the scale's; products with them are exact.
        factor = ops.exact_mul_f32(ops.float_of_half(ops.shift(scale, 7)), _TWO_TO_22)
        return [ops.div_f32(ops.exact_mul_f32(_e2m1_half(word, i, ops), factor), whole) for i in range(8)]
    factor = ops.float_of_half(scale)
    return [ops.exact_mul_f32(value, factor) for value in _integers(kind, word, high, ops)]


def _e4m3(magnitude: Word, sign: Word, ops: Any) -> Word:
    """The float32 word of an E4M3FN code whose magnitude starts at bit 7 and whose sign is bit 15 of two words."""
    half = ops.lop3(ops.lop3(magnitude, 0x3F80, 0, _and_or), sign, 0x8000, lambda a, b, c: a | (b & c))
    return ops.exact_mul_f32(ops.float_of_half(half), _TWO_TO_8)


def _e2m1_half(word: Word, place: int, ops: Any) -> Word:
    """The float32 word of 2^-14 times the E2M1 code at a nibble of a word."""
    magnitude = ops.lop3(ops.shift(word, 9 - 4 * place), 0x0E00, 0, _and_or)
    sign = ops.shift(word, 12 - 4 * place)
    return ops.float_of_half(ops.lop3(magnitude, sign, 0x8000, lambda a, b, c: a | (b & c)))


def _integers(kind: str, word: Word, high: Word | None, ops: Any) -> list[Word]:
    """float32 words of the signed codes of a word."""
    info = weight_kind(kind)
    width, further = info.code_plane_bits, info.code_bits - info.code_plane_bits
    sign = 1 << (info.code_bits - 1)
    values = []
    for i in range(32 // width):
        # The code with its sign bit flipped is the code plus that bit's weight.
        biased = ops.lop3(ops.shift(word, -width * i), (1 << width) - 1, _INTEGER | sign, _and_xor)
        if further:
            mask = ((1 << further) - 1) << width
            biased = ops.lop3(ops.shift(high, width - further * i), mask, biased, _and_xor)
        values.append(ops.sub_f32(biased, _INTEGER | sign))
    return values


def _and_or(a: Any, b: Any, c: Any) -> Any:
    return (a & b) | c


def _and_xor(a: Any, b: Any, c: Any) -> Any:
    return (a & b) ^ c


def _result_words(kind: str, packed: PackedWords, out_dtype: Any, ops: Any) -> list[Word]:
    """The words of the result that a word of codes gives."""
    values = word_values(kind, packed, ops)
    if out_dtype == jnp.float32:
        return values
    return [ops.bf16x2_of_f32s(values[i], values[i + 1]) for i in range(0, len(values), 2)]


def row_values(kind: str, packed: PackedWords, *, out_dtype: Any, interpret: bool) -> jax.Array:
    """y[s, c] = the value of column c of span s, inside a kernel.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      packed: the packed words of the spans.
      out_dtype: bfloat16 or float32.
      interpret: whether the kernel is being interpreted.

    Returns:
      out_dtype [spans, 8 * columns_of_word(kind)] in `values_layout(kind, spans, out_dtype)`.
    """
    if interpret:
        return _row_values_jnp(kind, packed, out_dtype)
    spans = packed.codes.shape[0]
    own = span_layout(spans, WORDS)
    layouts = PackedWords(own, own, scales_layout(kind, spans), plgpu.Layout.WG_SPLAT(()))
    present = [name for name, array in zip(PackedWords._fields, packed, strict=True) if array is not None]
    shape, layout = (spans, WORDS * columns_of_word(kind)), values_layout(kind, spans, out_dtype)

    @plgpu.inline_mgpu(
        arg_types=tuple(getattr(layouts, name) for name in present),
        return_type=plgpu.ShapeDtypeStruct(shape, out_dtype, layout),
    )
    def emit(ctx: Any, *fragments: Any) -> Any:
        return _emit(kind, dict(zip(present, fragments, strict=True)), out_dtype, shape, layout.to_mgpu())

    return emit(*(getattr(packed, name) for name in present))


def _row_values_jnp(kind: str, packed: PackedWords, out_dtype: Any) -> jax.Array:
    """`row_values` on whole arrays, by the same word program."""
    codes, high, scales, whole = packed
    if high is not None:
        high = high.astype(jnp.uint32)
    if scales is not None:
        scales = scales.astype(jnp.uint32).reshape(len(codes), -1)
        scales = jnp.repeat(scales, WORDS // scales.shape[1], axis=1)
    words = _result_words(kind, PackedWords(codes, high, scales, whole), out_dtype, JnpWords())
    return lax.bitcast_convert_type(jnp.stack(words, axis=-1), out_dtype).reshape(len(codes), -1)


def _emit(kind: str, fragments: dict[str, Any], out_dtype: Any, shape: tuple[int, int], layout: Any) -> Any:
    """`row_values` on the registers of a thread: one of codes gives one or two of values."""
    element = ir.F32Type.get() if out_dtype == jnp.float32 else ir.BF16Type.get()
    register = ir.VectorType.get((layout.vector_length,), element)
    size = layout.vector_length * jnp.dtype(out_dtype).itemsize // 4
    whole = fragments.pop("whole", None)
    whole = whole.registers.item() if isinstance(whole, mgpu.FragmentedArray) else whole
    out = []
    for registers in zip(*(fragment.registers.flat for fragment in fragments.values()), strict=True):
        packed = {name: as_words(register)[0] for name, register in zip(fragments, registers, strict=True)}
        words = _result_words(kind, PackedWords(**packed, whole=whole), out_dtype, PtxWords())
        for start in range(0, len(words), size):
            parts = vector.from_elements(ir.VectorType.get((size,), words[0].type), words[start : start + size])
            out.append(vector.bitcast(register, parts))
    registers = np.array(out, dtype=object).reshape(layout.registers_shape(shape))
    return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None)
