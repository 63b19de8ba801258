"""The GPU benchmark and the tuner on a CPU: the same path, tiny weights, kernels interpreted, meaningless times."""

import jax
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import numpy as np

from benchmarks import bench_embedding_gpu, bench_matmul_gpu, gpu_checks, tune
from benchmarks.packed_weights import decode_rows, random_planes
from benchmarks.records import read_results
from pallas_kernels import autotune, visible_hardware
from pallas_kernels.tiling import WEIGHT_KINDS
from tests.pallas_kernels.weights import random_weight

pytestmark = pytest.mark.timeout(240)
OPTIONS = ["--interpret", "--kinds", "q4", "--tokens", "17"]


def test_benchmark_checks_then_times_and_writes_results(tmp_path, capsys):
    results = tmp_path / "results.json"
    bench_matmul_gpu.main([*OPTIONS, "--json", str(results)])
    out = capsys.readouterr().out
    assert out.index("1 cases right") < out.index("tiny q4")
    assert '"interpreted": true' in results.read_text()


def _wrong_rows(monkeypatch):
    monkeypatch.setattr(gpu_checks, "decode_rows", lambda *args: decode_rows(*args) + 1)
    return "relative error"


def _wrong_elsewhere(monkeypatch):
    product = gpu_checks.ops.matmul
    monkeypatch.setattr(gpu_checks.ops, "matmul", lambda *args, **named: product(*args, **named).at[-1, 5].add(9))
    return "outside of the rows checked differ"


def _no_kernel(monkeypatch):
    def refuse(*arguments, **named):
        raise ValueError("no such kernel\nand a long story")

    monkeypatch.setattr(gpu_checks.mosaic_gpu, "matmul", refuse)
    return r"tiny q4 m=17: ValueError: no such kernel$"


@pytest.mark.parametrize("spoil", [_wrong_rows, _wrong_elsewhere, _no_kernel])
def test_benchmark_names_and_does_not_time_what_is_wrong(spoil, monkeypatch, tmp_path, capsys):
    reason, results = spoil(monkeypatch), tmp_path / "results.json"
    with pytest.raises(SystemExit, match=reason):
        bench_matmul_gpu.main([*OPTIONS, "--json", str(results)])
    assert " us " not in capsys.readouterr().out
    written = read_results(results)
    assert (written.records, list(written.refusals)) == ((), ["tiny q4 m=17"])


def test_gathers_are_checked_then_timed_and_appended(tmp_path, capsys):
    results = tmp_path / "results.json"
    bench_embedding_gpu.main(["--interpret", "--json", str(results)])
    bench_embedding_gpu.main(["--interpret", "--json", str(results), "--append"])
    written = read_results(results)
    assert [record.implementation for record in written.records] == ["ninfer-jax", "mosaic_gpu", "xla-bf16"]
    assert written.environment["interpreted"] is True
    assert capsys.readouterr().out.count(" us ") == 6


def test_a_wrong_gather_is_named_and_not_timed(monkeypatch, tmp_path):
    take = bench_embedding_gpu.mosaic_gpu.take_rows
    wrong = lambda *arguments, **named: take(*arguments, **named).at[1, 3].multiply(2)
    monkeypatch.setattr(bench_embedding_gpu.mosaic_gpu, "take_rows", wrong)
    results = tmp_path / "results.json"
    with pytest.raises(SystemExit, match=r"mosaic_gpu, tiny head .* tokens=3: 1 of 3 rows checked differ"):
        bench_embedding_gpu.main(["--interpret", "--json", str(results)])
    assert [record.implementation for record in read_results(results).records] == ["ninfer-jax", "xla-bf16"]


def test_tuner_writes_a_table_that_is_read_back(tmp_path):
    table = tmp_path / "interpreter.json"
    tune.main([*OPTIONS, "--candidates", "1", "--output", str(table)])
    measured = autotune.load_table(table).measurements
    assert [(p.kernel, p.kind, p.m) for p in measured] == [("prefill_sm90", "q4", 17)]


def test_tuner_leaves_out_a_configuration_that_fails(monkeypatch, tmp_path, capsys):
    def refuse(problem, config, session):
        def fails(x, planes):
            raise ValueError("no room for it")

        return fails

    monkeypatch.setattr(tune, "call", refuse)
    tune.main([*OPTIONS, "--candidates", "2", "--output", str(tmp_path / "interpreter.json")])
    out = capsys.readouterr().out
    assert out.count("FAILED, left out: ") == 2
    assert "ValueError: no room for it" in out
    assert "0 problems in" in out


@pytest.mark.parametrize("main", [bench_embedding_gpu.main, bench_matmul_gpu.main, tune.main])
def test_without_a_gpu_there_is_one_line(main):
    if visible_hardware() is not None:
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit, match=r"^no GPU: jax sees none"):
        main([])


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_rows_are_decoded_as_the_oracle_does(kind):
    planes, weight = random_weight(kind, 128, 128)
    rows = np.array([0, 1, 77, 127])
    np.testing.assert_allclose(decode_rows(planes, kind, 128, rows), weight[rows], rtol=2.0**-23)


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_random_planes_are_legal_and_padded_with_zeros(kind):
    k = 192 if kind == "nvfp4" else 130
    planes = random_planes(kind, 640, k)
    values = decode_rows(planes, kind, k, np.arange(640))
    assert np.isfinite(values).all()
    assert np.abs(values).max() > 0
    if kind in ("q4", "q5", "q6", "w8"):
        padded = decode_rows(planes, kind, 256, np.arange(640))
        assert not padded[:, k:].any()
