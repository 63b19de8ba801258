"""`row-scale-v1`: E4M3FN codes row major, then one BF16 multiplier a row (storage-layouts).

Codes and scales are stored as they are; NaN codes are not looked for here (see `ninfer_jax.codecs`).
"""

from collections.abc import Sequence
from typing import ClassVar, SupportsIndex

from ninfer_jax.errors import LayoutError
from ninfer_jax.formats import RowScaledFormat
from ninfer_jax.layouts._geometry import PLANE_ALIGNMENT, Geometry, PlaneSize, check_shape, place
from ninfer_jax.layouts._layout import Layout, check_words
from ninfer_jax.planes import RowScaledPlanes
from ninfer_jax.words import RowScaledWords


class RowScale(Layout):
    """FP8 codes and row multipliers, unpadded."""

    name: ClassVar[str] = "row-scale-v1"
    formats: ClassVar[tuple[str, ...]] = ("FP8_E4M3FN_ROW_BF16S",)
    words_type: ClassVar[type | None] = RowScaledWords
    planes_type: ClassVar[type | None] = RowScaledPlanes
    row_axes: ClassVar[dict[str, int]] = {"codes": -2, "scales": -1}

    def plan(self, spec: RowScaledFormat, shape: Sequence[SupportsIndex]) -> Geometry:
        """`bytes = up(N * K, 256) + 2 * N`."""
        n, k = check_shape(spec, shape, range(2, 3))
        sizes = [
            PlaneSize("codes", "|u1", 1, (n, k), k),
            PlaneSize("scales", "<u2", 2, (n,), 2, PLANE_ALIGNMENT),
        ]
        return place(spec, self.name, (n, k), n, 1, sizes)

    def pack(self, words: RowScaledWords, spec: RowScaledFormat) -> RowScaledPlanes:
        """The words themselves, after a check of dtypes and shapes."""
        check_words(words.codes, "uint8", "codes", spec)
        check_words(words.scales, "uint16", "scales", spec)
        if words.codes.ndim < 2 or 0 in words.codes.shape[-2:] or words.scales.shape != words.codes.shape[:-1]:
            raise LayoutError(
                f"{spec.name}: codes of shape {words.codes.shape} and scales of shape {words.scales.shape};"
                " needed [..., N, K] and [..., N] with N, K > 0"
            )
        return RowScaledPlanes(words.codes, words.scales)

    def unpack(self, planes: RowScaledPlanes, spec: RowScaledFormat, k: int | None) -> RowScaledWords:
        """The planes themselves; there is no padding, so `k` is only checked."""
        words = self.pack(RowScaledWords(planes.codes, planes.scales), spec)
        if k is not None and planes.codes.shape[-1] != k:
            raise LayoutError(f"{spec.name} planes have {planes.codes.shape[-1]} columns, not k = {k}")
        return RowScaledWords(*words)
