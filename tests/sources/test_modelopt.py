"""ModelOpt and block FP8 checkpoints: read only where asked for, and never taken for what they are not."""

import json

import ml_dtypes
import numpy as np
import pytest

from ninfer_jax.errors import SourceError
from ninfer_jax.sources import DecodedTensor, MultiplierNVFP4Tensor, open_checkpoint
from tests.checkpoints import Random, fp8_parts, nvfp4_parts, write_checkpoint
from tests.oracle import fp8_row, nvfp4
from tests.sources.reading import words_of

CONFIG = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}


def test_modelopt_is_read_only_when_named(tmp_path):
    tensors = nvfp4_parts(4, 64).modelopt("a", 0.01)
    write_checkpoint(tmp_path / "c", tensors, CONFIG)
    write_checkpoint(tmp_path / "f", tensors, {})
    (tmp_path / "f" / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}}))
    for folder in ("c", "f"):
        with pytest.raises(SourceError, match=r"multiplier and no divisor.*dialect = modelopt"):
            open_checkpoint(tmp_path / folder)
        with open_checkpoint(tmp_path / folder, dialect="modelopt") as checkpoint:
            assert list(checkpoint.tensors) == ["a.weight", "a.input_scale"]


def test_the_nvfp4_multiplier_is_no_divisor(tmp_path):
    parts, multiplier = nvfp4_parts(4, 64), np.float32(0.0123)
    write_checkpoint(tmp_path, parts.modelopt("a", float(multiplier)), CONFIG)
    with open_checkpoint(tmp_path, dialect="modelopt") as checkpoint:
        tensor = checkpoint["a.weight"]
        assert isinstance(tensor, MultiplierNVFP4Tensor)
        assert not hasattr(tensor, "read_words")
        assert "multiplier" in tensor.reason
        assert "reciprocal" in tensor.reason
        products = nvfp4.decode(parts.codes, parts.scales, 0x3F800000).view(np.float32)
        np.testing.assert_array_equal(tensor.read(1, 4), (products * multiplier)[1:4])
        made = tensor.reciprocal
        assert made is not None
        assert made.divisor == (np.float32(1) / multiplier).view(np.uint32)
        np.testing.assert_array_equal(made.read_words(0, 4).codes, parts.codes)
        np.testing.assert_array_equal(made.read_words(0, 4).scales, parts.scales)
        assert f"{int(multiplier.view(np.uint32)):#010x}" in made.notes[0]
        assert checkpoint["a.input_scale"].read(0, 1).tolist() == [0.5]


def test_a_multiplier_without_a_reciprocal(tmp_path):
    write_checkpoint(tmp_path, nvfp4_parts(4, 64).modelopt("a", 1e-40), CONFIG)
    with open_checkpoint(tmp_path, dialect="modelopt") as checkpoint:
        tensor = checkpoint["a.weight"]
        assert isinstance(tensor, MultiplierNVFP4Tensor)
        assert tensor.reciprocal is None


@pytest.mark.parametrize(("scale", "exact"), [(0.15625, True), (0.1, False)])
def test_fp8_maps_only_where_its_scale_is_a_bf16_value(tmp_path, scale, exact):
    parts = fp8_parts(5, 48)
    tensors = {"a.weight": parts.codes.view(ml_dtypes.float8_e4m3fn), "a.weight_scale": np.array(scale, np.float32)}
    write_checkpoint(tmp_path, tensors, CONFIG)
    with open_checkpoint(tmp_path, dialect="modelopt") as checkpoint:
        tensor = checkpoint["a.weight"]
        assert isinstance(tensor, DecodedTensor) != exact
        if exact:
            words = words_of(tensor, 1, 5)
            np.testing.assert_array_equal(words.codes, parts.codes[1:5])
            assert words.scales.tolist() == [0x3E20] * 4
            expected = fp8_row.decode(parts.codes, np.full(5, 0x3E20))
            np.testing.assert_array_equal(tensor.read(0, 5).view(np.uint32), expected)
        else:
            expected = parts.codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(scale)
            np.testing.assert_array_equal(tensor.read(0, 5), expected)


def test_missing_and_left_over_scales(tmp_path):
    for missing in ("weight_scale", "weight_scale_2"):
        tensors = nvfp4_parts(4, 64).modelopt("experts.7.a", 0.01)
        del tensors[f"experts.7.a.{missing}"]
        write_checkpoint(tmp_path / missing, tensors, CONFIG)
        with pytest.raises(SourceError, match=rf"experts\.7\.a\.{missing} is missing"):
            open_checkpoint(tmp_path / missing, dialect="modelopt")
    tensors = {"a.weight": Random((4, 64)), "b.weight_scale_2": np.array(1, np.float32)}
    write_checkpoint(tmp_path / "left", tensors, CONFIG)
    with pytest.raises(SourceError, match=r"'b\.weight_scale_2' belongs to no quantized weight"):
        open_checkpoint(tmp_path / "left", dialect="modelopt")


BLOCK_CONFIG = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 16]}}


def test_block_fp8_decodes_with_its_scale_as_a_multiplier(tmp_path):
    codes = fp8_parts(6, 40).codes.view(ml_dtypes.float8_e4m3fn)
    scales = np.array([[0.5, 2, 4], [8, 16, 0.25]], np.float32)
    tensors = {"a.weight": codes, "a.weight_scale_inv": scales, "b.weight": Random((4, 4))}
    write_checkpoint(tmp_path, tensors, BLOCK_CONFIG)
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint.tensors) == ["a.weight", "b.weight"]
        tensor = checkpoint["a.weight"]
        assert isinstance(tensor, DecodedTensor)
        assert tensor.dialect == "fp8-block"
        expected = codes.astype(np.float32) * np.repeat(np.repeat(scales, 4, 0), 16, 1)[:6, :40]
        np.testing.assert_array_equal(tensor.read(0, 6), expected)
        np.testing.assert_array_equal(tensor.read(3, 5), expected[3:5])


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        ({"a.weight": np.zeros((4, 4), ml_dtypes.float8_e4m3fn)}, BLOCK_CONFIG, r"no a\.weight_scale_inv"),
        ({"a.weight_scale_inv": np.ones((1, 1), np.float32)}, BLOCK_CONFIG, r"no a\.weight beside it"),
        (
            {"a.weight": np.zeros((4, 4), ml_dtypes.float8_e4m3fn), "a.weight_scale_inv": np.ones((2, 1), np.float32)},
            BLOCK_CONFIG,
            r"needs scales \[1, 1\]",
        ),
        ({}, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 16]}}, "weight_block_size"),
        ({}, {"quantization_config": {"quant_method": "gptq"}}, "quant_method 'gptq', which maps to no format"),
        ({}, {"quantization_config": {"quant_method": "awq"}}, "quant_method 'awq'"),
    ],
)
def test_refusals(tmp_path, tensors, config, message):
    write_checkpoint(tmp_path, tensors, config)
    with pytest.raises(SourceError, match=message):
        open_checkpoint(tmp_path)


def test_dialects_by_name(tmp_path):
    write_checkpoint(tmp_path, {"a.qweight": np.zeros(4, np.int32)}, {"quantization_config": {"quant_method": "gptq"}})
    with open_checkpoint(tmp_path, dialect="none") as checkpoint:
        assert list(checkpoint.tensors) == ["a.qweight"]
    with pytest.raises(SourceError, match="unknown dialect 'nvfp4'; known are none, compressed-tensors"):
        open_checkpoint(tmp_path, dialect="nvfp4")
    with pytest.raises(SourceError, match="no quantization_config of that kind"):
        open_checkpoint(tmp_path, dialect="compressed-tensors")
