"""`contiguous-le-v1`: the words of BF16, FP32 and I32 in C order, little endian, nothing else (storage-layouts).

The planes of a direct tensor are its words, so packing is the identity. No conversion happens here.
"""

from collections.abc import Sequence
from typing import ClassVar, SupportsIndex

from ninfer_jax._typing import AnyArray
from ninfer_jax.errors import LayoutError
from ninfer_jax.formats import DirectFormat
from ninfer_jax.layouts._geometry import Geometry, PlaneSize, check_shape, place
from ninfer_jax.layouts._layout import Layout, check_words, take

_UNITS = {"uint16": "<u2", "uint32": "<u4", "int32": "<i4"}


class Contiguous(Layout):
    """Direct words; a row is everything behind the first axis, and a scalar is one row."""

    name: ClassVar[str] = "contiguous-le-v1"
    formats: ClassVar[tuple[str, ...]] = ("BF16", "FP32", "I32")
    words_type: ClassVar[type | None] = None
    planes_type: ClassVar[type | None] = None

    def plan(self, spec: DirectFormat, shape: Sequence[SupportsIndex]) -> Geometry:
        """`bytes = prod(shape) * word_bytes`, for rank 0 to 16."""
        dims = check_shape(spec, shape, range(17))
        row_nbytes = word_nbytes = spec.word_bits // 8
        for dim in dims[1:]:
            row_nbytes *= dim
        size = PlaneSize("words", _UNITS[spec.word_dtype], word_nbytes, dims, row_nbytes)
        return place(spec, self.name, dims, dims[0] if dims else 1, 1, [size])

    def pack(self, words: AnyArray, spec: DirectFormat) -> AnyArray:
        """The words themselves, after a check of their dtype."""
        check_words(words, spec.word_dtype, "the words", spec)
        return words

    def unpack(self, planes: AnyArray, spec: DirectFormat, k: int | None) -> AnyArray:
        """The words themselves; there is no padding, so `k` is only checked."""
        if k is not None and (not planes.ndim or planes.shape[-1] != k):
            raise LayoutError(f"{spec.name}: words of shape {planes.shape} do not have {k} columns")
        return self.pack(planes, spec)

    def row_count(self, planes: AnyArray) -> int:
        """The first dimension, or 1."""
        return planes.shape[0] if planes.ndim else 1

    def slice_rows(self, planes: AnyArray, start: int, stop: int) -> AnyArray:
        """Rows `[start, stop)` of the first axis; a scalar has only the whole."""
        return planes[start:stop] if planes.ndim else planes

    def gather_rows(self, planes: AnyArray, ids: AnyArray) -> AnyArray:
        """Rows `ids` of the first axis."""
        if not planes.ndim:
            raise LayoutError("a scalar has no rows to gather")
        return take(planes, ids, 0)
