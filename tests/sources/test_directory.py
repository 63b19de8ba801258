"""Hugging Face folders: shards, their index, and indexes that contradict their shards."""

import json

import numpy as np
import pytest

from ninfer_jax.errors import SourceError
from ninfer_jax.sources import open_checkpoint, open_config
from ninfer_jax.sources.tensor import PositionedFile
from tests.checkpoints import Random, array_of, write_checkpoint, write_safetensors

TENSORS = {f"t{i}": Random((8, 16), seed=i) for i in range(6)}
INDEX = "model.safetensors.index.json"


def read_all(path):
    with open_checkpoint(path) as checkpoint:
        return {name: tensor.read(0, tensor.rows) for name, tensor in checkpoint.tensors.items()}


@pytest.mark.parametrize("shards", [1, 3])
def test_single_file_and_shards_give_the_same(tmp_path, shards):
    write_checkpoint(tmp_path / "c", TENSORS, {"model_type": "x"}, shards)
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert len(checkpoint.files) == shards
        assert checkpoint.name == "c"
        assert checkpoint.config == {"model_type": "x"}
    found = read_all(tmp_path / "c")
    assert list(found) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert found[name].tobytes() == array_of(tensor).tobytes()


def test_one_file_of_another_name(tmp_path):
    write_safetensors(tmp_path / "weights.safetensors", TENSORS)
    assert list(read_all(tmp_path)) == list(TENSORS)
    write_safetensors(tmp_path / "more.safetensors", TENSORS)
    with pytest.raises(SourceError, match="2 safetensors files but no"):
        open_checkpoint(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", {"only": TENSORS["t0"]})
    assert list(read_all(tmp_path)) == ["only"]


def edit_index(folder, change):
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def shard(number):
    return f"model-{number:05d}-of-00003.safetensors"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(t0="../../etc/passwd"), "plain file name"),
        (lambda m: m.update(t0="/etc/passwd"), "plain file name"),
        (lambda m: m.update(t0=7), "plain file name"),
        (lambda m: m.update(t0="gone.safetensors"), r"cannot open gone\.safetensors"),
        (lambda m: m.update(ghost=shard(1)), "does not hold it"),
        (lambda m: m.update(t0=shard(3)), "does not hold it"),
        (lambda m: m.pop("t0"), "does not name it"),
        (lambda m: m.clear(), "nonempty object weight_map"),
    ],
)
def test_inconsistent_index(tmp_path, change, message):
    write_checkpoint(tmp_path, TENSORS, shards=3)
    edit_index(tmp_path, change)
    with pytest.raises(SourceError, match=message):
        open_checkpoint(tmp_path)


def test_an_index_that_leaves_out_a_shard_beside_it(tmp_path):
    write_checkpoint(tmp_path, TENSORS, shards=3)
    edit_index(tmp_path, lambda m: [m.pop(name) for name in [n for n in m if m[n] == shard(2)]])
    with pytest.raises(SourceError, match=rf"names no tensor of {shard(2)}.*complete the index"):
        open_checkpoint(tmp_path)
    (tmp_path / shard(2)).unlink()
    write_safetensors(tmp_path / "consolidated.safetensors", TENSORS)  # another copy, as some publishers add
    assert len(read_all(tmp_path)) == 4


def test_a_single_file_beside_an_index_of_others_is_ambiguous(tmp_path):
    write_checkpoint(tmp_path, TENSORS, shards=3)
    write_safetensors(tmp_path / "model.safetensors", {"only": TENSORS["t0"]})
    with pytest.raises(SourceError, match=r"both model\.safetensors and the 3 shards of"):
        open_checkpoint(tmp_path)
    assert list(read_all(tmp_path / "model.safetensors")) == ["only"]
    edit_index(tmp_path, lambda m: (m.clear(), m.update(only="model.safetensors")))
    for number in (1, 2, 3):
        (tmp_path / shard(number)).unlink()
    assert list(read_all(tmp_path)) == ["only"]


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', "{" * 100_000, '{"weight_map": {"a": "b", "a": "c"}}'])
def test_malformed_index(tmp_path, text):
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(SourceError):
        open_checkpoint(tmp_path)


def test_a_missing_or_truncated_shard(tmp_path):
    write_checkpoint(tmp_path, TENSORS, shards=3)
    data = (tmp_path / shard(2)).read_bytes()
    (tmp_path / shard(2)).write_bytes(data[:-5])
    with pytest.raises(SourceError, match=f"{shard(2)} is truncated"):
        open_checkpoint(tmp_path)
    (tmp_path / shard(2)).unlink()
    with pytest.raises(SourceError, match=f"cannot open {shard(2)}"):
        open_checkpoint(tmp_path)


def test_resources_lie_beside_the_weights(tmp_path):
    write_checkpoint(tmp_path / "c", TENSORS)
    (tmp_path / "c" / "tokenizer.json").write_text("{}")
    (tmp_path / "secret").write_text("x")
    with open_checkpoint(tmp_path / "c" / "model.safetensors") as checkpoint:
        assert checkpoint.name == "c"
        assert checkpoint.resource_path("tokenizer.json").read_text() == "{}"
        for name in ("../secret", "", ".."):
            with pytest.raises(SourceError, match="plain file name"):
                checkpoint.resource_path(name)
        with pytest.raises(SourceError, match="no file missing"):
            checkpoint.resource_path("missing")


def test_a_cached_revision_is_named_by_its_model(tmp_path):
    folder = tmp_path / "models--org--tiny-1b" / "snapshots" / "0123abcd"
    write_checkpoint(folder, TENSORS)
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.name == "tiny-1b"


def test_config_alone(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 4}')
    for path in (tmp_path, tmp_path / "config.json"):
        checkpoint = open_config(path)
        assert checkpoint.declared
        assert not checkpoint.tensors
        assert checkpoint.config == {"hidden_size": 4}
    with pytest.raises(SourceError, match="cannot read nowhere"):
        open_config(tmp_path / "nowhere")


def test_opening_reads_headers_and_reading_reads_the_rows_asked_for(tmp_path, monkeypatch):
    tensors = {f"t{i}": Random((512, 256), seed=i) for i in range(4)}
    write_checkpoint(tmp_path, tensors, shards=2)
    asked = []
    whole = PositionedFile.read
    monkeypatch.setattr(PositionedFile, "read", lambda self, at, n: asked.append(n) or whole(self, at, n))
    with open_checkpoint(tmp_path) as checkpoint:
        assert sum(asked) < 2000
        asked.clear()
        checkpoint["t3"].read(100, 104)
        assert asked == [4 * 256 * 2]


def test_reports_and_reprs_show_no_path(tmp_path):
    write_checkpoint(tmp_path / "c", {"a": np.zeros(2, np.float32)})
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert str(tmp_path) not in repr(checkpoint) + repr(checkpoint.files) + repr(checkpoint["a"])
