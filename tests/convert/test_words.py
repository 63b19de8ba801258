"""Quantized checkpoints converted word for word: codes, scales and divisors arrive in the payload bit for bit."""

from pathlib import Path

import numpy as np
import pytest

from ninfer_jax.convert import ConversionReport, Settings, convert, verify_against, verify_artifact
from ninfer_jax.errors import InvalidWordsError
from tests.checkpoints.files import write_checkpoint
from tests.checkpoints.quantized import NVFP4Parts, nvfp4_group, nvfp4_parts, quantization_config, write_mixed
from tests.oracle import container, layouts

SMALL = Settings(block_bytes=1 << 16)


def word_exact(source: Path, out: Path) -> tuple[container.Artifact, ConversionReport]:
    """Convert without an encoder, verify, and read the artifact with the oracle."""
    report = convert(source, out, "word-exact", SMALL)
    verify_artifact(out)
    verify_against(out, source, "word-exact", SMALL)
    return container.read(out.read_bytes()), report


def test_compressed_tensors_words_arrive_bit_for_bit(tmp_path: Path):
    words = write_mixed(tmp_path / "model")
    artifact, report = word_exact(tmp_path / "model", tmp_path / "out.ninfer")
    assert len(words) == 6
    for name, parts in words.items():
        if isinstance(parts, NVFP4Parts):
            expected = layouts.pack((parts.codes, parts.scales, np.asarray(parts.divisor)), "NVFP4")
        else:
            expected = layouts.pack((parts.codes, parts.scales), "FP8_E4M3FN_ROW_BF16S")
        assert artifact.payload(name) == expected, name
        (entry,) = (tensor for tensor in report.tensors if tensor.name == name)
        assert (entry.encoder, entry.max_error, entry.sqnr_db, entry.lossy) == (None, 0.0, None, False)


def test_a_matrix_of_many_blocks_keeps_its_divisor_and_swizzle(tmp_path: Path):
    parts = nvfp4_parts(1280, 192, divisor=0.37)
    config = quantization_config(nvfp4_group(["Linear"]), ignore=())
    write_checkpoint(tmp_path / "model", parts.compressed_tensors("layer"), config)
    artifact, _ = word_exact(tmp_path / "model", tmp_path / "out.ninfer")
    expected = layouts.pack((parts.codes, parts.scales, np.asarray(parts.divisor)), "NVFP4")
    assert artifact.payload("layer.weight") == expected


@pytest.mark.parametrize("columns", [96, 4096])
def test_q8_0_words_arrive_bit_for_bit(tmp_path: Path, columns: int):
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(columns)
    codes = rng.integers(-127, 128, (40, columns)).astype(np.int8)
    scales = rng.integers(1, 0x7C00, (40, columns // 32)).astype(np.uint16)
    blocks = np.empty((40, columns // 32, 34), np.uint8)
    blocks[..., :2] = scales[..., None].view(np.uint8)
    blocks[..., 2:] = codes.reshape(40, -1, 32).view(np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("a.weight", blocks.reshape(40, -1), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    artifact, _ = word_exact(tmp_path / "m.gguf", tmp_path / "out.ninfer")
    assert artifact.payload("a.weight") == layouts.pack((codes, scales), "W8G32_F16S")


def test_words_that_are_not_valid_are_refused_by_name(tmp_path: Path):
    parts = nvfp4_parts(1280, 64)
    parts.scales[1100, 2] = 0x7F
    config = quantization_config(nvfp4_group(["Linear"]), ignore=())
    write_checkpoint(tmp_path / "model", parts.compressed_tensors("layer"), config)
    told = r"^tensor 'layer.weight_scale' has word 0x7f at \[1100, 2\]: .*; correct the source, .*start again$"
    with pytest.raises(InvalidWordsError, match=told):
        convert(tmp_path / "model", tmp_path / "out.ninfer", "word-exact", SMALL)
    assert not (tmp_path / "out.ninfer").exists()


def test_an_encoder_turns_quantized_words_into_another_format_and_says_so(tmp_path: Path):
    write_mixed(tmp_path / "model")
    (tmp_path / "recipe.toml").write_text(
        '[identity]\nmodel_id = "m"\nweights_id = "w"\n'
        '[[rule]]\nmatch = "*mlp*.weight"\nformat = "Q6G64_F16S"\nencoder = "MAXABS_F16_RECIP_RNE_V1"\n'
        '[[rule]]\nmatch = "*"\nformat = "direct"\n'
    )
    report = convert(tmp_path / "model", tmp_path / "out.ninfer", tmp_path / "recipe.toml", SMALL)
    lossy = [tensor for tensor in report.tensors if tensor.lossy]
    assert {tensor.format for tensor in lossy} == {"Q6G64_F16S"}
    assert len(lossy) == 4
    assert all(tensor.sqnr_db is not None and tensor.sqnr_db > 20 for tensor in lossy)
