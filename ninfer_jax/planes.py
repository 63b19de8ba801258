"""Planes of the storage layouts: the persistent bytes, shaped for JAX, as pytrees.

A planes tuple holds exactly the bytes of a payload without the zero bytes between planes. NumPy planes are views of a
payload; JAX planes are what the ops consume. The planes of a direct tensor are its one bare word array. How words
become planes and planes become bytes is in `ninfer_jax.layouts`.
"""

from typing import NamedTuple

from jaxtyping import UInt8, UInt16, UInt32

from ninfer_jax._typing import AnyArray


class GroupedPlanes(NamedTuple):
    """Planes of `row-split-k128-v1`; gpr = up(k, 128) / group_size groups per row (storage-layouts).

    Attributes:
        base: low four bits of the codes (Q4, Q5, Q6), or whole codes (W8); row_bytes = 32 * gpr.
        high: remaining code bits, 8 (Q5) or 16 (Q6) bytes per group; None for Q4 and W8.
        scales: binary16 words.
    """

    base: UInt8[AnyArray, "*lead n row_bytes"]
    high: UInt8[AnyArray, "*lead n high_bytes"] | None
    scales: UInt16[AnyArray, "*lead n gpr"]


class NVFP4Planes(NamedTuple):
    """Planes of `blockscale-k16-m128x4-v1` (storage-layouts).

    Attributes:
        codes: two E2M1 words a byte, low nibble = even column.
        scales: E4M3FN words as stored: [n // 128, g // 4, n % 32, (n % 128) // 32, g % 4].
        divisor: the binary32 word of d_w.
    """

    codes: UInt8[AnyArray, "*lead n half_k"]
    scales: UInt8[AnyArray, "*lead n_tiles k_tiles 32 4 4"]
    divisor: UInt32[AnyArray, "*lead"]


class RowScaledPlanes(NamedTuple):
    """Planes of `row-scale-v1` (storage-layouts).

    Attributes:
        codes: E4M3FN words.
        scales: BF16 words of the row multipliers.
    """

    codes: UInt8[AnyArray, "*lead n k"]
    scales: UInt16[AnyArray, "*lead n"]


QuantizedPlanes = GroupedPlanes | NVFP4Planes | RowScaledPlanes
Planes = QuantizedPlanes | AnyArray
