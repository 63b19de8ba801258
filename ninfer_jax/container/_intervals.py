"""Merged half-open integer intervals: which bytes of a payload have been written."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Intervals:
    """A set of integers kept as disjoint, non-adjacent, ascending intervals `[start, stop)`.

    Adding is a binary search; a payload written front to back stays one interval. Not thread-safe.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, start: int, stop: int) -> None:
        """Add `[start, stop)`, merging everything it touches; empty intervals change nothing."""
        if start >= stop:
            return
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def gaps(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The parts of `[start, stop)` that are not in the set, ascending."""
        cursor = start
        for index in range(bisect_right(self._stops, start), len(self._starts)):
            if self._starts[index] >= stop:
                break
            if self._starts[index] > cursor:
                yield cursor, self._starts[index]
            cursor = self._stops[index]
        if cursor < stop:
            yield cursor, stop
