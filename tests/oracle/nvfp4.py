"""The NVFP4 decoder in integer arithmetic: `round_f32((e2m1 * e4m3fn) / d_w)`, one rounding (tensor-formats §3.3)."""

import numpy as np

from tests.oracle.exact import E2M1, E4M3FN, F32, divide_word, split

GROUP = 16


def decode(codes: np.ndarray, scales: np.ndarray, divisor: np.ndarray | int) -> np.ndarray:
    """Binary32 words [N, K] of valid words: codes [N, K], natural scales [N, K / 16], one divisor word."""
    negative, code_sig, code_exp = split(codes, E2M1)
    scale_negative, scale_sig, scale_exp = split(np.repeat(scales, GROUP, axis=-1), E4M3FN)
    divisor_negative, sig, exp = split(np.asarray(divisor), F32)
    if scale_negative.any() or divisor_negative.any() or not sig.all():
        raise ValueError("a scale is negative or the divisor is not positive")
    magnitude = divide_word(code_sig * scale_sig, code_exp + scale_exp, sig, exp, F32)
    return np.where(negative, magnitude | F32.sign, magnitude).astype(np.uint32)
