"""MAXABS_F16_RECIP_RNE_V1 and the grouped decoder, step by step in integer arithmetic (tensor-formats §6.2, §7)."""

import numpy as np

from tests.oracle.exact import F16, F32, divide_word, round_at, round_word, split

# name -> code bits, group size, qmin, qmax
FORMATS = {
    "Q4G64_F16S": (4, 64, -8, 7),
    "Q5G64_F16S": (5, 64, -16, 15),
    "Q6G64_F16S": (6, 64, -32, 31),
    "W8G32_F16S": (8, 32, -127, 127),
}


def encode(x: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes int8 [..., K] and scale words uint16 [..., ceil(K / G)] of float32 values [..., K].

    Raises:
        ValueError: where a value is not finite or a scale overflows (see `encodable`).
    """
    bad = ~encodable(x, name)
    if bad.any():
        raise ValueError(f"groups {np.argwhere(bad)[:4].tolist()} cannot be encoded")
    _, _, qmin, qmax = FORMATS[name]
    words = _groups(x, name)
    scales = scale_words(_amax(words), name)
    # A zero scale has only zero codes; 1 stands in for its reciprocal, which the algorithm never takes.
    inverse = inverse_words(np.where(scales == 0, 0x3C00, scales))
    negative, sig, exp = split(words, F32)
    _, inverse_sig, inverse_exp = split(inverse[..., None], F32)
    normalized = round_word(sig * inverse_sig, exp + inverse_exp, F32)
    _, sig, exp = split(normalized, F32)
    magnitude = round_at(sig, exp, 0)
    codes = np.clip(np.where(negative, -magnitude, magnitude), qmin, qmax)
    codes = np.where(scales[..., None] == 0, 0, codes).astype(np.int8)
    return codes.reshape(*codes.shape[:-2], -1)[..., : x.shape[-1]], scales


def encodable(x: np.ndarray, name: str) -> np.ndarray:
    """True for every group [..., ceil(K / G)] whose values are finite and whose scale is."""
    amax = _amax(_groups(x, name))
    finite = amax < F32.infinity
    return finite & (_scale(np.where(finite, amax, 0), name) < F16.infinity)


def scale_words(amax: np.ndarray, name: str) -> np.ndarray:
    """Binary16 scale words of binary32 words of group maxima, with the underflow rescue; infinity where refused."""
    scale = _scale(amax, name)
    return np.where((scale == 0) & (amax != 0), 1, scale).astype(np.uint16)


def inverse_words(scales: np.ndarray) -> np.ndarray:
    """Binary32 words of `round_f32(1 / scale)` for positive finite binary16 words."""
    _, sig, exp = split(scales, F16)
    return divide_word(1, 0, sig, exp, F32).astype(np.uint32)


def decode(codes: np.ndarray, scales: np.ndarray, name: str) -> np.ndarray:
    """Binary32 words [..., K] of `scale * code`."""
    group_size = FORMATS[name][1]
    codes = np.asarray(codes).astype(np.int64)
    _, sig, exp = split(np.repeat(scales, group_size, axis=-1)[..., : codes.shape[-1]], F16)
    magnitude = round_word(np.abs(codes) * sig, exp, F32)
    return np.where(codes < 0, magnitude | F32.sign, magnitude).astype(np.uint32)


def _groups(x: np.ndarray, name: str) -> np.ndarray:
    """Binary32 words [..., groups, G]; the last group is filled with +0, which changes no maximum."""
    if x.dtype != np.float32:
        raise ValueError("widen the source to float32 first")
    group_size = FORMATS[name][1]
    words = np.ascontiguousarray(x).view(np.uint32).astype(np.int64)
    groups = -(-x.shape[-1] // group_size)
    padded = np.zeros((*x.shape[:-1], groups * group_size), np.int64)
    padded[..., : x.shape[-1]] = words
    return padded.reshape(*x.shape[:-1], groups, group_size)


def _amax(words: np.ndarray) -> np.ndarray:
    """Words order like magnitudes once the sign is gone; a NaN word is above infinity and so survives the maximum."""
    return (words & (F32.sign - 1)).max(axis=-1)


def _scale(amax: np.ndarray, name: str) -> np.ndarray:
    qmax = FORMATS[name][3]
    _, sig, exp = split(amax, F32)
    raw = divide_word(sig, exp, qmax, 0, F32)
    _, sig, exp = split(raw, F32)
    return round_word(sig, exp, F16)
