"""Logical words of the quantized formats, as pytrees of integer arrays.

A words tuple is what a codec produces and a layout packs; it carries no format and no byte layout. Scales and divisors
travel as unsigned integers so that subnormals, signed zeros and NaN payloads survive XLA. The words of a direct tensor
are one bare integer array (uint16 for BF16, uint32 for FP32, int32 for I32).
"""

from typing import NamedTuple

from jaxtyping import Int8, UInt8, UInt16, UInt32

from ninfer_jax._typing import AnyArray


class GroupedWords(NamedTuple):
    """Words of Q4G64_F16S, Q5G64_F16S, Q6G64_F16S or W8G32_F16S (tensor-formats §4 to §6).

    Attributes:
        codes: signed codes, one per logical weight.
        scales: binary16 words, one per logical group of the last axis; groups = ceil(k / group_size).
    """

    codes: Int8[AnyArray, "*lead k"]
    scales: UInt16[AnyArray, "*lead groups"]


class NVFP4Words(NamedTuple):
    """Words of NVFP4 (tensor-formats §3.3).

    Attributes:
        codes: E2M1 words 0..15, one per logical weight (not packed).
        scales: E4M3FN words in natural order, one per 16 columns (not swizzled).
        divisor: the binary32 word of d_w.
    """

    codes: UInt8[AnyArray, "*lead n k"]
    scales: UInt8[AnyArray, "*lead n groups"]
    divisor: UInt32[AnyArray, "*lead"]


class RowScaledWords(NamedTuple):
    """Words of FP8_E4M3FN_ROW_BF16S (tensor-formats §3.4).

    Attributes:
        codes: E4M3FN words, one per logical weight.
        scales: BF16 words of the row multipliers.
    """

    codes: UInt8[AnyArray, "*lead n k"]
    scales: UInt16[AnyArray, "*lead n"]


QuantizedWords = GroupedWords | NVFP4Words | RowScaledWords
Words = QuantizedWords | AnyArray
