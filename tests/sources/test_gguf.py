"""GGUF files: plain tensors, Q8_0 word for word, other block types decoded by the package."""

import struct

import gguf
import numpy as np
import pytest

from ninfer_jax.errors import InvalidWordsError, SourceError, UnsupportedError
from ninfer_jax.recipes import WordSource
from ninfer_jax.sources import DecodedTensor, open_checkpoint
from ninfer_jax.words import GroupedWords
from tests.oracle import grouped
from tests.sources.reading import words_of

RNG = np.random.default_rng(3)
VALUES = (RNG.standard_normal((6, 96)) * 0.1).astype(np.float32)


def blocks(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Q8_0 rows: binary16 d, then 32 int8, for each group."""
    rows, k = codes.shape
    out = np.empty((rows, k // 32, 34), np.uint8)
    out[..., :2] = scales[..., None].view(np.uint8)
    out[..., 2:] = codes.reshape(rows, -1, 32).view(np.uint8)
    return out.reshape(rows, -1)


def q8(rows=6, k=96):
    codes = RNG.integers(-127, 128, (rows, k)).astype(np.int8)
    scales = RNG.integers(1, 0x7C00, (rows, k // 32)).astype(np.uint16)
    codes[1, 32:64], scales[1, 1] = 0, 0
    return codes, scales


def write(path, tensors):
    writer = gguf.GGUFWriter(path, "llama")
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


Q8_0, Q4_0 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0


def test_q8_0_maps_word_for_word(tmp_path):
    codes, scales = q8()
    with open_checkpoint(write(tmp_path / "m.gguf", {"a.weight": (blocks(codes, scales), Q8_0)})) as checkpoint:
        tensor = checkpoint["a.weight"]
        assert isinstance(tensor, WordSource)
        assert (tensor.shape, tensor.format, checkpoint.name) == ((6, 96), "W8G32_F16S", "m")
        for start, stop in ((0, 6), (1, 4)):
            words = words_of(tensor, start, stop)
            assert isinstance(words, GroupedWords)
            np.testing.assert_array_equal(words.codes, codes[start:stop])
            np.testing.assert_array_equal(words.scales, scales[start:stop])
        expected = grouped.decode(codes, scales, "W8G32_F16S")
        np.testing.assert_array_equal(tensor.read(0, 6).view(np.uint32), expected)


@pytest.mark.parametrize(
    ("code", "scale", "rule"),
    [(-128, 0x3C00, "-127 to 127"), (1, 0x0000, "scale zero"), (1, 0x8000, "binary16, finite"),
     (1, 0xBC00, "binary16, finite"), (1, 0x7C00, "binary16, finite"), (1, 0x7E00, "binary16, finite")],
)  # fmt: skip
def test_blocks_that_do_not_map_are_found_when_read(tmp_path, code, scale, rule):
    codes, scales = q8()
    codes[3, 70], scales[3, 2] = code, scale
    with open_checkpoint(write(tmp_path / "m.gguf", {"a": (blocks(codes, scales), Q8_0)})) as checkpoint:
        words_of(checkpoint["a"], 0, 3)
        with pytest.raises(InvalidWordsError, match=rule) as caught:
            words_of(checkpoint["a"], 2, 6)
        assert "[3, 2" in str(caught.value)


def test_other_types_decode_and_plain_types_stay(tmp_path):
    packed = gguf.quants.quantize(VALUES, Q4_0)
    tensors = {"q4": (packed, Q4_0), "f32": (VALUES, None), "f16": (VALUES.astype(np.float16), None)}
    with open_checkpoint(write(tmp_path / "m.gguf", tensors)) as checkpoint:
        tensor = checkpoint["q4"]
        assert isinstance(tensor, DecodedTensor)
        assert (tensor.shape, tensor.dialect) == ((6, 96), "gguf")
        np.testing.assert_array_equal(tensor.read(2, 5), gguf.quants.dequantize(packed, Q4_0)[2:5])
        assert (checkpoint["f32"].dtype, checkpoint["f16"].dtype) == ("F32", "F16")
        np.testing.assert_array_equal(checkpoint["f32"].read(1, 6), VALUES[1:])
        assert checkpoint["f32"].sources == (("f32", "m.gguf"),)


def test_a_three_dimensional_q8_0_tensor_does_not_map(tmp_path):
    codes, scales = q8(8, 64)
    data = blocks(codes, scales).reshape(2, 4, -1)
    with open_checkpoint(write(tmp_path / "m.gguf", {"a": (data, Q8_0)})) as checkpoint:
        tensor = checkpoint["a"]
        assert isinstance(tensor, DecodedTensor)
        assert "rank 3" in tensor.reason
        expected = grouped.decode(codes, scales, "W8G32_F16S").reshape(2, 4, 64)
        np.testing.assert_array_equal(tensor.read(1, 2).view(np.uint32), expected[1:])


def test_a_type_that_the_package_only_names_does_not_decode(tmp_path):
    kind = gguf.GGMLQuantizationType.Q8_K
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    data = {"a": (np.zeros((2, nbytes), np.uint8), kind), "f": (VALUES, None)}
    with open_checkpoint(write(tmp_path / "m.gguf", data)) as checkpoint:
        tensor = checkpoint["a"]
        assert isinstance(tensor, DecodedTensor)
        assert (tensor.shape, tensor.decodable) == ((2, block), False)
        with pytest.raises(SourceError, match="Q8_K blocks are no registered format, and the gguf package cannot"):
            tensor.read(0, 1)


def test_broken_files(tmp_path):
    whole = write(tmp_path / "m.gguf", {"a": (VALUES, None)}).read_bytes()
    for size in (0, 4, 30, len(whole) // 2, len(whole) - 40):
        (tmp_path / "b.gguf").write_bytes(whole[:size])
        with pytest.raises(SourceError, match=r"b\.gguf"):
            open_checkpoint(tmp_path / "b.gguf")
    (tmp_path / "b.gguf").write_bytes(b"JUNK" + whole[4:])
    with pytest.raises(SourceError, match="not a readable GGUF file"):
        open_checkpoint(tmp_path / "b.gguf")


def test_one_file_of_several_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.add_tensor("a", VALUES)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(SourceError, match="one of 3 split GGUF files"):
        open_checkpoint(tmp_path / "m.gguf")


def test_the_package_is_an_extra(tmp_path, monkeypatch):
    path = write(tmp_path / "m.gguf", {"a": (VALUES, None)})
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(UnsupportedError, match="extra gguf"):
        open_checkpoint(path)


def _metadata(kind: int, body: bytes, keys: int = 1) -> bytes:
    """A file of no tensors whose metadata is one value named `k`."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, keys) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", kind) + body


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "declares 1152921504606846976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 63), "metadata keys"),
        (_metadata(9, struct.pack("<IQ", 4, 1 << 61)), "2305843009213693952 array entries"),
        (_metadata(9, struct.pack("<IQ", 9, 1)), "type 9"),
        (_metadata(9, struct.pack("<IQ", 0, 5_000_000)) + bytes(5_000_000), "at most"),
        (_metadata(8, struct.pack("<Q", 2**64 - 1)), "header needs"),
        (_metadata(77, b"12345678"), "type 77"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
    ],
)
def test_a_header_that_declares_more_than_the_file_holds_is_refused_at_once(tmp_path, data, message):
    (tmp_path / "h.gguf").write_bytes(data)
    with pytest.raises(SourceError, match=message):
        open_checkpoint(tmp_path / "h.gguf")
