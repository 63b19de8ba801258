# A type checker without triton takes this package for it.
# pyright: reportAttributeAccessIssue=false
"""Packed words to values, inside Triton kernels: each function takes and gives a block, and writes nothing.

Exact: codes of the grouped kinds are integers, an E2M1 code times an E4M3FN scale has at most six significant bits, and
an E4M3FN code has four, so all of them are whole in bfloat16. Leaves out loading words (the kernels). Importing this
module needs triton. Source: storage-layouts; tensor-formats §3, §4, §5.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit
def e4m3(words):
    """float32 values of E4M3FN words: the exponent and mantissa moved to float32's, then the bias made good."""
    words = words.to(tl.int32)
    bits = ((words & 0x7F) << 20) | ((words & 0x80) << 24)
    value = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120
    return tl.where((words & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def e2m1(codes):
    """float32 values of E2M1 codes 0..15, the same way."""
    bits = ((codes & 7) << 22) | ((codes & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126


@triton.jit
def half(words):
    """float32 values of binary16 words."""
    return words.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def brain(words):
    """float32 values of bfloat16 words."""
    return (words.to(tl.uint32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def signed(codes, BITS: tl.constexpr):
    """Signed integers of codes of so many bits in two's complement."""
    return (codes ^ (1 << (BITS - 1))) - (1 << (BITS - 1))


@triton.jit
def nvfp4_scale_offset(rows, groups, K: tl.constexpr):
    """Byte of the scale of a row and group in the plane of 128 by 4 tiles."""
    tile = rows // 128 * (K // 64) + groups // 4
    return tile * 512 + rows % 32 * 16 + rows % 128 // 32 * 4 + groups % 4
