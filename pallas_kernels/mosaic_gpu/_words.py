"""The few 32-bit operations the unpackers are written in, twice: as PTX and as jax.numpy.

An unpacker is a program over words of packed codes (mosaic_gpu/_unpack). On a GPU it runs on `PtxWords`, which emits
one PTX instruction an operation; where a kernel is interpreted, and in the tests, the same program runs on `JnpWords`.
A bfloat16 pair is a word: the value for the even column in its low half.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.mosaic.gpu as mgpu
import jax.numpy as jnp
from jax import lax
from jax.extend.mlir import ir
from jaxlib.mlir.dialects import llvm

from pallas_kernels.mosaic_gpu import _float_words

Word = Any
_MASK32 = 0xFFFFFFFF


def lut3(function: Callable[[int, int, int], int]) -> int:
    """The truth table `lop3` takes for a bitwise function of three words."""
    return function(0xF0, 0xCC, 0xAA) & 0xFF


class JnpWords:
    """The operations on arrays of uint32."""

    def shift(self, word: Word, left: int) -> Word:
        """word << left, or word >> -left."""
        return word << jnp.uint32(left) if left >= 0 else word >> jnp.uint32(-left)

    def lop3(self, a: Word, b: Word | int, c: Word | int, function: Callable) -> Word:
        """function(a, b, c), a bitwise one."""
        return function(a, _u32(b), _u32(c))

    def prmt(self, a: Word | int, b: Word | int, selector: Word | int) -> Word:
        """Byte i of the result is byte (selector >> 4*i) & 7 of the eight bytes a (0 to 3) and b (4 to 7)."""
        a, b = _u32(a), _u32(b)
        result = jnp.uint32(0)
        for i in range(4):
            choice = selector >> (4 * i) & 7
            shift = choice % 4 * 8
            if isinstance(selector, int):
                byte = (a if choice < 4 else b) >> shift
            else:
                byte = jnp.where(choice < 4, a >> shift, b >> shift)
            result = result | (byte & 0xFF) << (8 * i)
        return result

    def sub_bf16x2(self, a: Word, b: Word | int) -> Word:
        """a - b in each bfloat16 half."""
        return _halves(_difference, a, _u32(b))

    def mul_bf16x2(self, a: Word, b: Word | int) -> Word:
        """a * b in each bfloat16 half, subnormals kept."""
        return _halves(_product, a, _u32(b))

    def fma_bf16x2(self, a: Word, b: Word | int, c: Word | int) -> Word:
        """a * b + c in each bfloat16 half, subnormals kept."""
        return _halves(_product_sum, a, _u32(b), _u32(c))

    def float_of_half(self, word: Word) -> Word:
        """The binary16 word in the low half, as a float32 word."""
        half = lax.bitcast_convert_type((word & 0xFFFF).astype(jnp.uint16), jnp.float16)
        return lax.bitcast_convert_type(half.astype(jnp.float32), jnp.uint32)

    def sub_f32(self, a: Word, b: Word | int) -> Word:
        """a - b of float32 words."""
        a, b = (lax.bitcast_convert_type(_u32(v), jnp.float32) for v in (a, b))
        return lax.bitcast_convert_type(a - b, jnp.uint32)

    def exact_mul_f32(self, a: Word, b: Word | int) -> Word:
        """a * b of float32 words whose product is one, and no subnormal."""
        a, b = (lax.bitcast_convert_type(_u32(v), jnp.float32) for v in (a, b))
        return lax.bitcast_convert_type(a * b, jnp.uint32)

    def mul_f32(self, a: Word, b: Word) -> Word:
        """a * b of float32 words, rounded to nearest even, subnormals kept."""
        return _float_words.multiply(*jnp.broadcast_arrays(a, b))

    def div_f32(self, a: Word, b: Word) -> Word:
        """a / b of float32 words, rounded to nearest even, subnormals kept."""
        return _float_words.divide(*jnp.broadcast_arrays(a, b))

    def bf16x2_of_f32(self, word: Word) -> Word:
        """A float32 word rounded to bfloat16, in both halves."""
        value = lax.bitcast_convert_type(word, jnp.float32).astype(jnp.bfloat16)
        return lax.bitcast_convert_type(value, jnp.uint16).astype(jnp.uint32) * jnp.uint32(0x00010001)

    def bf16x2_of_f32s(self, low: Word, high: Word) -> Word:
        """Two float32 words rounded to a bfloat16 pair, subnormals kept."""
        return _float_words.to_bfloat16(low) | _float_words.to_bfloat16(high) << 16


def _u32(value: Word | int) -> jax.Array:
    return jnp.uint32(value) if isinstance(value, int) else value


def _halves(function: Callable, *words: jax.Array) -> jax.Array:
    # Differences and products are exact in float32, and rounded once. A sum of more than 24 bits, which only a scale of
    # two parts makes, is rounded twice: 2^-24 of it decides a tie.
    arrays = jnp.broadcast_arrays(*words)
    low, high = (function(*(word >> s & 0xFFFF for word in arrays)).astype(jnp.bfloat16) for s in (0, 16))
    low, high = (lax.bitcast_convert_type(half, jnp.uint16).astype(jnp.uint32) for half in (low, high))
    return low | (high << 16)


def _difference(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(a << 16, jnp.float32) - lax.bitcast_convert_type(b << 16, jnp.float32)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    # Through integers, because XLA's CPU backend flushes the float32 subnormals that small bfloat16 words are.
    exponents = [(v >> 7 & 0xFF).astype(jnp.int32) for v in (a, b)]
    significands = [(v & 0x7F).astype(jnp.int32) + 128 * (e > 0) for v, e in zip((a, b), exponents, strict=True)]
    power = jnp.maximum(exponents[0], 1) + jnp.maximum(exponents[1], 1) - 2 * (127 + 7)
    half = power // 2
    magnitude = (significands[0] * significands[1]).astype(jnp.float32) * _power_of_two(half)
    return magnitude * _power_of_two(power - half) * jnp.where((a ^ b) & 0x8000, -1.0, 1.0)


def _product_sum(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    return _product(a, b) + lax.bitcast_convert_type(c << 16, jnp.float32)


def _power_of_two(exponent: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)


class PtxWords:
    """The operations as PTX on MLIR values of type i32; to be used inside `inline_mgpu` only."""

    def __init__(self) -> None:
        self._i32 = ir.IntegerType.get_signless(32)

    def _asm(self, body: str, *operands: Word) -> Word:
        constraints = ",".join(["=r"] + ["r"] * len(operands))
        return llvm.inline_asm(self._i32, list(operands), body, constraints)

    def _operands(self, *values: Word | int) -> tuple[list[Word], list[str]]:
        """Registers and the text of each operand: a placeholder, or the constant itself."""
        registers = [v for v in values if not isinstance(v, int)]
        names = iter(range(1, len(registers) + 1))
        return registers, [f"0x{v & _MASK32:x}" if isinstance(v, int) else f"${next(names)}" for v in values]

    def shift(self, word: Word, left: int) -> Word:
        """word << left, or word >> -left."""
        if not left:
            return word
        return self._asm(f"{'shl.b32' if left > 0 else 'shr.u32'} $0, $1, {abs(left)};", word)

    def lop3(self, a: Word, b: Word | int, c: Word | int, function: Callable) -> Word:
        """function(a, b, c), a bitwise one."""
        registers, (a, b, c) = self._operands(a, b, c)
        return self._asm(f"lop3.b32 $0, {a}, {b}, {c}, {lut3(function)};", *registers)

    def prmt(self, a: Word | int, b: Word | int, selector: Word | int) -> Word:
        """Byte i of the result is byte (selector >> 4*i) & 7 of the eight bytes a (0 to 3) and b (4 to 7)."""
        registers, (a, b, selector) = self._operands(a, b, selector)
        return self._asm(f"prmt.b32 $0, {a}, {b}, {selector};", *registers)

    def _bf16x2(self, operation: str, a: Word, b: Word | int) -> Word:
        # The second operand has to be a register: these instructions take no immediate.
        registers, (a, b) = self._operands(a, b)
        return self._asm(f"{{ .reg .b32 c; mov.b32 c, {b}; {operation}.bf16x2 $0, {a}, c; }}", *registers)

    def sub_bf16x2(self, a: Word, b: Word | int) -> Word:
        """a - b in each bfloat16 half."""
        return self._bf16x2("sub", a, b)

    def mul_bf16x2(self, a: Word, b: Word | int) -> Word:
        """a * b in each bfloat16 half, subnormals kept."""
        return self._bf16x2("mul", a, b)

    def fma_bf16x2(self, a: Word | int, b: Word | int, c: Word | int) -> Word:
        """a * b + c in each bfloat16 half, subnormals kept."""
        # Through registers of the snippet's own, because the instruction takes no immediate.
        registers, (a, b, c) = self._operands(a, b, c)
        moves = f"mov.b32 a, {a}; mov.b32 b, {b}; mov.b32 c, {c};"
        return self._asm(f"{{ .reg .b32 a, b, c; {moves} fma.rn.bf16x2 $0, a, b, c; }}", *registers)

    def float_of_half(self, word: Word) -> Word:
        """The binary16 word in the low half, as a float32 word."""
        return self._asm("{ .reg .b16 half; cvt.u16.u32 half, $1; cvt.f32.f16 $0, half; }", word)

    def sub_f32(self, a: Word, b: Word | int) -> Word:
        """a - b of float32 words."""
        return self._f32("sub", a, b)

    def exact_mul_f32(self, a: Word, b: Word | int) -> Word:
        """a * b of float32 words whose product is one, and no subnormal."""
        return self._f32("mul.rn", a, b)

    def mul_f32(self, a: Word, b: Word) -> Word:
        """a * b of float32 words, rounded to nearest even, subnormals kept."""
        return self._f32("mul.rn", a, b)

    def div_f32(self, a: Word, b: Word) -> Word:
        """a / b of float32 words, rounded to nearest even, subnormals kept."""
        return self._f32("div.rn", a, b)

    def _f32(self, operation: str, a: Word, b: Word | int) -> Word:
        # A word that is a constant is moved: the instructions write constants as decimal numbers.
        registers, (a, b) = self._operands(a, b)
        return self._asm(f"{{ .reg .b32 c; mov.b32 c, {b}; {operation}.f32 $0, {a}, c; }}", *registers)

    def bf16x2_of_f32(self, word: Word) -> Word:
        """A float32 word rounded to bfloat16, in both halves."""
        return self._asm("cvt.rn.bf16x2.f32 $0, $1, $1;", word)

    def bf16x2_of_f32s(self, low: Word, high: Word) -> Word:
        """Two float32 words rounded to a bfloat16 pair, subnormals kept."""
        return self._asm("cvt.rn.bf16x2.f32 $0, $2, $1;", low, high)


class FmaPtxWords(PtxWords):
    """`PtxWords` for GPUs before compute capability 9.0, whose only bfloat16 instruction of these is fma."""

    def sub_bf16x2(self, a: Word, b: Word | int) -> Word:
        """a - b in each bfloat16 half, as b * -1 + a, rounded once."""
        return self.fma_bf16x2(b, 0xBF80BF80, a)

    def mul_bf16x2(self, a: Word, b: Word | int) -> Word:
        """a * b in each bfloat16 half, subnormals kept, as a * b + -0, which keeps the sign of a zero."""
        return self.fma_bf16x2(b, a, 0x80008000)


def ptx_words() -> PtxWords:
    """The operations in instructions that the GPU being compiled for has."""
    return PtxWords() if mgpu.utils.get_arch().major >= 9 else FmaPtxWords()


def scale_pairs(pairs: Sequence[Word], scale: Word, ops: Any) -> list[Word]:
    """RNE_bf16(code * scale) of bfloat16 pairs of exact codes, for the binary16 in the low half of `scale`.

    The scale is hi + lo in bfloat16, and fma(code, hi, code * lo) rounds once: what the product with lo loses is below
    2^-16 of the weight, and moves it only where it was that near a tie.
    """
    value = ops.float_of_half(scale)
    hi = ops.bf16x2_of_f32(value)
    lo = ops.bf16x2_of_f32(ops.sub_f32(value, ops.shift(hi, 16)))
    return [ops.fma_bf16x2(pair, hi, ops.mul_bf16x2(pair, lo)) for pair in pairs]
