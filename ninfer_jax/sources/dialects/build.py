"""Assemble one quantized tensor from its stored parts, with every check that needs only headers and scales.

Both producers of FP8 and NVFP4 checkpoints share these parts; what differs between them (names, multiplier or divisor)
stays in their own modules. Specification: checkpoint-sources.
"""

import math

import numpy as np

from ninfer_jax.errors import SourceError
from ninfer_jax.sources.dialects.decoded import (
    DecodedTensor,
    MultiplierNVFP4Tensor,
    block_scale_decoder,
    read_float_scales,
    row_scale_decoder,
)
from ninfer_jax.sources.dialects.words import DialectTensor, NVFP4Tensor, RowScaledTensor
from ninfer_jax.sources.tensor import SourceTensor


def describe(tensor: SourceTensor) -> str:
    """`'name' DTYPE [shape]`, for errors."""
    return f"{tensor.name!r} {tensor.dtype} {list(tensor.shape)}"


def one_f32_word(tensor: SourceTensor, dialect: str) -> int:
    """The binary32 word of a one-element F32 tensor that must be finite and positive.

    Raises:
        SourceError: another dtype, more elements, or a value that is not finite and positive.
    """
    if tensor.dtype != "F32" or math.prod(tensor.shape) != 1:
        raise SourceError(f"{dialect}: {describe(tensor)} must be one F32 value")
    word = int(tensor.read(0, 1).reshape(-1).view(np.uint32)[0])
    if not 0 < word < 0x7F800000:
        raise SourceError(f"{dialect}: {tensor.name!r} holds word {word:#010x}; a finite positive value is needed")
    return word


def nvfp4_parts(name: str, packed: SourceTensor, scale: SourceTensor, dialect: str) -> tuple[int, int]:
    """Check codes [n, k/2] against block scales [n, k/16] and return (n, k).

    A swizzled or padded scale plane has another shape, and is refused here.
    """
    if packed.dtype != "U8" or len(packed.shape) != 2:
        raise SourceError(f"{dialect}: tensor {name!r} needs rank-2 U8 codes, but its codes are {describe(packed)}")
    rows, k = packed.shape[0], 2 * packed.shape[1]
    if scale.dtype != "F8_E4M3" or scale.shape != (rows, k // 16) or k % 16:
        raise SourceError(
            f"{dialect}: tensor {name!r} of shape [{rows}, {k}] needs row-major F8_E4M3 block scales "
            f"[{rows}, {k // 16}], but has {describe(scale)}"
        )
    return rows, k


def divisor_nvfp4(
    name: str, packed: SourceTensor, scale: SourceTensor, divisor: SourceTensor, dialect: str
) -> NVFP4Tensor:
    """NVFP4 with a stored divisor: word-exact."""
    shape = nvfp4_parts(name, packed, scale, dialect)
    return NVFP4Tensor(name, shape, (packed, scale, divisor), divisor=one_f32_word(divisor, dialect))


def multiplier_nvfp4(
    name: str, packed: SourceTensor, scale: SourceTensor, multiplier: SourceTensor, dialect: str
) -> MultiplierNVFP4Tensor:
    """NVFP4 with a stored multiplier s2: exact words but for the divisor, which only a recipe may make from it."""
    shape, parts = nvfp4_parts(name, packed, scale, dialect), (packed, scale, multiplier)
    word = one_f32_word(multiplier, dialect)
    with np.errstate(over="ignore"):
        reciprocal = np.float32(1) / np.uint32(word).view(np.float32)
    note = f"{name}: divisor = round_f32(1 / s2), s2 = {word:#010x} from {multiplier.name}"
    with_divisor = None
    if np.isfinite(reciprocal) and reciprocal > 0:
        with_divisor = NVFP4Tensor(name, shape, parts, (note,), divisor=int(reciprocal.view(np.uint32)))
    return MultiplierNVFP4Tensor(
        name,
        shape,
        parts,
        dialect=dialect,
        reason=f"{multiplier.name!r} is a multiplier and NVFP4 stores a divisor, which seldom gives the same values; "
        'name divisor = "reciprocal" in the recipe to store round_f32(1 / multiplier), or an encoder',
        multiplier=word,
        reciprocal=with_divisor,
    )


def fp8_tensor(name: str, codes: SourceTensor, scale: SourceTensor, dialect: str) -> DialectTensor:
    """FP8 codes with one scale a tensor or a row: word-exact iff every scale is a BF16 value."""
    if codes.dtype != "F8_E4M3" or len(codes.shape) != 2:
        raise SourceError(f"{dialect}: tensor {name!r} needs rank-2 F8_E4M3 codes, but has {describe(codes)}")
    rows = codes.shape[0]
    per_row = scale.shape in ((rows,), (rows, 1))
    if not per_row and math.prod(scale.shape) != 1:
        raise SourceError(
            f"{dialect}: tensor {name!r} of shape {list(codes.shape)} needs a scale of shape [{rows}, 1], [{rows}] or "
            f"[1], but has {describe(scale)}"
        )
    values = read_float_scales(scale).reshape(-1)
    values = values if per_row else np.repeat(values, rows)
    shape, parts = (rows, codes.shape[1]), (codes, scale)
    words = values.view(np.uint32)
    bad = (words & 0xFFFF != 0) | (words >= 0x7F800000)
    if bad.any():
        row = int(np.argmax(bad))
        why = "is no BF16 value" if words[row] < 0x7F800000 else "is not finite and >= +0"
        reason = f"scale {values[row]} of row {row} in {scale.name!r} {why}; FP8_E4M3FN_ROW_BF16S stores BF16 scales"
        decode = row_scale_decoder(codes, values)
        return DecodedTensor(name, shape, parts, dialect=dialect, reason=reason, decode=decode)
    return RowScaledTensor(name, shape, parts, scales=(words >> 16).astype(np.uint16))


def block_fp8_tensor(
    name: str, codes: SourceTensor, scale: SourceTensor, block: tuple[int, int], dialect: str
) -> DialectTensor:
    """FP8 codes with one multiplier a block [rows, columns]: never word-exact, decoded to float32."""
    if codes.dtype != "F8_E4M3" or len(codes.shape) != 2:
        raise SourceError(f"{dialect}: tensor {name!r} needs rank-2 F8_E4M3 codes, but has {describe(codes)}")
    blocks = (-(-codes.shape[0] // block[0]), -(-codes.shape[1] // block[1]))
    if scale.shape != blocks:
        raise SourceError(
            f"{dialect}: tensor {name!r} of shape {list(codes.shape)} in blocks {list(block)} needs scales "
            f"{list(blocks)}, but has {describe(scale)}"
        )
    reason = f"{scale.name!r} holds several scales per row (blocks {list(block)}), FP8_E4M3FN_ROW_BF16S holds one"
    decode = block_scale_decoder(codes, read_float_scales(scale), block)
    shape = (codes.shape[0], codes.shape[1])
    return DecodedTensor(name, shape, (codes, scale), dialect=dialect, reason=reason, decode=decode)
