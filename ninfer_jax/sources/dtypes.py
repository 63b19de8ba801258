"""Element types of checkpoints by their safetensors names, and the NumPy types that carry them without torch.

Leaves out conversion between types (see `ninfer_jax.codecs`). Specification: checkpoint-sources.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import ml_dtypes
import numpy as np


class ElementType(NamedTuple):
    """One safetensors element type.

    Attributes:
        bits: width of one element.
        dtype: little-endian NumPy type of one element; None where elements are not whole bytes.
    """

    bits: int
    dtype: np.dtype | None


ELEMENT_TYPES: Mapping[str, ElementType] = MappingProxyType(
    {
        "BOOL": ElementType(8, np.dtype(np.bool_)),
        "U8": ElementType(8, np.dtype("<u1")),
        "I8": ElementType(8, np.dtype("<i1")),
        "U16": ElementType(16, np.dtype("<u2")),
        "I16": ElementType(16, np.dtype("<i2")),
        "U32": ElementType(32, np.dtype("<u4")),
        "I32": ElementType(32, np.dtype("<i4")),
        "U64": ElementType(64, np.dtype("<u8")),
        "I64": ElementType(64, np.dtype("<i8")),
        "F16": ElementType(16, np.dtype("<f2")),
        "BF16": ElementType(16, np.dtype(ml_dtypes.bfloat16)),
        "F32": ElementType(32, np.dtype("<f4")),
        "F64": ElementType(64, np.dtype("<f8")),
        "F8_E4M3": ElementType(8, np.dtype(ml_dtypes.float8_e4m3fn)),
        "F8_E5M2": ElementType(8, np.dtype(ml_dtypes.float8_e5m2)),
        "F8_E8M0": ElementType(8, np.dtype(ml_dtypes.float8_e8m0fnu)),
        "C64": ElementType(64, np.dtype("<c8")),
        "F4": ElementType(4, None),
        "F6_E2M3": ElementType(6, None),
        "F6_E3M2": ElementType(6, None),
    }
)
"""Read-only mapping of every element type that a safetensors header may name."""

FLOAT_TYPES = frozenset({"F64", "F32", "F16", "BF16"})
"""Types whose values an encoder takes."""

INTEGER_TYPES = frozenset({"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"})
"""Types whose values can become I32 with a range check."""
