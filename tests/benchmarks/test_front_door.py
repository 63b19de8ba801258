"""`python -m benchmarks`: the list, the results file, and that nothing left out goes unnamed."""

import importlib
import json

import pytest
from click.testing import CliRunner

from benchmarks import machine, peers, suite
from benchmarks.__main__ import main
from benchmarks.harness import Timing
from benchmarks.records import read_results, timed_record
from benchmarks.suite import BENCHMARKS, Benchmark
from tests.benchmarks.samples import MACHINE


def tiny(settings):
    """A benchmark that measures nothing; it tells which peers it was given, and asks one that fails."""

    def fails():
        raise RuntimeError("no such device\nmore")

    kept = peers.accepted({"broken": fails, "works": lambda: 1}, "tiny case", settings.refusals)
    for name in ("ninfer-jax", *settings.peers, *kept):
        yield timed_record("tiny", "tiny case", name, Timing(1.0, 0.5), work=1, unit="calls/s", nbytes=10)


@pytest.fixture
def tiny_suite(monkeypatch):
    function = f"{__name__}:tiny"
    entries = {
        "tiny": Benchmark("tiny", "nothing", function, peers=("present", "absent", "unimportable")),
        "tiny-gpu": Benchmark("tiny-gpu", "nothing", function, needs_gpu=True),
    }
    known = {
        "present": peers.Peer("present", "json"),
        "absent": peers.Peer("absent", "no_module_of_this_name"),
        "unimportable": peers.Peer("unimportable", "tests.benchmarks.unimportable"),
    }
    # The front door binds the mapping when it is imported; its module is reached past the name of the command.
    monkeypatch.setattr(importlib.import_module("benchmarks.__main__"), "BENCHMARKS", entries)
    monkeypatch.setattr(peers, "PEERS", known)
    monkeypatch.setattr(machine, "measure_machine", lambda: dict(MACHINE))


def test_list_names_every_benchmark_and_peer():
    result = CliRunner().invoke(main, ["--list"])
    assert result.exit_code == 0
    for one in BENCHMARKS.values():
        assert one.name in result.output
        assert all(peer in result.output for peer in one.peers)


def test_every_entry_leads_to_a_function_and_known_peers():
    for one in suite.BENCHMARKS.values():
        module, _, name = one.function.partition(":")
        assert callable(getattr(importlib.import_module(module), name))
        assert set(one.peers) <= peers.PEERS.keys()


def test_a_run_writes_records_and_names_what_was_left_out(tiny_suite, tmp_path):
    result = CliRunner().invoke(main, ["--json", str(tmp_path / "run.json")])
    assert result.exit_code == 0, result.output
    assert "missing peer absent: not installed: python3 -m pip install absent" in result.output
    assert "missing peer unimportable: does not import: OSError: a library is missing" in result.output
    assert "left out tiny-gpu: needs a GPU" in result.output
    assert "left out broken, tiny case: RuntimeError: no such device" in result.output
    results = read_results(tmp_path / "run.json")
    assert [r.implementation for r in results.records] == ["ninfer-jax", "present", "works"]
    assert set(results.missing_peers) == {"absent", "unimportable"}
    assert {"commit", "device", "jax"} <= json.loads((tmp_path / "run.json").read_text())["environment"].keys()


def broken(settings):
    """A benchmark that measures once and then fails."""
    yield timed_record("broken", "first case", "ninfer-jax", Timing(1.0, 0.5), work=1, unit="calls/s")
    raise ValueError("wrong product\nmore")


def test_one_that_fails_costs_the_others_nothing(tiny_suite, tmp_path):
    entries = importlib.import_module("benchmarks.__main__").BENCHMARKS
    first = {"broken": Benchmark("broken", "nothing", f"{__name__}:broken")}
    entries |= {**first, "after": Benchmark("after", "nothing", f"{__name__}:tiny")}
    result = CliRunner().invoke(main, ["broken", "after", "--json", str(tmp_path / "run.json")])
    assert result.exit_code == 1
    assert "failed: broken" in result.output
    results = read_results(tmp_path / "run.json")
    assert [r.benchmark for r in results.records] == ["broken", "tiny", "tiny"]
    assert results.refusals["broken"] == "failed: ValueError: wrong product"


def interrupted(settings):
    """A benchmark that measures once and is then interrupted."""
    yield timed_record("interrupted", "first case", "ninfer-jax", Timing(1.0, 0.5), work=1, unit="calls/s")
    raise KeyboardInterrupt


def test_an_interruption_leaves_what_was_measured(tiny_suite, tmp_path):
    entries = importlib.import_module("benchmarks.__main__").BENCHMARKS
    entries["interrupted"] = Benchmark("interrupted", "nothing", f"{__name__}:interrupted")
    result = CliRunner().invoke(main, ["interrupted", "tiny", "--json", str(tmp_path / "run.json")])
    assert result.exit_code == 1
    assert [r.benchmark for r in read_results(tmp_path / "run.json").records] == ["interrupted"]


def test_names_select_and_repeat_once(tiny_suite):
    result = CliRunner().invoke(main, ["tiny", "tiny"])
    assert result.exit_code == 0, result.output
    assert result.output.count("tiny case │ ninfer-jax") == 1
    assert "tiny-gpu" not in result.output


def test_an_unknown_name_is_refused_with_the_known_ones(tiny_suite):
    result = CliRunner().invoke(main, ["matmull"])
    assert result.exit_code == 2
    assert "no benchmark matmull; there are tiny, tiny-gpu" in result.output


def test_a_missing_folder_is_told_before_anything_runs(tiny_suite, tmp_path):
    result = CliRunner().invoke(main, ["tiny", "--json", str(tmp_path / "none" / "run.json")])
    assert result.exit_code == 2
    assert "is no folder" in result.output
    assert "tiny:" not in result.output
