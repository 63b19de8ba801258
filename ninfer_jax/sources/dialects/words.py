"""Quantized words of other checkpoints, seen as logical tensors: bit for bit where a registered format allows it.

`read_words` hands out codes, scales and divisor as they are stored; `read` decodes to float32 by the dialect's own
formula. Words outside the valid language of the format are refused when they are read, because only a full scan finds
them. Leaves out which checkpoint tensors belong together (the dialect modules). Specification: tensor-formats §3.3 and
§3.4, checkpoint-sources.
"""

from dataclasses import dataclass
from typing import ClassVar

import ml_dtypes
import numpy as np
from jaxtyping import Float32, UInt8, UInt16

from ninfer_jax.errors import InvalidWordsError
from ninfer_jax.sources.tensor import SourceRef, SourceTensor, row_count, widen_to_f32
from ninfer_jax.words import GroupedWords, NVFP4Words, RowScaledWords

E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""Value of each E2M1 word (tensor-formats §3.3)."""


def unpack_e2m1(packed: UInt8[np.ndarray, "rows half_k"]) -> UInt8[np.ndarray, "rows k"]:
    """Split bytes [rows, k/2] into E2M1 words [rows, k]; the low nibble is the even column."""
    words = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]), np.uint8)
    words[..., 0::2] = packed & 0xF
    words[..., 1::2] = packed >> 4
    return words


def e4m3_values(words: UInt8[np.ndarray, "*shape"]) -> Float32[np.ndarray, "*shape"]:
    """Decode E4M3FN words to float32, exactly."""
    return words.view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def _refuse_first(tensor: str, bad: np.ndarray, words: np.ndarray, start: int, rule: str) -> None:
    if bad.any():
        row, *rest = (int(index) for index in np.argwhere(bad)[0])
        where = [start + row, *rest]
        raise InvalidWordsError(f"tensor {tensor!r} has word {int(words[(row, *rest)]):#04x} at {where}: {rule}")


@dataclass(frozen=True)
class DialectTensor:
    """What all quantized tensors share; a `SourceTensor` whose `read` decodes.

    Attributes:
        parts: stored tensors behind it, the codes first.
        notes: facts for the report.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[SourceTensor, ...]
    notes: tuple[str, ...] = ()

    @property
    def dtype(self) -> str:
        """Type of decoded values."""
        return "F32"

    @property
    def file(self) -> str:
        """Name of the file that holds the codes."""
        return self.parts[0].file

    @property
    def rows(self) -> int:
        """Extent of axis 0."""
        return row_count(self.shape)

    @property
    def sources(self) -> tuple[SourceRef, ...]:
        """Every stored tensor behind it."""
        return tuple(ref for part in self.parts for ref in part.sources)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Decode rows [start, stop) to float32."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NVFP4Tensor(DialectTensor):
    """NVFP4 words: `w = e2m1 * e4m3 / d_w`. Parts: packed codes [n, k/2] and block scales [n, k/16], row major.

    Attributes:
        divisor: the binary32 word of d_w.
    """

    divisor: int
    format: ClassVar[str] = "NVFP4"

    def read_words(self, start: int, stop: int) -> NVFP4Words:
        """Codes and scales of rows [start, stop), and the divisor of the whole matrix."""
        codes = unpack_e2m1(self.parts[0].read(start, stop).view(np.uint8))
        scales = self.parts[1].read(start, stop).view(np.uint8)
        rule = "an NVFP4 block scale is a finite E4M3FN value with sign 0 (words 0x00 to 0x7e)"
        _refuse_first(self.parts[1].name, scales > 0x7E, scales, start, rule)
        return NVFP4Words(codes, scales, np.array(self.divisor, np.uint32))

    def read(self, start: int, stop: int) -> np.ndarray:
        """Decode rows [start, stop) to float32."""
        words = self.read_words(start, stop)
        scales = np.repeat(e4m3_values(np.asarray(words.scales)), 16, axis=-1)
        with np.errstate(over="ignore", under="ignore"):  # a tiny divisor gives infinities, which are what it means
            return E2M1_VALUES[words.codes] * scales / np.uint32(self.divisor).view(np.float32)


@dataclass(frozen=True, kw_only=True)
class RowScaledTensor(DialectTensor):
    """FP8_E4M3FN_ROW_BF16S words: `w = e4m3 * scale[row]`. Parts: codes [n, k] and the scales.

    Attributes:
        scales: BF16 words of all row multipliers, uint16 [n].
    """

    scales: UInt16[np.ndarray, " rows"]
    format: ClassVar[str] = "FP8_E4M3FN_ROW_BF16S"

    def read_words(self, start: int, stop: int) -> RowScaledWords:
        """Codes and row scales of rows [start, stop)."""
        codes = self.parts[0].read(start, stop).view(np.uint8)
        scales = self.scales[start:stop]
        magnitude = codes & 0x7F
        _refuse_first(self.parts[0].name, magnitude == 0x7F, codes, start, "E4M3FN NaN is not a weight code")
        rule = "its row has scale zero, where every code must be a signed zero"
        _refuse_first(self.parts[0].name, (magnitude != 0) & (scales == 0)[:, None], codes, start, rule)
        return RowScaledWords(codes, scales)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Decode rows [start, stop) to float32."""
        words = self.read_words(start, stop)
        return (
            e4m3_values(np.asarray(words.codes))
            * widen_to_f32(self.scales[start:stop].view(ml_dtypes.bfloat16))[:, None]
        )


@dataclass(frozen=True)
class BlockQ8Tensor(DialectTensor):
    """W8G32_F16S words held as blocks of one binary16 multiplier and 32 int8 codes; one part, bytes [n, k/32*34]."""

    format: ClassVar[str] = "W8G32_F16S"

    def read_words(self, start: int, stop: int) -> GroupedWords:
        """Codes and group scales of rows [start, stop)."""
        blocks = self.parts[0].read(start, stop).view(np.uint8).reshape(stop - start, -1, 34)
        scales = np.ascontiguousarray(blocks[..., :2]).view("<u2")[..., 0]
        codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
        _refuse_first(self.name, scales >= 0x7C00, scales, start, "a W8 group scale is binary16, finite and >= +0")
        _refuse_first(self.name, codes == -128, codes, start, "W8 codes are -127 to 127; name an encoder to requantize")
        rule = "its group has scale zero, where every code must be zero"
        _refuse_first(self.name, (codes != 0) & (scales == 0)[..., None], codes, start, rule)
        return GroupedWords(codes.reshape(stop - start, -1), scales)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Decode rows [start, stop) to float32; here -128 and negative scales decode as what they mean."""
        blocks = self.parts[0].read(start, stop).view(np.uint8).reshape(stop - start, -1, 34)
        scales = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float32)
        codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).astype(np.float32)
        return (codes * scales).reshape(stop - start, -1)
