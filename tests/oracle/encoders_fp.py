"""The encoder profiles FP8_ROW_MAXABS_BF16_V1 and NVFP4_MAXABS_V1, step by step in integer arithmetic.

The modules of both encoders in `ninfer_jax.codecs` define the profiles; this follows their text, not their code.
"""

import numpy as np

from tests.oracle.exact import BF16, E2M1, E4M3FN, F32, divide_word, round_word, split

NVFP4_GROUP = 16
_LARGEST_E4M3FN = 0x7E
_LARGEST_E2M1 = 7
_ONE = 0x3F800000


def encode_fp8_row(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes uint8 [..., N, K] and BF16 scale words uint16 [..., N] of float32 values.

    Raises:
        ValueError: where a value is not finite after rounding to BF16.
    """
    negative, sig, exp = split(_words(x), F32)
    rounded = round_word(sig, exp, BF16)
    if np.any(rounded >= BF16.infinity):
        raise ValueError("a value is not finite in BF16")
    amax = rounded.max(axis=-1)
    _, sig, exp = split(amax, BF16)
    scales = divide_word(sig, exp, 7, 6, BF16)  # 448 = 7 * 2^6
    scales = np.where((scales == 0) & (amax != 0), 1, scales)
    _, scale_sig, scale_exp = split(np.where(scales == 0, 0x3F80, scales)[..., None], BF16)
    _, sig, exp = split(rounded, BF16)
    codes = np.minimum(divide_word(sig, exp, scale_sig, scale_exp, E4M3FN), _LARGEST_E4M3FN)
    return np.where(negative, codes | E4M3FN.sign, codes).astype(np.uint8), scales.astype(np.uint16)


def nvfp4_divisor(amax: int) -> int:
    """Binary32 word of `d_w = round_f32(2688 / amax)` for the word of a maximum."""
    if amax == 0:
        return _ONE
    _, sig, exp = split(np.asarray(amax), F32)
    return int(min(divide_word(21, 7, sig, exp, F32), F32.infinity - 1))  # 2688 = 21 * 2^7


def encode_nvfp4(x: np.ndarray, divisor: int | None = None) -> tuple[np.ndarray, np.ndarray, int]:
    """Codes uint8 [N, K], scale words uint8 [N, ceil(K / 16)] and the divisor word of float32 values [N, K].

    Raises:
        ValueError: where a value is not finite or a scale does not fit.
    """
    words = _words(x)
    negative, sig, exp = split(words, F32)
    if divisor is None:
        divisor = nvfp4_divisor(int((words & (F32.sign - 1)).max()))
    _, divisor_sig, divisor_exp = split(np.asarray(divisor), F32)
    scaled = round_word(sig * divisor_sig, exp + divisor_exp, F32)
    if np.any(scaled >= F32.infinity):
        raise ValueError("a value is too large for the divisor")
    _, sig, exp = split(_groups(scaled).max(axis=-1), F32)
    scales = divide_word(sig, exp, 3, 1, E4M3FN)
    if np.any(scales > _LARGEST_E4M3FN):
        raise ValueError("a scale is too large for the divisor")
    nonzero = _groups(words & (F32.sign - 1)).max(axis=-1) != 0
    scales = np.where((scales == 0) & nonzero, 1, scales)
    _, scale_sig, scale_exp = split(np.where(scales == 0, 0x38, scales)[..., None], E4M3FN)
    _, sig, exp = split(_groups(scaled), F32)
    codes = np.minimum(divide_word(sig, exp, scale_sig, scale_exp, E2M1), _LARGEST_E2M1)
    codes = codes.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
    return np.where(negative, codes | E2M1.sign, codes).astype(np.uint8), scales.astype(np.uint8), divisor


def _words(x: np.ndarray) -> np.ndarray:
    if x.dtype != np.float32:
        raise ValueError("widen the source to float32 first")
    return np.ascontiguousarray(x).view(np.uint32).astype(np.int64)


def _groups(words: np.ndarray) -> np.ndarray:
    extra = -words.shape[-1] % NVFP4_GROUP
    padded = np.pad(words, [(0, 0)] * (words.ndim - 1) + [(0, extra)])
    return padded.reshape(*words.shape[:-1], -1, NVFP4_GROUP)
