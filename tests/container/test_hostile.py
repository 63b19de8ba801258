"""Files that are something else, and directories made to exhaust a parser: one ArtifactError each, at no great cost."""

import io
import os
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, strategies as st
from safetensors.numpy import save

from ninfer_jax.container import open_artifact
from ninfer_jax.errors import ArtifactError
from tests.container.helpers import directory, frame, resource
from tests.golden_cases import container_images
from tests.oracle import container as oracle

MIB = 1 << 20


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.zeros(3))
    return buffer.getvalue()


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", b"x")
    return buffer.getvalue()


OTHER_KINDS = {
    "safetensors file": save({"x": np.zeros((2, 3), np.float32)}),
    "GGUF": b"GGUF\x03\0\0\0" + bytes(100),
    "npz": npz(),
    "zip archive": zipped(),
    "npy": b"\x93NUMPY\x01\0" + bytes(100),
    "pickle": b"\x80\x02}q\x00." + bytes(100),
    "Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "HTML": b"<!DOCTYPE html><html></html>",
    "JSON text": b'  {"model_type": "bert"}',
    "zeros": bytes(5000),
    "empty": b"",
    "truncated artifact": b"NINFER\0\2\0\0",
    "unfinished conversion": b"NINFPART" + bytes(100),
    "bytes 23 21": b"#!/bin/sh\n",
}
BOMBS = {
    "nested arrays": b"[" * MIB,
    "nested objects": b'{"a":' * MIB,
    "nested in a string's shadow": b'"\\"' + b"[" * MIB,
    "many empty arrays": b"[" + b"[]," * MIB + b"[]]",
    "unterminated string of escapes": b'{"' + b'\\"' * MIB,
    "quotes": b'"' * MIB,
    "digits": b'{"identity":' + b"9" * MIB + b"}",
    "negative digits": b"-" + b"9" * MIB,
    "exponent": b"1e" + b"9" * MIB,
    "fraction": b"0." + b"9" * MIB,
    "long number array": directory([]).replace(b"[]", b"[" + b"0," * 100_000 + b"0]"),
    "long name": directory([resource("n" * MIB, 0, 0)]),
    "long format": directory([{**resource("n", 0, 1), "encoding": "e" * MIB}]),
    "many members": b"{" + b",".join(b'"%d":0' % index for index in range(50_000)) + b"}",
    "long shape": directory(
        [{"name": "n", "kind": "tensor", "shape": [1] * 20_000, "format": "BF16", "layout": "contiguous-le-v1"}
         | {"offset": 0, "bytes": 2}]
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_other_files_are_named(kind, tmp_path):
    path = tmp_path / "other"
    path.write_bytes(OTHER_KINDS[kind])
    with pytest.raises(ArtifactError, match=kind):
        open_artifact(path)


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs(bomb, tmp_path):
    path = tmp_path / "bomb.ninfer"
    path.write_bytes(frame(BOMBS[bomb]))
    with pytest.raises(ArtifactError) as error:
        open_artifact(path)
    assert len(str(error.value)) < 1000 + len(str(path))


def test_declared_sizes_are_not_allocated(tmp_path):
    path = tmp_path / "sparse.ninfer"
    path.write_bytes(b"NINFER\0\2" + (1 << 40).to_bytes(8, "little") + b"{")
    os.truncate(path, 1 << 41)  # a sparse file as large as it declares
    tracemalloc.start()
    try:
        with pytest.raises(ArtifactError, match=str(1 << 40)):
            open_artifact(path)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_payload_is_not_read_to_open(tmp_path):
    path = tmp_path / "large.ninfer"
    nbytes = 1 << 40
    path.write_bytes(frame(directory([resource("r", 0, nbytes)])))
    os.truncate(path, path.stat().st_size + nbytes)
    with open_artifact(path) as artifact:
        assert artifact.payload("r")[nbytes - 1] == 0


@pytest.mark.parametrize("make", ["missing", "folder", "pipe", "device", "unreadable name"])
def test_what_is_no_file(make, tmp_path):
    path = tmp_path / ("x" * 300 if make == "unreadable name" else "it")
    if make == "folder":
        path.mkdir()
    elif make == "pipe":
        os.mkfifo(path)
    with pytest.raises(ArtifactError, match=r"cannot be read|not a regular file"):
        open_artifact("/dev/zero" if make == "device" else path)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"], ids=ascii)
def test_what_is_no_name_of_a_file(name):
    with pytest.raises(ArtifactError, match="is not the name of a file"):
        open_artifact(name)


def test_errors_print_no_control_characters(tmp_path):
    path = tmp_path / "x.ninfer"
    path.write_bytes(frame(directory([resource("\x1b[31mred\n", 0, 5)])))
    with pytest.raises(ArtifactError) as error:
        open_artifact(path)
    assert str(error.value).removeprefix(str(path)).isprintable()


def test_running_out_of_memory(monkeypatch, tmp_path):
    def refuse(*_):
        raise MemoryError

    monkeypatch.setattr("ninfer_jax.container.reader.parse_directory", refuse)
    path = tmp_path / "x.ninfer"
    path.write_bytes(BASE)
    with pytest.raises(ArtifactError, match="more memory"):
        open_artifact(path)


BASE = container_images()["v2_base_ok"]
MUTATIONS = st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=3)
TOKENS = [
    b"0",
    b"-1",
    b"true",
    b"null",
    b'""',
    b"[]",
    b"{}",
    b"1.0",
    b"4096",
    b"18446744073709551616",
    b"[3,5]",
    b'"w"',
]


def agrees_with_oracle(image: bytes, folder) -> None:
    path = folder / "fuzz.ninfer"
    path.write_bytes(image)
    try:
        oracle.read(image)
        accepted = True
    except oracle.Reject:
        accepted = False
    if accepted:
        open_artifact(path).close()
    else:
        with pytest.raises(ArtifactError):
            open_artifact(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@given(mutations=MUTATIONS)
def test_changed_bytes(mutations, folder):
    image = bytearray(BASE)
    for index, value in mutations:
        image[index] = value
    agrees_with_oracle(bytes(image), folder)


@given(size=st.integers(0, len(BASE)))
def test_cut_files(size, folder):
    agrees_with_oracle(BASE[:size], folder)


@given(data=st.data())
def test_exchanged_values(data, folder):
    raw = BASE[16 : 16 + int.from_bytes(BASE[8:16], "little")]
    values = [part for part in raw.replace(b"}", b",").split(b",") if b":" in part]
    old = data.draw(st.sampled_from(values)).rpartition(b":")[2]
    changed = raw.replace(b":" + old, b":" + data.draw(st.sampled_from(TOKENS)), 1)
    agrees_with_oracle(frame(changed, BASE[4096:]), folder)
