"""The four storage layouts with explicit bits and indices: logical words to payload bytes and back (storage-layouts).

Words are plain tuples: (codes, scales) for the grouped formats and FP8, (codes, scales, divisor) for NVFP4, (words,)
for the direct ones.
"""

import math

import numpy as np

from tests.oracle.grouped import FORMATS as GROUPED

DIRECT = {"BF16": "<u2", "FP32": "<u4", "I32": "<i4"}
LAYOUT_OF = {
    **dict.fromkeys(DIRECT, "contiguous-le-v1"),
    **dict.fromkeys(GROUPED, "row-split-k128-v1"),
    "NVFP4": "blockscale-k16-m128x4-v1",
    "FP8_E4M3FN_ROW_BF16S": "row-scale-v1",
}
Words = tuple[np.ndarray, ...]


def up(x: int, a: int) -> int:
    """x rounded up to a multiple of a."""
    return (x + a - 1) // a * a


def size(name: str, shape: tuple[int, ...]) -> int:
    """Payload bytes; ValueError for a shape that the layout does not hold or a size beyond 64 bits."""
    if len(shape) > 16 or any(d <= 0 for d in shape):
        raise ValueError(f"shape {shape}")
    if name in DIRECT:
        nbytes = math.prod(shape) * int(DIRECT[name][-1])
    else:
        if len(shape) != 2:
            raise ValueError(f"rank {len(shape)}")
        nbytes = sum(_planes(name, *shape)[-1])
    if nbytes >= 2**64:
        raise ValueError("beyond 64 bits")
    return nbytes


def _planes(name: str, n: int, k: int) -> list[tuple[int, int]]:
    """(offset, bytes) of every plane in order."""
    if name in GROUPED:
        bits, group_size, _, _ = GROUPED[name]
        groups = n * up(k, 128) // group_size
        base = groups * 32
        high = groups * {4: 0, 5: 8, 6: 16, 8: 0}[bits]
        high_at = up(base, 256)
        return [(0, base), (high_at, high), (high_at + up(high, 256), groups * 2)]
    if name == "NVFP4":
        if n % 128 or k % 64:
            raise ValueError("NVFP4 needs N % 128 == 0 and K % 64 == 0")
        scales_at = up(n * k // 2, 256)
        return [(0, n * k // 2), (scales_at, n * k // 16), (scales_at + n * k // 16, 4)]
    return [(0, n * k), (up(n * k, 256), 2 * n)]


def pack(words: Words, name: str) -> bytes:
    """The payload of one tensor."""
    if name in DIRECT:
        return np.asarray(words[0]).astype(DIRECT[name]).tobytes()
    codes = np.asarray(words[0])
    n, k = codes.shape
    if name in GROUPED:
        parts = _pack_grouped(codes, np.asarray(words[1]), name)
    elif name == "NVFP4":
        scales = np.zeros(n * k // 16, np.uint8)
        scales[swizzle(n, k)] = words[1]
        pairs = codes[:, 0::2] + 16 * codes[:, 1::2]
        parts = [pairs.tobytes(), scales.tobytes(), int(words[2]).to_bytes(4, "little")]
    else:
        parts = [codes.tobytes(), np.asarray(words[1]).astype("<u2").tobytes()]
    payload = bytearray(size(name, (n, k)))
    for (offset, nbytes), part in zip(_planes(name, n, k), parts, strict=True):
        if len(part) != nbytes:
            raise ValueError(f"a plane of {len(part)} bytes where {nbytes} belong")
        payload[offset : offset + nbytes] = part
    return bytes(payload)


def unpack(payload: bytes, name: str, shape: tuple[int, ...]) -> Words:
    """The logical words of a payload; padding is dropped unread."""
    if len(payload) != size(name, shape):
        raise ValueError(f"{len(payload)} bytes, not {size(name, shape)}")
    if name in DIRECT:
        return (np.frombuffer(payload, DIRECT[name]).reshape(shape),)
    n, k = shape
    parts = [np.frombuffer(payload, np.uint8, nbytes, offset) for offset, nbytes in _planes(name, n, k)]
    if name in GROUPED:
        return _unpack_grouped(parts, name, n, k)
    if name == "NVFP4":
        codes = np.empty((n, k), np.uint8)
        codes[:, 0::2] = parts[0].reshape(n, -1) % 16
        codes[:, 1::2] = parts[0].reshape(n, -1) // 16
        return codes, parts[1][swizzle(n, k)], parts[2].view("<u4").reshape(())
    return parts[0].reshape(n, k), parts[1].view("<u2")


def swizzle(n: int, k: int) -> np.ndarray:
    """Scale-plane byte of every (row, group), [N, K / 16]."""
    rows, groups = np.arange(n)[:, None], np.arange(k // 16)[None, :]
    tile = (rows // 128) * (k // 64) + groups // 4
    return tile * 512 + (rows % 32) * 16 + ((rows % 128) // 32) * 4 + groups % 4


def _pack_grouped(codes: np.ndarray, scales: np.ndarray, name: str) -> list[bytes]:
    bits, group_size, _, _ = GROUPED[name]
    n, k = codes.shape
    padded = np.zeros((n, up(k, 128)), np.int8)
    padded[:, :k] = codes
    padded_scales = np.zeros((n, up(k, 128) // group_size), "<u2")
    padded_scales[:, : scales.shape[1]] = scales
    lanes = np.unpackbits(padded.view(np.uint8)[..., None], axis=-1, bitorder="little")
    low = bits if bits == 8 else 4
    base = np.packbits(lanes[..., :low].reshape(n, -1), axis=-1, bitorder="little")
    high = np.packbits(lanes[..., low:bits].reshape(n, -1), axis=-1, bitorder="little")
    return [base.tobytes(), high.tobytes(), padded_scales.tobytes()]


def _unpack_grouped(parts: list[np.ndarray], name: str, n: int, k: int) -> Words:
    bits, group_size, _, _ = GROUPED[name]
    columns = up(k, 128)
    low = bits if bits == 8 else 4
    lanes = np.zeros((n, columns, 8), np.uint8)
    lanes[..., :low] = np.unpackbits(parts[0], bitorder="little").reshape(n, columns, low)
    if bits > low:
        lanes[..., low:bits] = np.unpackbits(parts[1], bitorder="little").reshape(n, columns, bits - low)
    lanes[..., bits:] = lanes[..., bits - 1 : bits]
    codes = np.packbits(lanes, axis=-1, bitorder="little").reshape(n, columns).view(np.int8)
    scales = parts[2].view("<u2").reshape(n, -1)
    return codes[:, :k], scales[:, : -(-k // group_size)]
