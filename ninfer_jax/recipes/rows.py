"""Lazy row selections: concatenate, slice, de-interleave heads and gather, on values and on quantized words alike.

Every one of these is a list of row ranges of other tensors, so one node serves them all: a block of its rows is read
from just the ranges that it overlaps. Codes and scales belong to rows, so quantized words pass through bit for bit;
NVFP4 rows also share one divisor, and parts whose divisors differ are refused. Leaves out transforms that move
elements across rows (`ninfer_jax.recipes.elements`). Specification: checkpoint-sources, tensor-formats §3.3.
"""

import hashlib
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Shaped

from ninfer_jax.errors import RecipeError, SourceError
from ninfer_jax.recipes.objects import RowSource, WordSource
from ninfer_jax.sources import SourceRef, row_count
from ninfer_jax.words import GroupedWords, NVFP4Words, QuantizedWords, RowScaledWords


@dataclass(frozen=True, eq=False)
class RowSelection:
    """Rows taken from other tensors; a `RowSource`.

    `out[ends[i] - count[i] + j] = parts[part[i]][first[i] + j]` for j < count[i].

    Attributes:
        parts: the tensors read.
        part: index into `parts` of each range, int64 [ranges].
        first: first row of each range, int64 [ranges].
        ends: rows of the result up to and including each range, int64 [ranges].
    """

    parts: tuple[RowSource, ...]
    part: np.ndarray
    first: np.ndarray
    ends: np.ndarray

    def __repr__(self) -> str:
        """Names parts and ranges without listing them: equal texts mean equal selections."""
        ranges = np.stack((self.part, self.first, self.ends)).astype("<i8").tobytes()
        return f"{type(self).__name__}({self.parts!r}, ranges={hashlib.sha256(ranges).hexdigest()[:32]})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows selected, then the shape of one row."""
        return (int(self.ends[-1]), *self.parts[0].shape[1:])

    @property
    def dtype(self) -> str:
        """The one element type of all parts."""
        return self.parts[0].dtype

    @property
    def sources(self) -> tuple[SourceRef, ...]:
        """Every stored tensor behind it, once."""
        return tuple(dict.fromkeys(ref for part in self.parts for ref in part.sources))

    @property
    def reason(self) -> str | None:
        """Why quantized words behind it are not stored word for word; None where there are none."""
        return next((reason for part in self.parts if (reason := getattr(part, "reason", None))), None)

    @property
    def decodable(self) -> bool:
        """False where nothing decodes the quantized words behind some part."""
        return all(getattr(part, "decodable", True) for part in self.parts)

    def ranges(self, start: int, stop: int) -> list[tuple[RowSource, int, int]]:
        """The (part, start, stop) that make up rows [start, stop), in order.

        Raises:
            SourceError: rows outside the selection.
        """
        if not 0 <= start <= stop <= self.shape[0]:
            raise SourceError(f"rows [{start}, {stop}) of a selection were asked for, which has {self.shape[0]} rows")
        found = []
        index = int(np.searchsorted(self.ends, start, side="right"))
        while start < stop:
            end = min(stop, int(self.ends[index]))
            begin = int(self.ends[index - 1]) if index else 0
            offset = int(self.first[index]) - begin
            found.append((self.parts[self.part[index]], start + offset, end + offset))
            start, index = end, index + 1
        return found or [(self.parts[0], 0, 0)]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Values of rows [start, stop)."""
        blocks = [part.read(first, last) for part, first, last in self.ranges(start, stop)]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


@dataclass(frozen=True, eq=False, repr=False)
class WordSelection(RowSelection):
    """Rows of quantized words of one format; a `WordSource`.

    Attributes:
        format: canonical name of the format of every part.
    """

    format: str

    @property
    def divisor(self) -> int | None:
        """The binary32 word of the divisor that all parts share; None for other formats."""
        return getattr(self.parts[0], "divisor", None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts of the parts for the report."""
        return tuple(dict.fromkeys(note for part in self.parts for note in getattr(part, "notes", ())))

    def read_words(self, start: int, stop: int) -> QuantizedWords:
        """Words of rows [start, stop)."""
        blocks = []
        for part, first, last in self.ranges(start, stop):
            if not isinstance(part, WordSource):
                raise SourceError(f"{part!r} holds no words")
            blocks.append(part.read_words(first, last))
        return blocks[0] if len(blocks) == 1 else _join(blocks)


def _join(blocks: Sequence[QuantizedWords]) -> QuantizedWords:
    codes = np.concatenate([np.asarray(block.codes) for block in blocks])
    scales = np.concatenate([np.asarray(block.scales) for block in blocks])
    first = blocks[0]
    if isinstance(first, NVFP4Words):
        return NVFP4Words(codes, scales, first.divisor)
    return GroupedWords(codes, scales) if isinstance(first, GroupedWords) else RowScaledWords(codes, scales)


def _select(parts: tuple[RowSource, ...], part: Any, first: Any, count: Any) -> RowSelection:
    part, first, count = (np.asarray(values, np.int64) for values in (part, first, count))
    keep = count > 0
    if not keep.any():
        raise RecipeError("a selection of rows is empty; at least one row is needed")
    ends = np.cumsum(count[keep])
    formats = {rows.format if isinstance(rows, WordSource) else None for rows in parts}
    format = formats.pop() if len(formats) == 1 else None
    if format is None:
        return RowSelection(parts, part[keep], first[keep], ends)
    return WordSelection(parts, part[keep], first[keep], ends, format)


def describe(rows: RowSource) -> str:
    """`'name' TYPE [shape]`, for errors: the tensor's own name, or that of the first source and how many more."""
    names = [ref.tensor for ref in rows.sources]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    label = f"{names[0]!r}{more}" if names else "a constant"
    name = getattr(rows, "name", None)
    kind = rows.format if isinstance(rows, WordSource) else rows.dtype
    return f"{repr(name) if name else label} {kind} {list(rows.shape)}"


def _need_rows(rows: RowSource, what: str) -> int:
    if not rows.shape:
        raise RecipeError(f"{what} needs a tensor with rows, but {describe(rows)} is a scalar")
    return row_count(rows.shape)


def concat(*parts: RowSource) -> RowSelection:
    """`out = [parts[0]; parts[1]; ...]` along axis 0.

    Raises:
        RecipeError: parts that differ in element type, row shape or quantized format, or NVFP4 parts whose divisors
            differ, which no common divisor represents.
    """
    if not parts:
        raise RecipeError("concat needs at least one part")
    first = parts[0]
    counts = [_need_rows(part, "concat") for part in parts]
    for part in parts[1:]:
        if part.dtype != first.dtype or part.shape[1:] != first.shape[1:]:
            raise RecipeError(f"cannot concatenate {describe(first)} and {describe(part)}: row shape or type differs")
        if getattr(part, "format", None) != getattr(first, "format", None):
            raise RecipeError(f"cannot concatenate {describe(first)} and {describe(part)}: their formats differ")
        if getattr(part, "divisor", None) != getattr(first, "divisor", None):
            raise RecipeError(
                f"cannot concatenate NVFP4 {describe(first)} and {describe(part)}: their divisors differ, and an NVFP4 "
                "tensor has one; store them apart, or name an encoder"
            )
    return _select(parts, np.arange(len(parts)), np.zeros(len(parts)), counts)


def slice_rows(rows: RowSource, start: int, stop: int) -> RowSelection:
    """`out = rows[start:stop]`.

    Raises:
        RecipeError: not 0 <= start < stop <= rows.
    """
    count, start, stop = _need_rows(rows, "slice"), operator.index(start), operator.index(stop)
    if not 0 <= start < stop <= count:
        raise RecipeError(f"slice [{start}, {stop}) lies outside the {count} rows of {describe(rows)}")
    return _select((rows,), [0], [start], [stop - start])


def deinterleave(rows: RowSource, heads: int, part: int, of: int) -> RowSelection:
    """`out[h * d + i] = rows[(h * of + part) * d + i]`, d = len(rows) / (heads * of): one part of every head, stacked.

    A projection whose heads hold (query rows, gate rows) gives its query with part 0 of 2, its gate with part 1 of 2.

    Raises:
        RecipeError: the rows do not divide into heads * of, or there is no such part.
    """
    count = _need_rows(rows, "deinterleave")
    if heads < 1 or of < 1 or not 0 <= part < of or count % (heads * of):
        raise RecipeError(f"deinterleave: part {part} of {of} in {heads} heads does not divide {describe(rows)}")
    size = count // (heads * of)
    first = (np.arange(heads) * of + part) * size
    return _select((rows,), np.zeros(heads), first, np.full(heads, size))


def gather_rows(rows: RowSource, ids: Shaped[np.ndarray, "..."]) -> RowSelection:
    """`out[i] = rows[ids[i]]`; consecutive ids are read together.

    Raises:
        RecipeError: ids that are not a list of integers, or an id outside the rows.
    """
    count = _need_rows(rows, "gather")
    ids = np.asarray(ids)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise RecipeError(f"gather needs a one-dimensional list of integers, but has {ids.dtype} {list(ids.shape)}")
    outside = (ids < 0) | (ids >= count)
    if outside.any():
        at = int(np.argmax(outside))
        raise RecipeError(f"gather: id {int(ids[at])} (position {at}) is outside the {count} rows of {describe(rows)}")
    ids = ids.astype(np.int64)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(ids) != 1) + 1)) if ids.size else np.zeros(0, np.int64)
    lengths = np.diff(np.append(starts, ids.size))
    return _select((rows,), np.zeros(starts.size), ids[starts], lengths)
