"""Which rows of a checkpoint's tensors the objects of a recipe leave out, so that no slice is too short silently.

A recipe may store part of a tensor on purpose, such as an embedding without its padding rows; that is a note, no error.
Leaves out tensors that no object reads at all (`ninfer_jax.recipes.matching`).
"""

import math
from collections.abc import Iterable, Iterator, Mapping

from ninfer_jax.recipes.elements import Decoded, transformed_rows
from ninfer_jax.recipes.objects import RowSource, TensorSpec
from ninfer_jax.recipes.rows import RowSelection
from ninfer_jax.sources import SourceTensor, row_count

_Range = tuple[int, int]


def partly_stored(specs: Iterable[TensorSpec], tensors: Mapping[str, SourceTensor]) -> list[str]:
    """One note for each tensor of which some rows are in no object.

    Args:
        specs: the objects that the recipe makes.
        tensors: the tensors of the checkpoint by name.
    """
    read: dict[str, list[_Range]] = {}
    for spec in specs:
        for name, elements in _elements(spec.rows, [(0, row_count(spec.rows.shape))]):
            read.setdefault(name, []).extend(elements)
    notes = []
    for name, ranges in read.items():
        tensor = tensors.get(name)
        gaps = [] if tensor is None else list(_gaps(ranges, math.prod(tensor.shape)))
        if tensor is not None and gaps:
            width = max(1, math.prod(tensor.shape[1:]))
            rows = [(start // width, -(-stop // width)) for start, stop in gaps]
            count = sum(last - first for first, last in rows)
            first, last = rows[0]
            notes.append(
                f"{name}: {count} of its {row_count(tensor.shape)} rows are in no object, first rows [{first}, {last})"
            )
    return notes


def _elements(rows: RowSource, ranges: list[_Range]) -> Iterator[tuple[str, list[_Range]]]:
    """Names of the tensors behind ranges of rows, each with ranges of its elements in C order."""
    if isinstance(rows, RowSelection):
        parts: dict[int, tuple[RowSource, list[_Range]]] = {}
        for part, first, last in (found for start, stop in ranges for found in rows.ranges(start, stop)):
            parts.setdefault(id(part), (part, []))[1].append((first, last))
        for part, inside in parts.values():
            yield from _elements(part, inside)
    elif isinstance(rows, Decoded):
        yield from _elements(rows.rows, ranges)
    elif (inner := transformed_rows(rows)) is not None:  # moved elements are not followed: all of them count as read
        yield from _elements(inner, [(0, row_count(inner.shape))])
    elif (name := getattr(rows, "name", None)) is not None:
        width = math.prod(rows.shape[1:])
        yield name, [(start * width, stop * width) for start, stop in ranges]


def _gaps(ranges: list[_Range], size: int) -> Iterator[_Range]:
    """The ranges of [0, size) that no range covers."""
    cursor = 0
    for start, stop in (*sorted(ranges), (size, size)):
        if start > cursor:
            yield cursor, start
        cursor = max(cursor, stop)
