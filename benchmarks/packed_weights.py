"""Large packed weights made fast, and the exact values of a few of their rows.

A weight repeats a random block of 509 rows, a prime, so that no tile of a kernel can be mistaken for another one. Every
word is legal and the padding is zero. Leaves out quantization and the suites' oracle, which is exact but slow.
Source: storage-layouts, tensor-formats §3.
"""

import ml_dtypes
import numpy as np

from pallas_kernels.planes import WeightPlanes, plane_shapes
from pallas_kernels.tiling import weight_kind

_BLOCK_ROWS = 509
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
_DIVISOR = 1000.0


def random_planes(kind: str, n: int, k: int, seed: int = 0) -> WeightPlanes:
    """Planes of an [n, k] weight of random legal words.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      n: rows.
      k: columns, even.
      seed: of the random words.
    """
    if k % 2:
        raise ValueError(f"k={k} is odd: benchmark weights have an even number of columns")
    rng = np.random.default_rng(seed)
    shapes = plane_shapes(kind, n, k)
    if kind == "nvfp4":
        codes = _repeat(rng.integers(0, 256, (_BLOCK_ROWS, k // 2), np.uint8), n)
        scales = np.resize(rng.integers(0x20, 0x60, 100_003, np.uint8), shapes.scales.shape)
        return WeightPlanes(codes, None, scales, np.array(_DIVISOR, np.float32).view(np.uint32))
    if kind == "fp8":
        codes = rng.integers(0, 256, (_BLOCK_ROWS, k), np.uint8)
        codes[codes & 0x7F == 0x7F] = 0x38
        scales = rng.uniform(1e-3, 2e-2, n).astype(ml_dtypes.bfloat16).view(np.uint16)
        return WeightPlanes(_repeat(codes, n), None, scales, None)
    return _grouped_planes(rng, kind, n, k)


def decode_rows(planes: WeightPlanes, kind: str, k: int, rows: np.ndarray) -> np.ndarray:
    """float64 [rows, k]: the exact values of some rows."""
    codes = np.asarray(planes.codes)[rows]
    if kind == "fp8":
        scales = np.asarray(planes.scales)[rows].view(ml_dtypes.bfloat16).astype(np.float64)
        return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)[:, :k] * scales[:, None]
    if kind == "w8":
        values = codes.view(np.int8).astype(np.float64)
    else:
        nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(rows), -1)
        values = _E2M1[nibbles] if kind == "nvfp4" else _signed(planes, kind, nibbles, rows)
    return (values * _column_scales(planes, kind, values.shape[1], rows))[:, :k]


def _repeat(block: np.ndarray, n: int) -> np.ndarray:
    return np.concatenate([block] * (n // len(block)) + [block[: n % len(block)]])


def _grouped_planes(rng: np.random.Generator, kind: str, n: int, k: int) -> WeightPlanes:
    info = weight_kind(kind)
    columns = info.k_padded(k)
    shapes = plane_shapes(kind, n, k)
    codes = rng.integers(0, 256, (_BLOCK_ROWS, shapes.codes.shape[1]), np.uint8)
    if kind == "w8":
        codes[codes == 0x80] = 0x81
    codes[:, k * info.code_plane_bits // 8 :] = 0
    high = None
    if shapes.high is not None:
        lanes = rng.integers(0, 2, (_BLOCK_ROWS, columns * (info.code_bits - 4)), np.uint8)
        lanes[:, k * (info.code_bits - 4) :] = 0
        high = _repeat(np.packbits(lanes, axis=1, bitorder="little"), n)
    scales = rng.uniform(1e-3, 2e-2, (_BLOCK_ROWS, shapes.scales.shape[1])).astype(np.float16).view(np.uint16)
    scales[:, -(-k // info.group_size) :] = 0
    return WeightPlanes(_repeat(codes, n), high, _repeat(scales, n), None)


def _signed(planes: WeightPlanes, kind: str, nibbles: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Codes of q4, q5 and q6 from their low nibbles and what the high plane adds."""
    bits = weight_kind(kind).code_bits
    unsigned = nibbles.astype(np.int64)
    if bits > 4:
        lanes = np.unpackbits(np.asarray(planes.high)[rows], axis=1, bitorder="little")
        lanes = lanes.reshape(*nibbles.shape, bits - 4).astype(np.int64)
        unsigned += (lanes << np.arange(4, bits)).sum(axis=-1)
    return np.where(unsigned >= 2 ** (bits - 1), unsigned - 2**bits, unsigned).astype(np.float64)


def _column_scales(planes: WeightPlanes, kind: str, columns: int, rows: np.ndarray) -> np.ndarray:
    if kind == "nvfp4":
        groups = np.arange(columns // 16)
        row = rows[:, None]
        stored = np.asarray(planes.scales)[row // 128, groups // 4, row % 32, row % 128 // 32, groups % 4]
        scales = stored.view(ml_dtypes.float8_e4m3fn).astype(np.float64) / _divisor(planes)
        return np.repeat(scales, 16, axis=1)
    scales = np.asarray(planes.scales)[rows].view(np.float16).astype(np.float64)
    return np.repeat(scales, weight_kind(kind).group_size, axis=1)


def _divisor(planes: WeightPlanes) -> float:
    return float(np.asarray(planes.divisor).view(np.float32))
