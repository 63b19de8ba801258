"""Any format by name: payload bytes to the binary32 words (I32: integers) that they mean (tensor-formats §3, §6.2)."""

import numpy as np

from tests.oracle import fp8_row, grouped, layouts, nvfp4


def decode(words: layouts.Words, name: str) -> np.ndarray:
    """uint32 binary32 words of any quantized or floating format; int32 integers of I32."""
    if name in grouped.FORMATS:
        return grouped.decode(words[0], words[1], name)
    if name == "NVFP4":
        return nvfp4.decode(*words)
    if name == "FP8_E4M3FN_ROW_BF16S":
        return fp8_row.decode(*words)
    if name == "BF16":
        return np.asarray(words[0]).astype(np.uint32) << np.uint32(16)
    return words[0]


def decode_payload(payload: bytes, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """`decode` of the words in a payload."""
    return decode(layouts.unpack(payload, name, shape), name)
