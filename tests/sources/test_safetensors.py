"""Safetensors files: every element type bit for bit, and headers that lie."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from ninfer_jax.errors import NinferError, SourceChangedError, SourceError
from ninfer_jax.sources import open_checkpoint
from tests.checkpoints import DTYPES, header_bytes, write_checkpoint, write_safetensors


def random_bits(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Every bit pattern is as likely as another, NaN payloads included."""
    size = int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize
    data = np.random.default_rng(size).integers(0, 2 if dtype == "BOOL" else 256, size).astype(np.uint8)
    return data.view(DTYPES[dtype]).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_keep_every_bit(tmp_path, dtype):
    array = random_bits(dtype, (7, 3, 2))
    path = write_safetensors(tmp_path / "x.safetensors", {"pad": np.zeros(1, np.uint8), "a": array})
    with open_checkpoint(path) as checkpoint:
        tensor = checkpoint["a"]
        assert (tensor.dtype, tensor.shape, tensor.rows, tensor.file) == (dtype, (7, 3, 2), 7, "x.safetensors")
        assert tensor.sources == (("a", "x.safetensors"),)
        for start, stop in ((0, 7), (2, 5), (6, 7), (3, 3)):
            rows = tensor.read(start, stop)
            assert rows.dtype == np.dtype(DTYPES[dtype])
            assert rows.shape == (stop - start, 3, 2)
            assert rows.tobytes() == array[start:stop].tobytes()


def test_scalars_have_one_row(tmp_path):
    path = write_safetensors(tmp_path / "x.safetensors", {"s": np.array(1.5, np.float32), "e": np.zeros((0, 4))})
    with open_checkpoint(path) as checkpoint:
        assert checkpoint["s"].shape == ()
        assert checkpoint["s"].rows == 1
        assert checkpoint["s"].read(0, 1).tolist() == [1.5]
        assert checkpoint["e"].read(0, 0).shape == (0, 4)


def test_files_of_the_safetensors_package(tmp_path):
    tensors = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "i": np.arange(5, dtype=np.int64)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "np"})
    with open_checkpoint(tmp_path / "x.safetensors") as checkpoint:
        assert set(checkpoint.tensors) == {"w", "i"}
        for name, array in tensors.items():
            np.testing.assert_array_equal(checkpoint[name].read(0, array.shape[0]), array)
        assert checkpoint.files[0].nbytes == (tmp_path / "x.safetensors").stat().st_size


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE = {
    "no dtype": {"a": {"shape": [2], "data_offsets": [0, 8]}},
    "extra member": {"a": {**entry(), "layout": "C"}},
    "entry is a list": {"a": [1]},
    "unknown dtype": {"a": entry("Q4")},
    "dtype is a number": {"a": entry(4)},
    "negative extent": {"a": entry(shape=[-2])},
    "boolean extent": {"a": entry(shape=[True, 2])},
    "float extent": {"a": entry(shape=[2.0])},
    "shape is a string": {"a": entry(shape="2")},
    "huge shape": {"a": entry(shape=[2**40, 2**40])},
    "size wraps": {"a": entry(shape=[2**62, 2**62, 0], offsets=[0, 0])},
    "one offset": {"a": entry(offsets=[0])},
    "offsets reversed": {"a": entry(offsets=[8, 0])},
    "size differs": {"a": entry(offsets=[0, 4])},
    "beyond the file": {"a": entry(shape=[400], offsets=[0, 1600])},
    "gap": {"a": entry(), "b": entry(offsets=[12, 20])},
    "overlap": {"a": entry(), "b": entry(offsets=[4, 12])},
    "data left over": {"a": entry(shape=[1], offsets=[0, 4])},
    "metadata is a list": {"__metadata__": [], "a": entry()},
}


@pytest.mark.parametrize("header", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_headers(tmp_path, header):
    data = json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(data).to_bytes(8, "little") + data + bytes(8))
    with pytest.raises(SourceError) as caught:
        open_checkpoint(path)
    assert "x.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("offsets", "size", "message"),
    [
        ((12, 20), 20, "leaves a gap"),
        ((4, 12), 12, "overlaps the tensor before it"),
        ((8, 16), 15, "is truncated: its header needs 16 data bytes, the file holds 15"),
        ((8, 16), 17, "1 bytes after its last tensor"),
    ],
)
def test_data_must_be_covered_exactly_once(tmp_path, offsets, size, message):
    header = json.dumps({"a": entry(), "b": entry(offsets=offsets)}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    with pytest.raises(SourceError, match=message):
        open_checkpoint(tmp_path / "x.safetensors")


EMPTY = b'{"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}'


def framed(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


RAW = {
    "empty": (b"", "has 0 bytes"),
    "seven bytes": (bytes(7), "has 7 bytes"),
    "header longer than the file": ((100).to_bytes(8, "little") + b"{}", "truncated or not"),
    "header of 2^63 bytes": ((2**63).to_bytes(8, "little") + b"{}", "truncated or not"),
    "not UTF-8": (framed(b"\xff\xfe"), "not valid JSON"),
    "not JSON": (framed(b"{]"), "not valid JSON"),
    "a list": (framed(b"[]"), "an object is needed"),
    "deeply nested": (framed(b"[" * 200_000), "nested too deeply"),
    "a number with 9000 digits": (framed(b'{"a": ' + b"9" * 9000 + b"}"), "not valid JSON"),
    "a Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
    "a tensor twice": (framed(b'{"a": ' + EMPTY + b', "a": ' + EMPTY + b"}"), "'a' appears twice"),
}


@pytest.mark.parametrize(("data", "message"), RAW.values(), ids=list(RAW))
def test_hostile_bytes(tmp_path, data, message):
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(SourceError, match=message):
        open_checkpoint(tmp_path / "x.safetensors")


def test_truncated_file_and_shrinking_file(tmp_path):
    path = write_safetensors(tmp_path / "x.safetensors", {"a": np.ones((8, 8), np.float32)})
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(SourceError, match="truncated"):
        open_checkpoint(path)
    path.write_bytes(whole)
    with open_checkpoint(path) as checkpoint:
        path.write_bytes(whole[:-100])
        with pytest.raises(SourceChangedError, match=r"x\.safetensors was written to while it was read"):
            checkpoint["a"].read(0, 8)


def test_a_file_that_is_written_to_is_refused_and_one_that_is_replaced_is_read_on(tmp_path):
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    path = write_safetensors(tmp_path / "x.safetensors", {"a": values})
    with open_checkpoint(path) as checkpoint:
        assert (checkpoint["a"].read(0, 4) == values[:4]).all()
        os.replace(write_safetensors(tmp_path / "y.safetensors", {"a": -values}), path)
        assert (checkpoint["a"].read(4, 8) == values[4:]).all()
    with open_checkpoint(path) as checkpoint:
        with path.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(bytes(4))
        status = path.stat()  # the clock of a file system may not have moved since the file was made
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        with pytest.raises(SourceChangedError, match="was written to"):
            checkpoint["a"].read(0, 1)


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(SourceError, match=r"pipe\.safetensors is a device or a pipe; a regular file is needed"):
        open_checkpoint(tmp_path / "pipe.safetensors")
    write_checkpoint(tmp_path / "model", {"a": np.ones(4, np.float32), "b": np.ones(4, np.float32)}, shards=2)
    shard = next((tmp_path / "model").glob("*1-of-*.safetensors"))
    shard.unlink()
    shard.mkdir()
    with pytest.raises(SourceError, match=r"1-of-.* is a folder; a regular file is needed"):
        open_checkpoint(tmp_path / "model")


def test_reads_outside_the_tensor_and_after_close(tmp_path):
    path = write_safetensors(tmp_path / "x.safetensors", {"a": np.ones((8, 8), ml_dtypes.bfloat16)})
    with open_checkpoint(path) as checkpoint:
        tensor = checkpoint["a"]
        for start, stop in ((-1, 2), (0, 9), (5, 4)):
            with pytest.raises(SourceError, match=r"rows \["):
                tensor.read(start, stop)
        with pytest.raises(SourceError, match="no tensor 'b'"):
            checkpoint["b"]
    with pytest.raises(SourceError, match="closed"):
        tensor.read(0, 1)


def test_sub_byte_elements_are_listed_but_not_read(tmp_path):
    header = json.dumps({"a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(2))
    with open_checkpoint(tmp_path / "x.safetensors") as checkpoint, pytest.raises(SourceError, match="sub-byte"):
        checkpoint["a"].read(0, 4)


def test_other_paths_say_what_is_needed(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"x")
    for name, text in (("model.bin", ".bin file"), ("missing", "neither a file nor a folder")):
        with pytest.raises(SourceError, match=text):
            open_checkpoint(tmp_path / name)
    with pytest.raises(SourceError, match=r"cannot open gone\.safetensors"):
        open_checkpoint(tmp_path / "gone.safetensors")
    with pytest.raises(NinferError, match=r"neither model\.safetensors"):
        open_checkpoint(tmp_path)


def test_every_prefix_of_a_header_is_refused(tmp_path):
    data = header_bytes({"a": np.ones(2, np.float32)}) + bytes(8)
    for size in range(0, len(data), 7):
        (tmp_path / "x.safetensors").write_bytes(data[:size])
        with pytest.raises(SourceError):
            open_checkpoint(tmp_path / "x.safetensors")
