"""What an output may replace: never a file that is being read, a folder or a device, forced or not."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from ninfer_jax.cli import main
from ninfer_jax.container import ArtifactWriter, TensorEntry, plan_artifact
from ninfer_jax.convert import Settings, convert, export_safetensors, write_html
from ninfer_jax.convert.outputs import write_text
from ninfer_jax.errors import ArtifactError, ConversionError
from tests.convert.conftest import Sample

FORCE = Settings(overwrite=True)


def weights(sample: Sample) -> Path:
    return next(Path(sample.checkpoint).glob("*.safetensors"))


@pytest.mark.parametrize("kind", ["name", "link", "hard link"])
def test_the_source_is_never_replaced(sample: Sample, tmp_path: Path, kind: str):
    source = weights(sample)
    before, target = source.read_bytes(), tmp_path / "target"
    if kind == "name":
        target = source
    elif kind == "link":
        target.symlink_to(source)
    else:
        target.hardlink_to(source)
    with pytest.raises(ConversionError, match="reads or writes"):
        convert(sample.checkpoint, target, sample.recipe, FORCE)
    assert source.read_bytes() == before


def test_export_and_page_never_replace_what_they_read(sample: Sample, tmp_path: Path):
    with pytest.raises(ConversionError, match="reads or writes"):
        export_safetensors(sample.artifact, sample.artifact, overwrite=True)
    page = tmp_path / "report.json"
    page.write_text("{}")
    with pytest.raises(ConversionError, match="reads or writes"):
        write_html(page, page, overwrite=True)
    assert page.read_text() == "{}"


def test_a_report_is_refused_before_anything_is_converted(sample: Sample, tmp_path: Path):
    out, source = tmp_path / "out.ninfer", weights(sample)
    before = source.read_bytes()
    for report in (out, source, tmp_path, tmp_path / "absent" / "report.json"):
        arguments = ["convert", sample.checkpoint, out, "--recipe", sample.recipe, "--report", report]
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith("error: the ")
        assert result.stderr.count("\n") == 1
        assert list(tmp_path.iterdir()) == []
    assert source.read_bytes() == before


def test_a_pipe_is_not_replaced(sample: Sample, tmp_path: Path):
    pipe, plan = tmp_path / "pipe", plan_artifact(("m", "w"), [TensorEntry("a", (1,), "FP32")])
    os.mkfifo(pipe)
    with pytest.raises(ConversionError, match="a device or a pipe"):
        convert(sample.checkpoint, pipe, sample.recipe, FORCE)
    with pytest.raises(ConversionError, match="a device or a pipe"):
        export_safetensors(sample.artifact, pipe, overwrite=True)
    with pytest.raises(ArtifactError, match="a device or a pipe"):
        ArtifactWriter(pipe, plan, overwrite=True)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_text_appears_whole_and_is_written_through_links(tmp_path: Path):
    target, link = tmp_path / "a.json", tmp_path / "link.json"
    write_text(target, "one", "report")
    link.symlink_to(target)
    write_text(link, "two", "report")
    assert link.is_symlink()
    assert target.read_text() == "two"
    with pytest.raises(UnicodeEncodeError):
        write_text(target, "three \ud800", "report")
    assert target.read_text() == "two"
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "link.json"}
