"""The Python interface as its README shows it: a recipe by name, and objects made by hand."""

import re
from pathlib import Path

import numpy as np
import pytest

import ninfer_jax.recipes
from ninfer_jax.container import open_artifact
from tests.checkpoints.files import write_checkpoint
from tests.convert.samples import awkward, grouped_payload


def test_the_documented_program_runs_and_stores_the_right_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    a, b = awkward((40, 256), 1), awkward((200, 256), 2)
    write_checkpoint(tmp_path / "model", {"a.weight": a, "b.weight": b}, shards=2)
    monkeypatch.chdir(tmp_path)
    readme = (Path(ninfer_jax.recipes.__file__).parent / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(compile(program, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip() == "4.25"
    with open_artifact(tmp_path / "model.ninfer") as artifact:
        assert artifact.payload("b.weight").tobytes() == grouped_payload(b, "Q4G64_F16S")
    with open_artifact(tmp_path / "fused.ninfer") as artifact:
        assert tuple(artifact.identity) == ("my-model", "mine")
        fused = np.concatenate((a, b[:128]))
        assert artifact.payload("fused").tobytes() == grouped_payload(fused, "Q4G64_F16S")
