"""Frozen descriptions of the nine persistent numeric formats, by category.

A spec names what a format's logical words mean. It knows no byte layout, no encoder arithmetic and no model role
(tensor-formats §2). Standard library only.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class DirectFormat:
    """One fixed-width logical word per element, preserved bit for bit (tensor-formats §3.1).

    Attributes:
        name: canonical name.
        word_bits: width of one logical word in bits.
        word_dtype: NumPy name of the integer type that carries the words.
        value_dtype: NumPy or ml_dtypes name of the scalar type the words mean.
    """

    category: ClassVar[str] = "direct"
    name: str
    word_bits: int
    word_dtype: str
    value_dtype: str

    @property
    def bits(self) -> int:
        """Bits of one logical word."""
        return self.word_bits

    @property
    def logical_bits_per_weight(self) -> float:
        """Bits per element, without padding or metadata."""
        return float(self.word_bits)


@dataclass(frozen=True)
class GroupedFormat:
    """Signed integer codes and one binary16 multiplier per group: `w = scale * code` (tensor-formats §3.2, §4 to §6).

    Attributes:
        name: canonical name.
        bits: width of a two's-complement code.
        group_size: logical weights in a full group along the last axis.
        qmin: smallest legal code.
        qmax: largest legal code, and the denominator of the canonical encoder.
    """

    category: ClassVar[str] = "grouped"
    scale_type: ClassVar[str] = "binary16"
    name: str
    bits: int
    group_size: int
    qmin: int
    qmax: int

    @property
    def legal_codes(self) -> range:
        """Every legal signed code, ascending."""
        return range(self.qmin, self.qmax + 1)

    @property
    def logical_bits_per_weight(self) -> float:
        """`bits + 16 / group_size`, for full groups (tensor-formats §6.3)."""
        return self.bits + 16 / self.group_size

    def groups(self, k: int) -> int:
        """Number of logical groups of a row of `k` weights: `ceil(k / group_size)`."""
        return -(-k // self.group_size)


@dataclass(frozen=True)
class BlockScaledFormat:
    """E2M1 codes, one E4M3FN scale per 16 columns, one divisor: `w = code * scale / d_w` (tensor-formats §3.3)."""

    category: ClassVar[str] = "block-scaled"
    scale_type: ClassVar[str] = "E4M3FN"
    name: str
    bits: int
    group_size: int

    @property
    def legal_codes(self) -> range:
        """Every legal unsigned code word, ascending."""
        return range(16)

    @property
    def logical_bits_per_weight(self) -> float:
        """`bits + 8 / group_size`; the one divisor of the matrix is left out."""
        return self.bits + 8 / self.group_size

    def groups(self, k: int) -> int:
        """Number of scale groups of a row of `k` weights."""
        return -(-k // self.group_size)


@dataclass(frozen=True)
class RowScaledFormat:
    """E4M3FN codes and one BF16 multiplier per row: `w = code * scale` (tensor-formats §3.4)."""

    category: ClassVar[str] = "row-scaled"
    scale_type: ClassVar[str] = "BF16"
    name: str
    bits: int

    @property
    def legal_codes(self) -> tuple[int, ...]:
        """Every legal code word, ascending: all bytes but the two NaN words 0x7f and 0xff."""
        return tuple(word for word in range(256) if word & 0x7F != 0x7F)

    @property
    def logical_bits_per_weight(self) -> float:
        """Bits of a code; the one scale of a row is left out."""
        return float(self.bits)


QuantizedFormat = GroupedFormat | BlockScaledFormat | RowScaledFormat
Format = DirectFormat | QuantizedFormat
