"""What a layout is: the interface that the four layouts implement, and row selection where rows are one axis.

A layout maps logical words to planes and places the planes in a payload, bit for bit. It never quantizes, converts or
decodes (storage-layouts). Users go through `ninfer_jax.layouts.pack` and its neighbours, which look the layout up.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from ninfer_jax._typing import AnyArray
from ninfer_jax.errors import FormatError, LayoutError
from ninfer_jax.formats import Format
from ninfer_jax.layouts._geometry import Geometry

_ARRAYS = (jax.Array, np.ndarray, np.generic)


class Layout(ABC):
    """One entry of the closed registry of layouts.

    Attributes:
        name: registered name.
        alignment: an object's payload starts at a multiple of this many bytes.
        formats: canonical names of the formats it can hold.
        words_type: the words tuple, or None where the words are one bare array.
        planes_type: the planes tuple, or None where the planes are one bare array.
        row_axes: for each plane that is split by rows, its row axis.
    """

    name: ClassVar[str]
    alignment: ClassVar[int] = 256
    formats: ClassVar[tuple[str, ...]]
    words_type: ClassVar[type | None]
    planes_type: ClassVar[type | None]
    row_axes: ClassVar[dict[str, int]]

    @abstractmethod
    def plan(self, spec: Any, shape: Sequence[SupportsIndex]) -> Geometry:
        """Check the shape and place the planes of `[N, K]` (or of any shape, for direct formats)."""

    @abstractmethod
    def pack(self, words: Any, spec: Any) -> Any:
        """Logical words to planes."""

    @abstractmethod
    def unpack(self, planes: Any, spec: Any, k: int | None) -> Any:
        """Planes to logical words of `k` columns."""

    def row_count(self, planes: Any) -> int:
        """Rows that a planes tuple holds."""
        name, axis = next(iter(self.row_axes.items()))
        return getattr(planes, name).shape[axis]

    def slice_rows(self, planes: Any, start: int, stop: int) -> Any:
        """Rows `[start, stop)` of every plane: views of NumPy planes."""
        return self._each(planes, lambda plane, axis: plane[(..., slice(start, stop)) + (slice(None),) * (-1 - axis)])

    def gather_rows(self, planes: Any, ids: AnyArray) -> Any:
        """Rows `ids` of every plane, in that order."""
        return self._each(planes, lambda plane, axis: take(plane, ids, axis))

    def _each(self, planes: Any, select: Callable[[AnyArray, int], AnyArray]) -> Any:
        fields = planes._asdict()
        selected = {
            name: select(fields[name], axis) for name, axis in self.row_axes.items() if fields[name] is not None
        }
        return planes._replace(**selected)

    def __repr__(self) -> str:
        return f"<layout {self.name} for {', '.join(self.formats)}>"


def take(plane: AnyArray, ids: AnyArray, axis: int) -> AnyArray:
    """`plane[..., ids, ...]` along `axis`, on the host for NumPy planes and on device for JAX planes.

    `gather_rows` has checked concrete ids; traced ids outside the range read the nearest row, because a traced program
    cannot raise.
    """
    if isinstance(plane, np.ndarray) and isinstance(ids, np.ndarray):
        return np.take(plane, ids, axis=axis)
    return jnp.take(plane, ids, axis=axis, mode="clip")


def check_words(array: object, dtype: str, what: str, spec: Format) -> None:
    """Raise LayoutError unless `array` carries words as `dtype`."""
    if not isinstance(array, _ARRAYS):
        raise LayoutError(f"{spec.name}: {what} must be {dtype} words, not {type(array).__name__}; give an array")
    if array.dtype != np.dtype(dtype):
        raise LayoutError(f"{spec.name}: {what} must be {dtype} words, not {array.dtype}; bitcast or cast them first")


def check_plane(array: AnyArray, dtype: str, shape: tuple[int, ...], what: str, spec: Format) -> None:
    """Raise LayoutError unless a plane has the dtype and the shape that the other planes ask for."""
    check_words(array, dtype, f"plane {what}", spec)
    if array.shape != shape:
        raise LayoutError(
            f"{spec.name}: plane {what} has shape {list(array.shape)}, the other planes need {list(shape)}; they are "
            "planes of another format or of another tensor"
        )


def check_kind(what: str, given: object, wanted: type | None, spec: Format) -> None:
    """Raise FormatError unless `given` is the tuple type `wanted`, or an array where that is None."""
    if isinstance(given, wanted or _ARRAYS):
        return
    name = wanted.__name__ if wanted else "one bare array"
    raise FormatError(f"{what} of {spec.name} are {name}, not {type(given).__name__}")
