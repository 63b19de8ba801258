"""Random packed weights for the kernel suites, packed and decoded by the independent oracle, and the one criterion.

The reference is a float64 dot of the bfloat16 inputs with the exactly decoded float32 weights, never another kernel.
Source: ops-and-criteria, storage-layouts.
"""

import numpy as np

from pallas_kernels.planes import WeightPlanes, plane_shapes
from pallas_kernels.tiling import weight_kind
from tests.oracle import fp8_row, grouped, layouts, nvfp4

FORMATS = {
    "q4": "Q4G64_F16S",
    "q5": "Q5G64_F16S",
    "q6": "Q6G64_F16S",
    "w8": "W8G32_F16S",
    "nvfp4": "NVFP4",
    "fp8": "FP8_E4M3FN_ROW_BF16S",
}


def random_weight(kind: str, n: int, k: int, seed: int = 0) -> tuple[WeightPlanes, np.ndarray]:
    """Planes of a weight of random legal words, and its exact values, float64 [n, k]."""
    rng = np.random.default_rng(seed)
    words, values = _WORDS.get(kind, _grouped_words)(rng, kind, n, k)
    return planes_of(kind, layouts.pack(words, FORMATS[kind]), n, k), values.view(np.float32).astype(np.float64)


def planes_of(kind: str, payload: bytes, n: int, k: int) -> WeightPlanes:
    """The planes of a payload: each starts at a multiple of 256 bytes, but nvfp4's divisor right after its scales."""
    shapes, offset, planes = plane_shapes(kind, n, k), 0, []
    for field, shape in zip(WeightPlanes._fields, shapes, strict=True):
        if shape is None:
            planes.append(None)
            continue
        offset = offset if field == "divisor" else -(-offset // 256) * 256
        plane = np.frombuffer(payload, np.dtype(shape.dtype), int(np.prod(shape.shape)), offset).reshape(shape.shape)
        planes.append(plane)
        offset += plane.nbytes
    return WeightPlanes(*planes)


def random_x(m: int, k: int, seed: int = 1) -> np.ndarray:
    """bfloat16 [m, k] activations."""
    import ml_dtypes

    return np.random.default_rng(seed).standard_normal((m, k)).astype(ml_dtypes.bfloat16)


def relative_l2(y: np.ndarray, reference: np.ndarray) -> float:
    """||y - reference|| / ||reference||."""
    return float(np.linalg.norm(np.asarray(y, np.float64) - reference) / np.linalg.norm(reference))


def check_close(y: np.ndarray, reference: np.ndarray) -> None:
    """The criterion of kernels with bfloat16 activations; a non-finite y fails."""
    y = np.asarray(y, np.float64)
    assert y.shape == reference.shape
    assert np.isfinite(y).all()
    assert relative_l2(y, reference) <= 1 / 256
    assert np.abs(y - reference).max() <= 1 / 256 + 2 / 256 * np.abs(reference).max()


def _grouped_words(rng: np.random.Generator, kind: str, n: int, k: int):
    info = weight_kind(kind)
    lowest = -(2 ** (info.code_bits - 1)) + (info.code_bits == 8)
    codes = rng.integers(lowest, 2 ** (info.code_bits - 1), (n, k)).astype(np.int8)
    scales = rng.uniform(1e-3, 2e-2, (n, -(-k // info.group_size))).astype(np.float16).view(np.uint16)
    return (codes, scales), grouped.decode(codes, scales, FORMATS[kind])


def _nvfp4_words(rng: np.random.Generator, kind: str, n: int, k: int):
    codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
    scales = rng.integers(0, 0x7F, (n, k // 16)).astype(np.uint8)
    divisor = np.asarray(np.float32(2688.0)).view(np.uint32)
    return (codes, scales, divisor), nvfp4.decode(codes, scales, divisor)


def _fp8_words(rng: np.random.Generator, kind: str, n: int, k: int):
    codes = rng.integers(0, 256, (n, k)).astype(np.uint8)
    codes[codes & 0x7F == 0x7F] = 0x3C
    scales = (rng.uniform(1e-3, 2e-2, n).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return (codes, scales), fp8_row.decode(codes, scales)


_WORDS = {"nvfp4": _nvfp4_words, "fp8": _fp8_words}
