"""Results files: what is written is read back; what is no results file says so; floors follow their equation."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.harness import Timing, commit, environment
from benchmarks.records import read_results, timed_record, write_results
from tests.benchmarks.samples import MACHINE, product, run_of, two_implementations


def test_a_run_reads_back_as_it_was_written(tmp_path):
    record = timed_record(
        "load", "8 weights", "gguf", Timing(0.5, 0.25), work=3, unit="objects/s", nbytes=7, figures={"file_bytes": 9}
    )
    results = run_of(record, product("ninfer-jax", 1e-3), missing_peers={"torch": "not installed"}, refusals={"a": "b"})
    write_results(tmp_path / "run.json", results)
    assert read_results(tmp_path / "run.json") == results


def test_the_rate_is_of_the_shortest_round():
    record = timed_record("load", "a", "b", Timing(0.5, 0.25), work=3, unit="objects/s")
    assert (record.seconds, record.best_seconds, record.rate) == (0.5, 0.25, 12)


@pytest.mark.parametrize(
    ("nbytes", "flops", "floor"),
    [(10**6, 4e6, 1e-4), (10**6, 4e8, 4e-3), (0, 0.0, 0.0)],
    ids=["memory", "matrix", "none"],
)
def test_the_floor_is_the_larger_of_memory_and_matrix(nbytes, flops, floor):
    record = timed_record("m", "c", "i", Timing(1, 1e-2), work=1, unit="x", nbytes=nbytes, flops=flops)
    results = run_of(record)
    assert results.floor_seconds(record) == pytest.approx(floor)
    assert results.share_of_floor(record) == pytest.approx(floor / 1e-2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is no results file"),
        ('{"environment": {}, "machine": {}}', "needs environment, machine and records"),
        (json.dumps({"environment": {}, "machine": MACHINE, "records": [{"case": "a"}]}), "another shape"),
        (json.dumps({"environment": {}, "machine": MACHINE, "records": [], "more": 1}), "another shape"),
        (json.dumps({"environment": {}, "machine": {}, "records": []}), "lacks copy_bytes_per_second, matrix_flops"),
    ],
)
def test_what_is_no_results_file_is_refused(tmp_path, text, message):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_results(path)


def test_the_environment_names_device_jax_and_commit():
    found = environment()
    assert {"device", "jax", "python", "commit"} <= found.keys()
    root = Path(__file__).parents[2]
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    head = commit()
    assert head.rstrip("+") == (git.stdout.strip() if git.returncode == 0 else "unknown")


def test_records_are_found_by_benchmark_case_and_implementation():
    assert [record.key for record in two_implementations(1.0, 2.0).records] == [
        ("matmul", "weight m=1", "ninfer-jax"),
        ("matmul", "weight m=1", "xla-bf16"),
    ]
