"""Reading the golden artifacts: objects, payloads, planes and rows, against the oracle and the golden digests."""

import hashlib

import numpy as np
import pytest

from ninfer_jax.container import Identity, ResourceObject, TensorObject, open_artifact
from ninfer_jax.errors import ArtifactError, LayoutError
from ninfer_jax.layouts import planes_to_payload
from tests.container.helpers import VALID, valid_entry, valid_oracle, valid_path
from tests.oracle import layouts as oracle_layouts

NINE = "valid/v2_nine_formats.ninfer"


@pytest.mark.parametrize("file", VALID)
def test_directory_and_payloads_match_the_index(file):
    entry = valid_entry(file)
    with open_artifact(valid_path(file)) as artifact:
        assert artifact.revision == entry["version"]
        assert artifact.identity == Identity(entry["model_id"], entry["weights_id"])
        assert (artifact.payload_offset, artifact.file_size) == (entry["payload_offset"], entry["file_bytes"])
        assert len(artifact) == len(entry["objects"])
        for stored, expected in zip(artifact, entry["objects"], strict=True):
            assert stored.entry() == {key: value for key, value in expected.items() if not key.endswith("sha256")}
            assert artifact[expected["name"]] is stored
            assert hashlib.sha256(artifact.payload(stored.name).tobytes()).hexdigest() == expected["payload_sha256"]


@pytest.mark.parametrize("file", VALID)
def test_planes_hold_the_payload(file):
    oracle = valid_oracle(file)
    with open_artifact(valid_path(file)) as artifact:
        for name, tensor in artifact.tensors.items():
            planes = artifact.planes(name)
            for part in planes if isinstance(planes, tuple) else (planes,):
                assert part is None or (isinstance(part, np.ndarray) and not part.flags.writeable)
                assert part is None or not part.flags.owndata
            assert planes_to_payload(planes, tensor.format, tensor.shape).tobytes() == oracle.payload(name)


@pytest.mark.parametrize("name", ["w/q4", "w/q5", "w/q6", "w/w8", "w/fp8"])
def test_rows_are_standalone_payloads(name):
    with open_artifact(valid_path(NINE)) as artifact:
        tensor = artifact.tensors[name]
        words = oracle_layouts.unpack(valid_oracle(NINE).payload(name), tensor.format, tensor.shape)
        for start, stop in [(0, 1), (1, 3), (0, 3)]:
            planes = artifact.row_planes(name, start, stop)
            payload = planes_to_payload(planes, tensor.format, (stop - start, tensor.shape[1]))
            assert payload.tobytes() == oracle_layouts.pack(tuple(part[start:stop] for part in words), tensor.format)


def test_rows_of_the_other_kinds():
    with open_artifact(valid_path(NINE)) as artifact:
        np.testing.assert_array_equal(artifact.row_planes("d/bf16", 1, 3), artifact.planes("d/bf16")[1:3], strict=True)
        whole = artifact.row_planes("w/nvfp4", 0, 128)
        assert planes_to_payload(whole, "NVFP4", (128, 64)).tobytes() == artifact.payload("w/nvfp4").tobytes()
        with pytest.raises(LayoutError):
            artifact.row_planes("w/nvfp4", 0, 64)
        with pytest.raises(LayoutError):
            artifact.row_planes("w/q4", 2, 4)


def test_views_outlive_the_artifact():
    with open_artifact(valid_path(NINE)) as artifact:
        view = artifact.payload("w/q4")
        assert not view.flags.writeable
        assert not view.flags.owndata
    assert hashlib.sha256(view.tobytes()).hexdigest() == valid_entry(NINE)["objects"][4]["payload_sha256"]
    with pytest.raises(ArtifactError, match="closed"):
        artifact.payload("w/q4")
    artifact.close()


def test_release_keeps_views_valid():
    with open_artifact(valid_path(NINE)) as artifact:
        view = artifact.payload("w/nvfp4")
        before = view.tobytes()
        artifact.release("w/nvfp4")
        assert view.tobytes() == before


def test_lookup():
    with open_artifact(valid_path(NINE)) as artifact:
        assert "w/q4" in artifact
        assert "w/q7" not in artifact
        assert isinstance(artifact["w/q4"], TensorObject)
        assert isinstance(artifact["frontend/tokenizer.json"], ResourceObject)
        assert list(artifact.resources) == ["frontend/tokenizer.json"]
        assert list(artifact.tensors) == [item.name for item in artifact if item.kind == "tensor"]
        assert "demo-model/mixed" in repr(artifact)
        with pytest.raises(ArtifactError, match="did you mean 'w/q4'"):
            artifact["w/q4 "]
        with pytest.raises(ArtifactError, match="resource"):
            artifact.planes("frontend/tokenizer.json")
