"""The pipeline: order, bounded queues, and the first error of any stage."""

import threading

import pytest

from ninfer_jax.convert.stages import Pipeline, StageTimes


def steps(log: list[str]) -> Pipeline:
    return Pipeline(
        read=lambda item: log.append(f"read {item}") or item * 10,
        launch=lambda item, data: data + 1,
        collect=lambda item, pending: pending + 1,
        write=lambda item, result: log.append(f"write {item} {result}"),
    )


def test_items_are_written_in_order_with_what_the_stages_made():
    log: list[str] = []
    times = steps(log).run(range(5))
    assert [entry for entry in log if entry.startswith("write")] == [f"write {i} {10 * i + 2}" for i in range(5)]
    assert times.wall > 0
    assert min(times.read, times.compute, times.write) > 0


def test_nothing_to_do_is_fine():
    log: list[str] = []
    steps(log).run([])
    assert log == []


@pytest.mark.parametrize("stage", ["read", "launch", "collect", "write"])
def test_the_error_of_a_stage_stops_the_run(stage: str):
    log: list[str] = []
    pipeline = steps(log)
    original = getattr(pipeline, stage)

    def fail(item: int, *rest: int) -> object:
        if item == 3:
            raise KeyError(stage)
        return original(item, *rest)

    setattr(pipeline, stage, fail)
    before = threading.active_count()
    with pytest.raises(KeyError, match=stage):
        pipeline.run(range(1000))
    assert threading.active_count() == before
    assert len(log) < 40


def test_reading_stays_a_few_items_ahead():
    gate = threading.Event()
    ahead: list[int] = []

    def write(item: int, result: int) -> None:
        if item == 0:
            gate.wait(5)

    most = [0]

    def launch(item: int, data: None) -> None:
        if not gate.is_set():
            most.append(len(ahead))

    pipeline = Pipeline(lambda item: ahead.append(item), launch, lambda i, p: p, write, depth=1)
    timer = threading.Timer(0.3, gate.set)
    timer.start()
    pipeline.run(range(100))
    timer.join()
    assert max(most) <= 8
    assert len(ahead) == 100


def test_times_of_processes_add_up_except_for_the_wall():
    total = StageTimes(1.0, 2.0, 3.0, 10.0)
    total.add(StageTimes(1.0, 1.0, 1.0, 12.0))
    assert (total.read, total.compute, total.write, total.wall) == (2, 3, 4, 12)
