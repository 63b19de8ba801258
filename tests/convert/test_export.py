"""Exported safetensors files: read by the safetensors package, equal to the oracle's decoding bit for bit."""

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from ninfer_jax.convert import export_safetensors
from ninfer_jax.errors import ArtifactError, ConversionError
from tests.convert.conftest import Sample
from tests.oracle import container
from tests.oracle.tensors import decode_payload


@pytest.fixture(scope="module")
def exported(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "sample.safetensors"
    done = export_safetensors(sample.artifact, out, block_bytes=1 << 13)
    assert done.tensors == 17
    assert done.nbytes == out.stat().st_size
    return out


def test_every_tensor_equals_the_oracle(sample: Sample, exported: Path):
    artifact = container.read(sample.artifact.read_bytes())
    with safe_open(exported, "numpy") as file:
        assert set(file.keys()) == {entry["name"] for entry in artifact.objects}
        for entry in artifact.objects:
            name, shape = entry["name"], tuple(entry["shape"])
            part = file.get_slice(name)
            assert tuple(part.get_shape()) == shape
            assert part.get_dtype() == {"BF16": "BF16", "I32": "I32"}.get(entry["format"], "F32")
            if entry["format"] in ("BF16", "I32", "FP32"):
                continue
            words = decode_payload(artifact.payload(name), entry["format"], shape)
            np.testing.assert_array_equal(file.get_tensor(name).view(np.uint32), words.view(np.uint32), err_msg=name)


def test_direct_words_are_kept(sample: Sample, exported: Path):
    artifact = container.read(sample.artifact.read_bytes())
    image = exported.read_bytes()
    for name in ("kept/norm", "kept/bias", "kept/ids", "kept/scalar", "cast.f32"):
        assert artifact.payload(name) in image


def test_an_existing_file_is_kept(sample: Sample, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"precious")
    with pytest.raises(ConversionError, match="--force"):
        export_safetensors(sample.artifact, out)
    assert out.read_bytes() == b"precious"


def test_what_lies_beside_the_destination_is_kept(sample: Sample, tmp_path: Path):
    """An unfinished conversion, or an artifact of such a name, is neither written over nor removed."""
    unfinished = tmp_path / ".out.safetensors.partial"
    unfinished.write_bytes(sample.artifact.read_bytes())
    export_safetensors(unfinished, tmp_path / "out.safetensors", block_bytes=1 << 20)
    assert unfinished.read_bytes() == sample.artifact.read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_failed_export_leaves_nothing(tmp_path: Path):
    (tmp_path / "bad.ninfer").write_bytes(b"NINFER\0\x02")
    with pytest.raises(ArtifactError):
        export_safetensors(tmp_path / "bad.ninfer", tmp_path / "out.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.ninfer"]
