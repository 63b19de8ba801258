"""Rounding binary64 to binary32 on the host, on integer words: the same in a thread that flushes subnormals.

A library built with unsafe floating-point options, or another framework, may have set that mode for the whole thread;
NumPy's own conversion then loses the subnormals of the result (tensor-formats §3.1, §7.1).
"""

import numpy as np
from jaxtyping import Bool, Float64, UInt32

_DROPPED = 29  # fraction bits that binary64 has and binary32 has not
_FIRST_NORMAL = 897  # binary64 exponent field of 2^-126, the smallest normal binary32 number
_INFINITY = 0x7FF << 52


def narrow_words(
    x: Float64[np.ndarray, "*shape"],
) -> tuple[UInt32[np.ndarray, "*shape"], Bool[np.ndarray, "*shape"]]:
    """`RNE_binary32(x)` as words, and where it differs from `x`.

    A NaN keeps its sign and upper payload and becomes quiet where lower bits are lost.

    Args:
        x: any values; what is too large becomes infinite.

    Returns:
        uint32 words and a mask, both of the shape of `x`.
    """
    words = x.view(np.uint64)
    magnitude = words & np.uint64(2**63 - 1)
    field = (magnitude >> 52).astype(np.int64)
    significand = (magnitude & np.uint64(2**52 - 1)) | ((field > 0).astype(np.uint64) << 52)
    drop = (_DROPPED + np.clip(_FIRST_NORMAL - field, 0, 25)).astype(np.uint64)
    half = (np.uint64(1) << (drop - 1)) - 1
    rounded = (significand + half + ((significand >> drop) & 1)) >> drop
    # The implicit bit of a normal significand adds one to the exponent field, as does a carry out of the fraction.
    finite = np.minimum(rounded + (np.maximum(field - _FIRST_NORMAL, 0).astype(np.uint64) << 23), 0x7F800000)
    lost = magnitude & np.uint64(2**_DROPPED - 1) != 0
    special = 0x7F800000 | ((magnitude >> _DROPPED) & 0x7FFFFF) | np.where(lost, np.uint64(0x400000), np.uint64(0))
    is_special = magnitude >= _INFINITY
    narrow = np.where(is_special, special, finite) | ((words >> 63) << 31)
    overflowed = (finite == 0x7F800000) & ~is_special
    inexact = np.where(is_special, lost, (rounded << drop != significand) | overflowed)
    return narrow.astype(np.uint32), inexact
