"""The roofline plot: both images are written, and points stand where the equation puts them."""

import xml.etree.ElementTree

import pytest
from click.testing import CliRunner

from benchmarks.harness import Timing
from benchmarks.records import timed_record, write_results
from benchmarks.roofline import main, plot, points, roof
from tests.benchmarks.samples import product, run_of, two_implementations


def test_the_roof_is_bandwidth_then_matrix_rate():
    results = run_of()
    assert [roof(results, x) for x in (1, 10, 100)] == [1e10, 1e11, 1e11]


def test_only_records_with_bytes_and_operations_are_points():
    moved = timed_record("load", "a", "b", Timing(1, 1), work=1, unit="x", nbytes=9)
    assert points(run_of(moved, product("ninfer-jax", 1e-3))) == [product("ninfer-jax", 1e-3)]


def test_plot_writes_png_and_svg(tmp_path):
    pytest.importorskip("matplotlib")
    png, svg = plot(two_implementations(2e-4, 4e-4), tmp_path / "run.quick")
    assert (png.name, svg.name) == ("run.quick.png", "run.quick.svg")
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_the_command_writes_beside_the_results(tmp_path):
    pytest.importorskip("matplotlib")
    write_results(tmp_path / "run.json", two_implementations(2e-4, 4e-4))
    result = CliRunner().invoke(main, [str(tmp_path / "run.json")])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "run.png", "run.svg"]


def test_a_run_without_products_is_refused(tmp_path):
    pytest.importorskip("matplotlib")
    write_results(tmp_path / "run.json", run_of())
    result = CliRunner().invoke(main, [str(tmp_path / "run.json")])
    assert result.exit_code == 1
    assert "no record has both bytes and operations" in result.output
