"""`python -m benchmarks.compare`: ratios, shares of the floor, and what only one file has."""

import pytest
from click.testing import CliRunner

from benchmarks.compare import differences, main, only_in, pair_up
from benchmarks.records import write_results
from tests.benchmarks.samples import MACHINE, product, run_of, two_implementations


def _run(tmp_path, a, b):
    for name, results in (("a.json", a), ("b.json", b)):
        write_results(tmp_path / name, results)
    return CliRunner().invoke(main, [str(tmp_path / "a.json"), str(tmp_path / "b.json")])


def test_ratios_floors_and_peers_of_each_run():
    ours, peer = pair_up(two_implementations(4e-4, 8e-4), two_implementations(2e-4, 8e-4))
    assert ours.ratio == pytest.approx(2)
    assert ours.floors == pytest.approx((0.25, 0.5))
    assert ours.peers["xla-bf16"] == pytest.approx((2, 4))
    assert peer.ratio == pytest.approx(1)
    assert peer.peers == {}


def test_a_faster_machine_does_not_pass_for_a_better_kernel():
    fast = {name: 2 * value for name, value in MACHINE.items()}
    (pair,) = pair_up(run_of(product("ninfer-jax", 4e-4)), run_of(product("ninfer-jax", 2e-4), machine=fast))
    assert pair.ratio == pytest.approx(2)
    assert pair.floors[0] == pytest.approx(pair.floors[1])


def test_environment_and_machine_that_differ_are_told():
    other = run_of(environment={"commit": "def", "device": "cpu", "jax": "0.12.0"})
    lines = differences(run_of(), other)
    assert lines[:2] == ["commit: abc -> def", "jax: 0.10.2 -> 0.12.0"]


def test_the_command_prints_pairs_and_what_only_one_file_has(tmp_path):
    extra = product("ninfer-jax", 1e-3, case="weight m=16")
    result = _run(tmp_path, two_implementations(4e-4, 8e-4), run_of(product("ninfer-jax", 2e-4), extra))
    assert result.exit_code == 0, result.output
    assert "x2.000" in result.output
    assert "25.0% -> 50.0%" in result.output
    assert "only in A: matmul · weight m=1 · xla-bf16" in result.output
    assert "only in B: matmul · weight m=16 · ninfer-jax" in result.output


def test_files_with_nothing_in_common_are_refused(tmp_path):
    result = _run(tmp_path, run_of(product("ninfer-jax", 1)), run_of(product("torch", 1)))
    assert result.exit_code == 1
    assert "no record in common" in result.output


def test_a_file_that_is_no_results_file_is_one_line(tmp_path):
    (tmp_path / "a.json").write_text("nothing")
    write_results(tmp_path / "b.json", run_of())
    result = CliRunner().invoke(main, [str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert result.exit_code == 1
    assert "is not JSON" in result.output
    assert "Traceback" not in result.output


def test_only_in_keeps_the_order_of_the_file():
    a = two_implementations(1, 1)
    assert only_in(a, run_of()) == [record.key for record in a.records]
