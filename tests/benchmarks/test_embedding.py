"""The embedding benchmark: which gathers take part, what it says of wrong rows, and what the clock is told."""

from types import MappingProxyType

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import bench_embedding, gpu_timing
from benchmarks.bench_embedding import fault_of, gathers_of, make_table, records_of
from benchmarks.cases import WeightCase
from benchmarks.records import OURS
from ninfer_jax.ops.gathers import GATHERS

CASE = WeightCase("tiny head", "q6", 64, 192)


@pytest.fixture(scope="module")
def table():
    return make_table(CASE, CASE.n)


def by_count(timed, ids):
    return bench_embedding.by_the_wall(timed, ids, 1)


def test_a_kernel_that_cannot_run_is_named_with_the_reason(table):
    refusals = {}
    assert list(gathers_of(table, 3, refusals)) == [OURS]
    kernels = [name for name, gather in GATHERS.items() if gather.by_name_only]
    assert list(refusals) == [f"{name}, embedding" for name in kernels]
    assert all(reason.startswith("needs an NVIDIA GPU") for reason in refusals.values())


def test_kernels_that_run_here_are_columns(table, monkeypatch):
    runs = MappingProxyType({name: _Runs(gather) for name, gather in GATHERS.items()})
    monkeypatch.setattr(bench_embedding, "GATHERS", runs)
    assert list(gathers_of(table, 3, {})) == [OURS, "mosaic_gpu", "triton"]


class _Runs:
    def __init__(self, gather):
        self.by_name_only = gather.by_name_only

    def supports(self, gather, device):
        return None


def test_rows_are_compared_bit_for_bit(table):
    take = gathers_of(table, 3, {})[OURS]
    ids = jnp.array([0, 63, 5], jnp.int32)
    rows = take(table.packed, ids)
    assert fault_of(rows, table, ids, rows) == ""
    wrong = fault_of(rows.at[1].multiply(-1), table, ids, rows)
    assert wrong == "1 of 3 rows checked differ from the exact ones, first row 63"
    assert fault_of(rows, table, ids, rows.at[0, 0].add(1)) == (
        "rows outside of those checked differ from the xla implementation's"
    )


def test_wrong_gathers_are_left_out_and_a_wrong_default_ends_the_case(table):
    right, refusals = gathers_of(table, 3, {})[OURS], {}
    wrong = lambda w, ids: right(w, ids[::-1])

    def breaks(w, ids):
        raise RuntimeError("no such device\nmore")

    gathers = {OURS: right, "wrong": wrong, "breaks": breaks}
    records = list(records_of(table, 3, gathers, by_count, refusals, calls=2))
    assert [record.implementation for record in records] == [OURS, "xla-bf16"]
    assert refusals["breaks, tiny head [64,192] q6 tokens=3"] == "RuntimeError: no such device"
    assert "rows checked differ" in refusals["wrong, tiny head [64,192] q6 tokens=3"]
    assert records[0].nbytes == 3 * (table.packed.nbytes // 64) + 2 * 3 * 192
    with pytest.raises(ValueError, match=r"tokens=3: \d of 3 rows checked differ"):
        list(records_of(table, 3, {OURS: wrong}, by_count, {}, calls=2))


def test_one_that_the_clock_fails_on_costs_the_others_nothing(table):
    take, refusals = gathers_of(table, 3, {})[OURS], {}

    class Clock:
        name = "fails once"
        called = 0

        def __call__(self, program, arguments, calls):
            self.called += 1
            if self.called == 1:
                raise RuntimeError("CUPTI recorded no kernel")
            return 6.0

    clock = Clock()
    time_all = lambda timed, ids: bench_embedding.by_the_device(timed, ids, clock, 0)
    [record] = records_of(table, 3, {OURS: take}, time_all, refusals, calls=2)
    assert (record.implementation, record.seconds) == ("xla-bf16", 3.0)
    assert refusals == {f"{OURS}, {table.title(3)}": "RuntimeError: CUPTI recorded no kernel"}


def test_the_sweep_is_taken_off():
    class Clock:
        name = "counts"

        def __call__(self, program, arguments, calls):
            results = program(*arguments)
            assert calls == 1
            return 10.0 if isinstance(results, tuple) else 4.0

    take = lambda table, ids: table[ids]
    inputs = [jnp.array([0]), jnp.array([1])]
    assert gpu_timing.seconds_between_sweeps(Clock(), take, jnp.arange(4), inputs, 64) == 3.0
    assert gpu_timing.seconds_between_sweeps(Clock(), take, jnp.arange(4), inputs, 0) == 5.0

    class Slow(Clock):
        def __call__(self, program, arguments, calls):
            return 4.0

    with pytest.raises(RuntimeError, match="the sweep alone no less"):
        gpu_timing.seconds_between_sweeps(Slow(), take, jnp.arange(4), inputs, 64)


def test_other_rows_every_call(table):
    asked = []

    def take(w, ids):
        asked.append(1)
        return gathers_of(table, 3, {})[OURS](w, ids)

    seen = {}

    def time_all(timed, ids):
        seen["ids"] = [np.asarray(one) for one in ids]
        return by_count(timed, ids)

    list(records_of(table, 3, {OURS: take}, time_all, {}, calls=4))
    assert len({one.tobytes() for one in seen["ids"]}) == 4
    assert len(asked) == 1  # one program for all calls
