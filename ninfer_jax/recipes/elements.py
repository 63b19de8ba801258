"""Lazy transforms that move elements or change their type: reshape, squeeze, transpose, exact widening, constants.

A block of result rows reads only what it needs and never the whole tensor at once. These work on values; quantized
words belong to their rows and columns, and are refused. Leaves out row selections (`ninfer_jax.recipes.rows`).
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ninfer_jax.errors import RecipeError
from ninfer_jax.recipes.objects import RowSource, WordSource
from ninfer_jax.recipes.rows import describe
from ninfer_jax.sources import SourceRef, StoredTensor, row_count, widen_to_f32

TRANSPOSE_BLOCK_BYTES = 8 * 2**20
"""Bytes of the input that one step of a transpose holds."""


@dataclass(frozen=True)
class _Transformed:
    rows: RowSource
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """Element type of the input."""
        return self.rows.dtype

    @property
    def sources(self) -> tuple[SourceRef, ...]:
        """Every stored tensor behind it."""
        return self.rows.sources

    @property
    def reason(self) -> str | None:
        """Why quantized words behind it are not stored word for word; None where there are none."""
        return getattr(self.rows, "reason", None)

    @property
    def decodable(self) -> bool:
        """False where nothing decodes the quantized words behind it."""
        return getattr(self.rows, "decodable", True)


@dataclass(frozen=True)
class Decoded(_Transformed):
    """Quantized words seen as the float32 values they mean, for an encoder that a recipe names; a `RowSource`."""

    @property
    def reason(self) -> str:
        """Names the words that were decoded."""
        return (
            getattr(self.rows, "reason", None) or f"its {getattr(self.rows, 'format', 'quantized')} words are decoded"
        )

    def read(self, start: int, stop: int) -> np.ndarray:
        """Values of rows [start, stop)."""
        return self.rows.read(start, stop)


@dataclass(frozen=True)
class Reshaped(_Transformed):
    """The same elements in C order under another shape; a `RowSource`."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """Values of rows [start, stop)."""
        width = math.prod(self.shape[1:])
        inner = math.prod(self.rows.shape[1:])
        first, last = start * width // inner, -(-stop * width // inner)
        flat = self.rows.read(first, last).reshape(-1)
        begin = start * width - first * inner
        return flat[begin : begin + (stop - start) * width].reshape((stop - start, *self.shape[1:]))


@dataclass(frozen=True)
class Transposed(_Transformed):
    """`out = transpose(rows, axes)`; a `RowSource`."""

    axes: tuple[int, ...]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Values of rows [start, stop)."""
        axis = self.axes[0]
        if axis == 0:
            return self.rows.read(start, stop).transpose(self.axes)
        cut = (slice(None),) * axis + (slice(start, stop),)
        before = (slice(None),) * self.axes.index(0)
        # Copied step by step: a view of what was read would keep the whole tensor in memory.
        out = np.empty((stop - start, *self.shape[1:]), self.rows.read(0, 0).dtype)
        for first, last in self._steps():
            out[(*before, slice(first, last))] = self.rows.read(first, last)[cut].transpose(self.axes)
        return out

    def _steps(self) -> list[tuple[int, int]]:
        """Row ranges of the input, none larger than `TRANSPOSE_BLOCK_BYTES` unless one row is."""
        count = row_count(self.rows.shape)
        row_bytes = math.prod(self.rows.shape[1:]) * self.rows.read(0, 0).dtype.itemsize
        step = max(1, TRANSPOSE_BLOCK_BYTES // max(row_bytes, 1))
        return [(first, min(first + step, count)) for first in range(0, count, step)]


@dataclass(frozen=True)
class Widened(_Transformed):
    """F16 or BF16 values as F32, each unchanged; a `RowSource`."""

    @property
    def dtype(self) -> str:
        """F32."""
        return "F32"

    def read(self, start: int, stop: int) -> np.ndarray:
        """Values of rows [start, stop)."""
        return widen_to_f32(self.rows.read(start, stop))


@dataclass(frozen=True)
class IntegerRows:
    """A computed list of I32 values, such as token ids; a `RowSource` without a checkpoint tensor."""

    values: np.ndarray = field(repr=False)
    label: str

    def __post_init__(self) -> None:
        limits = np.iinfo(np.int32)
        if self.values.ndim != 1 or not np.issubdtype(self.values.dtype, np.integer):
            raise RecipeError(f"{self.label} must be a one-dimensional list of integers")
        if self.values.size and not limits.min <= int(self.values.min()) <= int(self.values.max()) <= limits.max:
            raise RecipeError(f"{self.label} holds a value outside the range of I32")

    def __repr__(self) -> str:
        """Equal texts mean equal values."""
        digest = hashlib.sha256(self.values.astype("<i4").tobytes()).hexdigest()[:32]
        return f"IntegerRows({self.label!r}, values={digest})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of the list."""
        return self.values.shape

    @property
    def dtype(self) -> str:
        """I32."""
        return "I32"

    @property
    def sources(self) -> tuple[SourceRef, ...]:
        """None: the values come from files beside the checkpoint."""
        return ()

    def read(self, start: int, stop: int) -> np.ndarray:
        """Values [start, stop)."""
        return self.values[start:stop].astype(np.int32)


def decode(rows: RowSource) -> RowSource:
    """`out = values(rows)`: quantized words become float32 values; other tensors stay as they are."""
    return Decoded(rows, rows.shape) if isinstance(rows, WordSource) else rows


def transformed_rows(rows: RowSource) -> RowSource | None:
    """What a transform of this module was made of; None for anything else."""
    return rows.rows if isinstance(rows, _Transformed) else None


def _refuse_words(rows: RowSource, what: str) -> None:
    if isinstance(rows, WordSource):
        raise RecipeError(f"{what} does not work on quantized words: {describe(rows)} is {rows.format}")


def reshape(rows: RowSource, shape: Sequence[int]) -> RowSource:
    """`out.flat[i] = rows.flat[i]`.

    Raises:
        RecipeError: another number of elements, an extent below one, or quantized words.
    """
    shape = tuple(shape)
    _refuse_words(rows, "reshape")
    if any(extent < 1 for extent in shape) or math.prod(shape) != math.prod(rows.shape):
        raise RecipeError(f"cannot reshape {describe(rows)} to {list(shape)}: the number of elements differs")
    if shape == rows.shape:
        return rows
    # Elements in one file are read by the new rows at once; a long first row, such as [1, n, k], is never read whole.
    return replace(rows, shape=shape) if isinstance(rows, StoredTensor) else Reshaped(rows, shape)


def squeeze(rows: RowSource, axis: int) -> RowSource:
    """Drop one axis of extent 1.

    Raises:
        RecipeError: no such axis, or its extent is not 1.
    """
    if not 0 <= axis < len(rows.shape) or rows.shape[axis] != 1:
        raise RecipeError(f"cannot squeeze axis {axis} of {describe(rows)}; its extent must be 1")
    return reshape(rows, rows.shape[:axis] + rows.shape[axis + 1 :])


def transpose(rows: RowSource, axes: Sequence[int]) -> RowSource:
    """`out = transpose(rows, axes)`: axis i of the result is axis axes[i] of the input.

    Raises:
        RecipeError: `axes` is not a permutation of the axes, or quantized words.
    """
    axes = tuple(axes)
    _refuse_words(rows, "transpose")
    if sorted(axes) != list(range(len(rows.shape))):
        raise RecipeError(f"transpose {list(axes)} is no permutation of the axes of {describe(rows)}")
    if axes == tuple(range(len(axes))):
        return rows
    return Transposed(rows, tuple(rows.shape[axis] for axis in axes), axes)


def widen(rows: RowSource) -> RowSource:
    """`out = float32(rows)`, exact: BF16 and F16 only; F32 stays as it is.

    Raises:
        RecipeError: another element type, or quantized words.
    """
    _refuse_words(rows, "widen")
    if rows.dtype == "F32":
        return rows
    if rows.dtype not in ("BF16", "F16"):
        raise RecipeError(f"widen takes BF16, F16 or F32, but {describe(rows)} was given")
    return Widened(rows, rows.shape)
