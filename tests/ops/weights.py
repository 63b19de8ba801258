"""Random weights of legal words, their exact values by the oracle, and the one criterion of the products.

Codes cover the whole language of a format and scales several powers of two, zero and subnormals included.
"""

from typing import Any

import ml_dtypes
import numpy as np

from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.formats import GroupedFormat, get_format
from ninfer_jax.layouts import pack
from ninfer_jax.words import GroupedWords, NVFP4Words, RowScaledWords
from tests.oracle.tensors import decode_payload

FORMATS = ("Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S", "NVFP4", "FP8_E4M3FN_ROW_BF16S")


def random_weight(format: str, n: int, k: int, seed: int = 0) -> QuantizedTensor:
    """A weight [n, k] of random legal words."""
    rng = np.random.default_rng(seed)
    spec = get_format(format)
    if isinstance(spec, GroupedFormat):
        scales = rng.lognormal(-4, 1, (n, spec.groups(k))).astype(np.float16).view(np.uint16)
        codes = rng.integers(spec.qmin, spec.qmax + 1, (n, k), dtype=np.int8)
        if n > 1:
            scales[0] = 1  # the smallest subnormal
            scales[-1, 0] = 0
            codes[-1, : spec.group_size] = 0
        words = GroupedWords(codes, scales)
    elif format == "NVFP4":
        codes = rng.integers(0, 16, (n, k), dtype=np.uint8)
        scales = rng.integers(0, 0x7F, (n, k // 16), dtype=np.uint8)
        words = NVFP4Words(codes, scales, np.array(2688.5, np.float32).view(np.uint32))
    else:
        codes = rng.integers(0, 256, (n, k), dtype=np.uint8)
        codes[codes & 0x7F == 0x7F] = 0x01
        scales = rng.lognormal(-4, 1, n).astype(ml_dtypes.bfloat16).view(np.uint16)
        words = RowScaledWords(codes, scales)
    return QuantizedTensor(pack(words, format), format, k)


def exact(w: QuantizedTensor) -> np.ndarray:
    """float64 of the exactly decoded float32 weights, from the payload bytes by the oracle."""
    words = decode_payload(w.to_payload().tobytes(), w.format, w.shape)
    return words.view(np.float32).astype(np.float64)


def activations(m: int, k: int, dtype: str = "float32", seed: int = 1) -> np.ndarray:
    """Random x [m, k]."""
    return np.random.default_rng(seed).standard_normal((m, k)).astype(np.dtype(dtype))


def relative_l2(y: np.ndarray, reference: np.ndarray) -> float:
    """`||y - ref|| / ||ref||`."""
    return float(np.linalg.norm(np.asarray(y, np.float64) - reference) / np.linalg.norm(reference))


def temporary_bytes(compiled: Any) -> int:
    """Temporary memory of a compiled program."""
    return compiled.memory_analysis().temp_size_in_bytes


def check_product(y: np.ndarray, reference: np.ndarray) -> None:
    """Raise unless y holds the criterion of its dtype (ops-and-criteria)."""
    assert np.isfinite(np.asarray(y, np.float64)).all()
    error = relative_l2(y, reference)
    if y.dtype == np.float32:
        assert error <= 1e-5, error
        return
    worst = np.abs(np.asarray(y, np.float64) - reference).max()
    assert error <= 1 / 256, error
    assert worst <= 1 / 256 + 2 / 256 * np.abs(reference).max(), worst
