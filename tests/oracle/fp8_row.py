"""The FP8_E4M3FN_ROW_BF16S decoder in integer arithmetic: `round_f32(code * scale)` (tensor-formats §3.4)."""

import numpy as np

from tests.oracle.exact import BF16, E4M3FN, F32, round_word, split


def decode(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Binary32 words [N, K] of valid words: codes [N, K], scale words [N]."""
    negative, code_sig, code_exp = split(codes, E4M3FN)
    scale_negative, scale_sig, scale_exp = split(np.asarray(scales)[..., None], BF16)
    if scale_negative.any():
        raise ValueError("a row scale is negative")
    magnitude = round_word(code_sig * scale_sig, code_exp + scale_exp, F32)
    return np.where(negative, magnitude | F32.sign, magnitude).astype(np.uint32)
