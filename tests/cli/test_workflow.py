"""A user's way through the commands, each in a process of its own: convert, inspect, verify, export, diff, report."""

import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints.files import write_checkpoint
from tests.cli.commands import run
from tests.convert.samples import grouped_payload
from tests.oracle import container


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted checkpoint with its report."""
    folder = tmp_path_factory.mktemp("workflow")
    rng = np.random.default_rng(5)
    weights = {
        "a.weight": rng.standard_normal((96, 192)).astype(np.float32),
        "a.bias": rng.standard_normal(96).astype(np.float32),
        "b.weight": rng.standard_normal((64, 320)).astype(np.float32),
    }
    for name, values in weights.items():
        np.save(folder / f"{name}.npy", values)
    write_checkpoint(folder / "model", weights, shards=2)
    done = run(
        "convert", folder / "model", folder / "m.ninfer", "--recipe", "uniform-q5", "--report", folder / "r.json"
    )
    assert done.returncode == 0, done.stderr
    assert "Q5G64_F16S" in done.stdout
    assert "wrote m.ninfer" in done.stdout
    assert "converting: 100%" in done.stderr
    return folder


def test_the_artifact_holds_the_oracles_words(folder: Path):
    artifact = container.read((folder / "m.ninfer").read_bytes())
    for path in folder.glob("*.npy"):
        name, values = path.stem, np.load(path)
        expected = grouped_payload(values, "Q5G64_F16S") if values.ndim == 2 else values.tobytes()
        assert artifact.payload(name) == expected


def test_inspect_lists_objects_as_text_and_json(folder: Path):
    text = run("inspect", folder / "m.ninfer", "--objects")
    assert text.returncode == 0
    assert "revision 2, 3 tensors, 0 resources" in text.stdout
    assert "b.weight" in text.stdout
    body = json.loads(run("inspect", folder / "m.ninfer", "--objects", "--json").stdout)
    assert [entry["name"] for entry in body["objects"]] == ["a.weight", "a.bias", "b.weight"]
    assert body["totals"]["Q5G64_F16S"]["tensors"] == 2


def test_verify_passes_and_names_a_planted_difference(folder: Path, tmp_path: Path):
    source = ("--source", folder / "model", "--recipe", "uniform-q5")
    done = run("verify", folder / "m.ninfer", *source)
    assert done.returncode == 0, done.stderr
    assert "valid" in done.stdout
    assert "bit for bit" in done.stdout
    image = bytearray((folder / "m.ninfer").read_bytes())
    image[container.read(bytes(image)).payload_offset] ^= 1
    (tmp_path / "bad.ninfer").write_bytes(image)
    done = run("verify", tmp_path / "bad.ninfer", *source, "--quiet")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: tensor 'a.weight' differs from its source: codes[0, 0]")
    assert done.stderr.count("\n") == 1


def test_export_diff_and_report(folder: Path, tmp_path: Path):
    done = run("export", folder / "m.ninfer", tmp_path / "m.safetensors", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run("diff", folder / "m.ninfer", folder / "m.ninfer")
    assert done.returncode == 0
    pytest.importorskip("matplotlib")
    done = run("report", folder / "r.json", "--html", tmp_path / "r.html")
    assert done.returncode == 0, done.stderr
    assert "a.weight" in (tmp_path / "r.html").read_text()


def test_a_module_of_the_package_runs_from_a_zip(folder: Path, tmp_path: Path):
    """Built-in recipes are found through the import system, not by file paths."""
    root = Path(__file__).parents[2]
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as archive:
        for path in (root / "ninfer_jax").rglob("*"):
            if path.suffix in (".py", ".toml"):
                archive.write(path, path.relative_to(root))
    done = run(
        "convert", folder / "model", "--dry-run", "--recipe", "uniform-q6", PYTHONPATH=str(tmp_path / "package.zip")
    )
    assert done.returncode == 0, done.stderr
    assert "Q6G64_F16S" in done.stdout
    assert sys.version_info >= (3, 11)
