"""Words at the boundary: shapes and integer types checked, floating-point scalar types taken by their bits.

`ml_dtypes` scalars (float8_e4m3fn, float4_e2m1fn, bfloat16) and float16 or float32 arrays mean the same words as their
unsigned integers; here they become the integers, and NaN payloads survive. This module leaves out whether the words are
legal (see `violations`).
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ninfer_jax._typing import AnyArray
from ninfer_jax.errors import FormatError
from ninfer_jax.formats import BlockScaledFormat, DirectFormat, Format, GroupedFormat, RowScaledFormat
from ninfer_jax.words import GroupedWords, NVFP4Words, RowScaledWords, Words

_WordsT = TypeVar("_WordsT", GroupedWords, NVFP4Words, RowScaledWords)
_SAME_BITS = {"bfloat16": "uint16", "float16": "uint16", "float32": "uint32", "float8_e4m3fn": "uint8"}


def as_words(words: Words, format: Format) -> Words:
    """Return words with the integer types of `format`, after checking their types and shapes.

    Args:
        words: a words tuple, or one array for a direct format; fields may be NumPy or JAX arrays.
        format: the spec.

    Raises:
        FormatError: for another words type, a wrong dtype, or shapes that do not belong together.
    """
    if isinstance(format, DirectFormat):
        if isinstance(words, tuple):
            raise FormatError(f"{format.name} words are one {format.word_dtype} array, not {type(words).__name__}")
        return integer_words(words, format.word_dtype, format.name)
    if isinstance(format, GroupedFormat):
        return _grouped(_typed(words, GroupedWords, format), format)
    if isinstance(format, BlockScaledFormat):
        return _nvfp4(_typed(words, NVFP4Words, format), format)
    return _row_scaled(_typed(words, RowScaledWords, format), format)


def integer_words(array: AnyArray | np.generic, dtype: str, what: str) -> AnyArray:
    """Reinterpret a scalar type as the unsigned integer of its width; integers of the right type pass through."""
    if not isinstance(array, jax.Array | np.ndarray | np.generic):
        raise FormatError(f"{what} must be a NumPy or JAX array of {dtype} words, not {type(array).__name__}")
    if isinstance(array, np.generic):
        array = np.asarray(array)
    if array.dtype == dtype:
        return array
    if array.dtype == "float4_e2m1fn" and dtype == "uint8":
        if isinstance(array, np.ndarray):
            return array.view(np.uint8) & np.uint8(0xF)  # one byte an element in host memory
        return lax.bitcast_convert_type(array, jnp.uint4).astype(jnp.uint8)
    if _SAME_BITS.get(str(array.dtype)) != dtype:
        raise FormatError(f"{what} must hold {dtype} words (or a scalar type of those bits), not {array.dtype}")
    if isinstance(array, jax.Array):
        return lax.bitcast_convert_type(array, np.dtype(dtype))
    return array.view(dtype)


def _typed(words: Words, kind: type[_WordsT], format: Format) -> _WordsT:
    if not isinstance(words, kind):
        raise FormatError(
            f"{format.name} takes {kind.__name__}, not {type(words).__name__}; ninfer_jax.ops.dequantize takes a packed"
            " weight, and ninfer_jax.unpack gives the words of planes"
        )
    return words


def _grouped(words: GroupedWords, format: GroupedFormat) -> GroupedWords:
    codes = integer_words(words.codes, "int8", f"{format.name} codes")
    scales = integer_words(words.scales, "uint16", f"{format.name} scales")
    _require_rank(codes, 1, format)
    _require_shape(scales, (*codes.shape[:-1], format.groups(codes.shape[-1])), codes, format, "scales")
    return GroupedWords(codes, scales)


def _nvfp4(words: NVFP4Words, format: BlockScaledFormat) -> NVFP4Words:
    codes = integer_words(words.codes, "uint8", f"{format.name} codes")
    scales = integer_words(words.scales, "uint8", f"{format.name} scales")
    divisor = integer_words(words.divisor, "uint32", f"{format.name} divisor")
    _require_rank(codes, 2, format)
    _require_shape(scales, (*codes.shape[:-1], format.groups(codes.shape[-1])), codes, format, "scales")
    _require_shape(divisor, codes.shape[:-2], codes, format, "divisor")
    return NVFP4Words(codes, scales, divisor)


def _row_scaled(words: RowScaledWords, format: RowScaledFormat) -> RowScaledWords:
    codes = integer_words(words.codes, "uint8", f"{format.name} codes")
    scales = integer_words(words.scales, "uint16", f"{format.name} scales")
    _require_rank(codes, 2, format)
    _require_shape(scales, codes.shape[:-1], codes, format, "scales")
    return RowScaledWords(codes, scales)


def _require_rank(codes: AnyArray, rank: int, format: Format) -> None:
    if codes.ndim < rank or codes.shape[-1] == 0:
        raise FormatError(
            f"{format.name} codes of shape {list(codes.shape)}: give at least {rank} axes and a last axis of K >= 1"
        )


def _require_shape(array: AnyArray, shape: tuple[int, ...], codes: AnyArray, format: Format, field: str) -> None:
    if array.shape != shape:
        raise FormatError(
            f"{format.name} {field} of shape {list(array.shape)} do not belong to codes of shape {list(codes.shape)}, "
            f"which need {list(shape)}"
        )
