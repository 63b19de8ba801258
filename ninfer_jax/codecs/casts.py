"""Direct words: identity, and the few explicit casts a recipe may name (tensor-formats §3.1).

Nothing is converted implicitly, and nothing wraps, truncates or saturates. All work is on the host, on integer words
where bits matter, so subnormals, signed zeros and NaN payloads are safe.
"""

from collections.abc import Callable

import ml_dtypes
import numpy as np
from jaxtyping import Int32, UInt16, UInt32

from ninfer_jax._typing import AnyArray
from ninfer_jax.codecs.float64_words import narrow_words
from ninfer_jax.errors import CastError, FormatError

DirectWords = UInt16[np.ndarray, "*shape"] | UInt32[np.ndarray, "*shape"] | Int32[np.ndarray, "*shape"]
_IDENTITY = {"bfloat16": np.uint16, "float32": np.uint32, "int32": np.int32}
_NARROW_FLOATS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")


def source_words(x: AnyArray) -> DirectWords:
    """`words = bits(x)`: the direct words of a source of the same type, every bit kept.

    Args:
        x: bfloat16 (gives uint16 for BF16), float32 (uint32 for FP32) or int32 (int32 for I32), any shape.

    Returns:
        A view where `x` is a NumPy array.

    Raises:
        CastError: for any other dtype, which no direct format holds without a cast.
    """
    array = np.asarray(x)
    word = _IDENTITY.get(str(array.dtype))
    if word is None:
        raise CastError(
            f"no direct format holds {array.dtype} as it is; bfloat16, float32 and int32 are stored without a cast, "
            "anything else needs a direct format and a cast"
        )
    return array.view(word)


def cast_words(x: AnyArray, target: str, *, mode: str, first_row: int = 0) -> DirectWords:
    """`words = bits(cast(x))` by an explicit rule; a source of the target's own type keeps every bit.

    | target | source | "round" | "exact" |
    |---|---|---|---|
    | BF16 | float32, float16 | RNE; a finite value that becomes infinite is refused; a NaN keeps its sign and upper payload and becomes quiet where lower bits are lost | every value must be a BF16 value |
    | FP32 | bfloat16, float16, FP8, FP4 | exact widening | the same |
    | FP32 | float64 | RNE; a finite value that becomes infinite is refused; NaNs as for BF16 | every value must be a binary32 value |
    | I32 | integers, bool | the value must lie in int32 | the same |
    | I32 | floats | refused | the value must be integral and lie in int32 |

    Args:
        x: source of any shape.
        target: "BF16", "FP32" or "I32".
        mode: "round" or "exact".
        first_row: the row of a larger tensor where `x` begins, in whose coordinates errors speak.

    Returns:
        uint16, uint32 or int32 words of the same shape.

    Raises:
        CastError: naming the first coordinate, in row-major order, whose value the rule refuses.
        FormatError: for another target or mode, or a source type that the table does not hold.
    """  # noqa: E501
    if target not in _CASTS:
        raise FormatError(f"cannot cast to {target!r}; the targets are {', '.join(_CASTS)}")
    if mode not in ("round", "exact"):
        raise FormatError(f"unknown cast mode {mode!r}; use 'round' or 'exact'")
    own_dtype, convert = _CASTS[target]
    array = np.asarray(x)
    if array.dtype == own_dtype:
        return source_words(array)
    return convert(np.atleast_1d(array), mode, first_row).reshape(array.shape)


def _to_bf16(array: np.ndarray, mode: str, first_row: int) -> UInt16[np.ndarray, "*shape"]:
    if array.dtype not in (np.float32, np.float16):
        raise _unsupported(array, "BF16", "float32 and float16")
    words = array.astype(np.float32).view(np.uint32)
    upper = (words >> 16).astype(np.uint16)
    if mode == "exact":
        _refuse((words & 0xFFFF) != 0, array, "is not a BF16 value; use the cast 'round', or store FP32", first_row)
        return upper
    nan = (words & 0x7FFFFFFF) > 0x7F800000
    quiet = upper | np.where(words & 0xFFFF, 0x40, 0).astype(np.uint16)
    rounded = ((words.astype(np.uint64) + 0x7FFF + (upper & 1)) >> 16).astype(np.uint16)
    overflow = ((rounded & 0x7FFF) == 0x7F80) & ((words & 0x7FFFFFFF) < 0x7F800000)
    _refuse(overflow, array, "rounds to a BF16 infinity; store FP32", first_row)
    return np.where(nan, quiet, rounded)


def _to_fp32(array: np.ndarray, mode: str, first_row: int) -> UInt32[np.ndarray, "*shape"]:
    if array.dtype != np.float64:
        if str(array.dtype) not in _NARROW_FLOATS:
            raise _unsupported(array, "FP32", f"{', '.join(_NARROW_FLOATS)} and float64")
        if array.dtype == ml_dtypes.bfloat16:
            return array.view(np.uint16).astype(np.uint32) << 16
        return array.astype(np.float32).view(np.uint32)
    words, inexact = narrow_words(array)
    if mode == "exact":
        _refuse(inexact, array, "is not a binary32 value; use the cast 'round'", first_row)
    infinite = (words & 0x7FFFFFFF) == 0x7F800000
    _refuse(np.isfinite(array) & infinite, array, "rounds to a binary32 infinity", first_row)
    return words


def _to_i32(array: np.ndarray, mode: str, first_row: int) -> Int32[np.ndarray, "*shape"]:
    low, high = -(2**31), 2**31 - 1
    if array.dtype == np.bool_ or np.issubdtype(array.dtype, np.integer):
        if array.dtype.itemsize >= 4:
            _refuse((array < low) | (array > high), array, f"is outside [{low}, {high}]", first_row)
        return array.astype(np.int32)
    if mode == "round" or not (str(array.dtype) in _NARROW_FLOATS or array.dtype in (np.float32, np.float64)):
        raise _unsupported(array, "I32", "integers, and floating-point values under the cast 'exact'")
    wide = array.astype(np.float64)
    integral = np.isfinite(wide) & (wide >= low) & (wide <= high) & (np.trunc(wide) == wide)
    if array.dtype.itemsize > 1:  # a thread that flushes subnormals reads them as zero; narrower types have none
        integral &= (wide != 0) | (array.view(f"u{array.dtype.itemsize}") << 1 == 0)
    _refuse(~integral, array, f"is not an integer in [{low}, {high}]", first_row)
    return wide.astype(np.int32)


def _refuse(bad: np.ndarray, array: np.ndarray, why: str, first_row: int) -> None:
    if not bad.any():
        return
    at = np.unravel_index(int(bad.argmax()), bad.shape)
    place = (at[0] + first_row, *at[1:])
    raise CastError(f"x[{', '.join(map(str, place))}] = {array[at]!s} {why} ({int(bad.sum())} such values)")


def _unsupported(array: np.ndarray, target: str, allowed: str) -> FormatError:
    return FormatError(f"no cast from {array.dtype} to {target}; it takes {allowed}")


_CASTS: dict[str, tuple[object, Callable[[np.ndarray, str, int], np.ndarray]]] = {
    "BF16": (ml_dtypes.bfloat16, _to_bf16),
    "FP32": (np.float32, _to_fp32),
    "I32": (np.int32, _to_i32),
}
