"""Intervals against a plain set of integers."""

from itertools import pairwise

from hypothesis import given, strategies as st

from ninfer_jax.container._intervals import Intervals

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


@given(ranges=RANGES, window=st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_gaps_are_the_complement(ranges, window):
    intervals, members = Intervals(), set()
    for start, stop in ranges:
        intervals.add(start, stop)
        members |= set(range(start, stop))
    gaps = list(intervals.gaps(*window))
    assert [number for gap in gaps for number in range(*gap)] == sorted(set(range(*window)) - members)
    assert all(start < stop for start, stop in gaps)
    assert all(before[1] < after[0] for before, after in pairwise(gaps))
    assert len(intervals._starts) == sum(number - 1 not in members for number in members)
