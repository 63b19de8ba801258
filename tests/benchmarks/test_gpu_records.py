"""bench_matmul_gpu's file is a results file: the figures of a case and of XLA's products, and what was not timed."""

import dataclasses

import pytest

from benchmarks import bench_matmul_gpu as bench, gpu_checks, gpu_timing
from benchmarks.records import Results, read_results
from pallas_kernels import H100

RESULT = bench.Result(
    name="tiny",
    kind="q4",
    n=128,
    k=256,
    m=2,
    relative_error=1e-3,
    microseconds=10.0,
    bytes_per_second=2e9,
    copy_fraction=0.5,
    matrix_fraction=0.1,
    xla_bf16_ratio=3.0,
    xla_packed_ratio=5.0,
)


def test_a_case_is_three_records():
    ours, xla, packed = bench.records_of(RESULT)
    assert (ours.implementation, xla.implementation, packed.implementation) == ("ninfer-jax", "xla-bf16", "xla-packed")
    assert packed.best_seconds == pytest.approx(5e-5)
    assert packed.nbytes == ours.nbytes
    assert ours.case == xla.case == packed.case == "tiny [128,256] q4 m=2"
    assert ours.best_seconds == pytest.approx(1e-5)
    assert xla.best_seconds == pytest.approx(3e-5)
    assert (ours.nbytes, xla.nbytes) == (20000, 2 * (128 * 256 + 2 * 384))
    assert ours.flops == xla.flops == 2 * 2 * 128 * 256
    assert ours.rate == pytest.approx(2)
    assert ours.figures == {"relative_error": 1e-3}


def test_the_file_of_a_run_reads_back_and_takes_another(monkeypatch, tmp_path):
    machine = {"copy_bytes_per_second": 4e9, "matrix_flops": 1e12}
    other = dataclasses.replace(RESULT, name="other", bytes_per_second=1e9)
    runs = iter(
        [bench.Outcome([RESULT], left=["tiny m=17"]), bench.Outcome([other], failed={"other m=17": "it is a race"})]
    )
    session = gpu_checks.Session(gpu_timing.WallClock(), H100, True)
    monkeypatch.setattr(bench, "open_session", lambda interpret: session)
    monkeypatch.setattr(bench, "machine_of", lambda session, before: machine)
    monkeypatch.setattr(bench, "run", lambda *arguments: next(runs))
    options = ["--interpret", "--append", "--json", str(tmp_path / "gpu.json")]
    bench.main(options)
    with pytest.raises(SystemExit, match=r"other m=17: it is a race"):
        bench.main(options)
    results = read_results(tmp_path / "gpu.json")
    assert results.environment["interpreted"] is True
    assert results.environment["clock"] == "wall"
    assert results.machine["matrix_flops"] == 1e12
    assert results.refusals == {"tiny m=17": "not timed for want of time", "other m=17": "it is a race"}
    assert [record.case.split()[0] for record in results.records] == ["tiny"] * 3 + ["other"] * 3
    assert results.share_of_floor(results.records[0]) == pytest.approx(0.5)


def test_the_machine_is_measured_once_in_a_file(monkeypatch):
    machine = {"copy_bytes_per_second": 4e9, "matrix_flops": 1e12}
    session = gpu_checks.Session(gpu_timing.WallClock(), H100, True)
    monkeypatch.setattr(gpu_timing, "copy_bandwidth", lambda clock, nbytes: 1.0)
    monkeypatch.setattr(gpu_timing, "matrix_rate", lambda clock, size: 2.0)
    here = Results(bench.environment(), machine, ())
    assert bench.machine_of(session, here) == machine
    measured = {"copy_bytes_per_second": 1.0, "matrix_flops": 2.0}
    assert bench.machine_of(session, None) == measured
    assert bench.machine_of(session, dataclasses.replace(here, environment={"device": "another"})) == measured
