"""Conversion reports: measured errors, totals, digests, no local path; and the page drawn from them."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from ninfer_jax.convert import ConversionReport, convert, write_html
from ninfer_jax.convert.totals import ErrorTotals
from ninfer_jax.errors import ConversionError
from tests.checkpoints.files import write_checkpoint
from tests.convert.conftest import Sample
from tests.convert.samples import tensors
from tests.oracle import container
from tests.oracle.tensors import decode_payload


@pytest.fixture
def written(sample: Sample, tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    sample.report.write(path)
    return path


def entry(report: ConversionReport, name: str):
    return next(tensor for tensor in report.tensors if tensor.name == name)


@pytest.mark.parametrize("name", ["Q4.f32", "Q6.wide", "W8.bf16", "fp8.f32", "nvfp4.f32"])
def test_errors_are_those_of_the_stored_words(sample: Sample, name: str):
    artifact = container.read(sample.artifact.read_bytes())
    values = tensors()[name].astype(np.float64)
    found = entry(sample.report, name)
    words = decode_payload(artifact.payload(name), found.format, values.shape)
    difference = values - words.view(np.float32).astype(np.float64)
    expected = 10 * np.log10((values**2).sum() / (difference**2).sum())
    assert found.sqnr_db == pytest.approx(expected, abs=1e-3)
    assert found.max_error == pytest.approx(np.abs(difference).max(), rel=1e-6)


def test_copied_words_have_no_error_and_casts_none_measured(sample: Sample):
    assert entry(sample.report, "kept/norm").max_error == 0
    assert entry(sample.report, "cast.f32").max_error is None
    assert entry(sample.report, "Q4.f32").encoder == "MAXABS_F16_RECIP_RNE_V1"


def test_files_stored_as_resources_are_among_the_sources(tmp_path: Path):
    folder = write_checkpoint(tmp_path / "model", {"w": np.ones((4, 64), np.float32)}, {"hidden_size": 64})
    report = convert(folder, tmp_path / "o.ninfer", "uniform-q4")
    data = (folder / "config.json").read_bytes()
    assert report.sources[-1] == {
        "file": "config.json",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    assert len(report.sources) == 2


def test_the_file_holds_names_digests_and_totals_but_no_path(sample: Sample, written: Path):
    text = written.read_text()
    assert str(sample.checkpoint.parent) not in text
    body = json.loads(text)
    for source in body["sources"]:
        data = (sample.checkpoint / source["file"]).read_bytes()
        assert source == {
            "file": source["file"],
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
    assert len(body["sources"]) == 3
    assert sum(entry["nbytes"] for entry in body["totals"].values()) == sum(
        tensor["nbytes"] for tensor in body["tensors"]
    )
    assert body["dropped"] == ["unwanted"]
    assert set(body["stage_seconds"]) == {"read", "compute", "write", "wall"}


def test_sums_that_say_nothing_have_no_ratio():
    assert ErrorTotals(0.0, 0.0, 0.0).sqnr_db is None
    assert ErrorTotals(1.0, 0.0, 0.0).sqnr_db is None
    assert ErrorTotals(float("inf"), 1.0, 1.0).sqnr_db is None
    assert ErrorTotals(100.0, 1.0, 1.0).sqnr_db == pytest.approx(20)


def test_the_page_stands_alone_and_names_every_tensor(sample: Sample, written: Path, tmp_path: Path):
    pytest.importorskip("matplotlib")
    page = tmp_path / "report.html"
    write_html(written, page)
    text = page.read_text()
    assert "<script" not in text
    assert "src=" not in text
    assert 'href="http' not in text
    for tensor in sample.report.tensors:
        assert tensor.name in text
        if tensor.sqnr_db is not None:
            assert f"<title>{tensor.name} ({tensor.format}): {tensor.sqnr_db:.2f} dB" in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    with pytest.raises(ConversionError, match="--force"):
        write_html(written, page)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"report": 1}', '{"report": 99}'])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(ConversionError):
        write_html(path, tmp_path / "page.html")
    with pytest.raises(ConversionError, match="cannot be read"):
        write_html(tmp_path / "absent.json", tmp_path / "page.html")
