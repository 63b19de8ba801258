"""Quantized tensors that no registered format holds word for word: they say why, and decode to float32.

A recipe may still store them by naming an encoder, which the report then records as lossy. Leaves out the dialects'
own rules (the dialect modules). Specification: checkpoint-sources.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ninfer_jax.errors import SourceError
from ninfer_jax.sources.dialects.words import (
    E2M1_VALUES,
    DialectTensor,
    NVFP4Tensor,
    e4m3_values,
    unpack_e2m1,
)
from ninfer_jax.sources.tensor import SourceTensor, widen_to_f32


@dataclass(frozen=True, kw_only=True)
class DecodedTensor(DialectTensor):
    """A quantized tensor without a word-exact format; `read` decodes it where the dialect's formula is known.

    Attributes:
        dialect: name of the dialect, for errors.
        reason: one clause that says why its words do not map.
        decode: rows [start, stop) to float32; None where nothing decodes it.
    """

    dialect: str
    reason: str
    decode: Callable[[int, int], np.ndarray] | None = field(default=None, repr=False)

    @property
    def decodable(self) -> bool:
        """False where `read` always raises; a recipe is refused then before anything is read."""
        return self.decode is not None

    def read(self, start: int, stop: int) -> np.ndarray:
        """Decode rows [start, stop) to float32.

        Raises:
            SourceError: the tensor cannot be decoded either.
        """
        if self.decode is None:
            raise SourceError(f"tensor {self.name!r} ({self.dialect}) cannot be decoded: {self.reason}")
        return self.decode(start, stop)


@dataclass(frozen=True, kw_only=True)
class MultiplierNVFP4Tensor(DecodedTensor):
    """ModelOpt NVFP4, `w = e2m1 * e4m3 * s2`: codes and scales are exact words, the multiplier s2 is no divisor.

    Attributes:
        multiplier: the binary32 word of s2.
        reciprocal: the same words with d_w = round_f32(1 / s2), for recipes that ask for it by name.
    """

    multiplier: int
    reciprocal: NVFP4Tensor | None

    @property
    def decodable(self) -> bool:
        """Always."""
        return True

    def read(self, start: int, stop: int) -> np.ndarray:
        """Decode rows [start, stop) to float32 with the multiplier as stored."""
        codes = unpack_e2m1(self.parts[0].read(start, stop).view(np.uint8))
        scales = np.repeat(e4m3_values(self.parts[1].read(start, stop).view(np.uint8)), 16, axis=-1)
        return E2M1_VALUES[codes] * scales * np.uint32(self.multiplier).view(np.float32)


def row_scale_decoder(codes: SourceTensor, scales: np.ndarray) -> Callable[[int, int], np.ndarray]:
    """Decoder of `w = e4m3 * scale[row]`, in float32; `scales` is float32 [n]."""
    return lambda start, stop: e4m3_values(codes.read(start, stop).view(np.uint8)) * scales[start:stop, None]


def block_scale_decoder(
    codes: SourceTensor, scales: np.ndarray, block: tuple[int, int]
) -> Callable[[int, int], np.ndarray]:
    """Decoder of `w = e4m3 * scale[row // block[0], column // block[1]]`, in float32."""

    def decode(start: int, stop: int) -> np.ndarray:
        rows = scales[np.arange(start, stop) // block[0]]
        columns = np.arange(codes.shape[1]) // block[1]
        return e4m3_values(codes.read(start, stop).view(np.uint8)) * rows[:, columns]

    return decode


def read_float_scales(tensor: SourceTensor) -> np.ndarray:
    """Read a small scale tensor whole as float32.

    Raises:
        SourceError: it is neither F32, BF16 nor F16.
    """
    if tensor.dtype not in ("F32", "BF16", "F16"):
        raise SourceError(f"scale tensor {tensor.name!r} is {tensor.dtype}; F32, BF16 or F16 is needed")
    return widen_to_f32(tensor.read(0, tensor.rows))
