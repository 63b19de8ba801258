"""compressed-tensors checkpoints: words bit for bit, and every way their parts can be wrong."""

import ml_dtypes
import numpy as np
import pytest

from ninfer_jax.errors import InvalidWordsError, SourceError
from ninfer_jax.recipes import WordSource
from ninfer_jax.sources import DecodedTensor, open_checkpoint
from ninfer_jax.words import NVFP4Words, RowScaledWords
from tests.checkpoints import (
    FP8Parts,
    NVFP4Parts,
    Random,
    fp8_group,
    fp8_parts,
    nvfp4_group,
    nvfp4_parts,
    quantization_config,
    write_checkpoint,
    write_mixed,
)
from tests.oracle import fp8_row, nvfp4
from tests.sources.reading import words_of


def write(folder, tensors, *groups, ignore=("lm_head",)):
    return write_checkpoint(folder, tensors, quantization_config(*groups, ignore=ignore))


def assert_words(tensor, parts):
    words = words_of(tensor, 0, tensor.rows)
    np.testing.assert_array_equal(words.codes, parts.codes)
    np.testing.assert_array_equal(words.scales, parts.scales)
    start, stop = 1, tensor.rows - 1
    block = words_of(tensor, start, stop)
    np.testing.assert_array_equal(block.codes, parts.codes[start:stop])
    np.testing.assert_array_equal(block.scales, parts.scales[start:stop])
    values = tensor.read(start, stop).view(np.uint32)
    if isinstance(parts, NVFP4Parts):
        assert isinstance(words, NVFP4Words)
        assert isinstance(block, NVFP4Words)
        assert words.divisor == block.divisor == parts.divisor
        oracle = nvfp4.decode(parts.codes, parts.scales, int(parts.divisor))
    else:
        assert isinstance(words, RowScaledWords)
        oracle = fp8_row.decode(parts.codes, parts.scales)
    np.testing.assert_array_equal(values, oracle[start:stop])


def test_a_mixed_checkpoint_word_for_word(tmp_path):
    expected = write_mixed(tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        quantized = [name for name, tensor in checkpoint.tensors.items() if hasattr(tensor, "read_words")]
        assert quantized == list(expected)
        for name, parts in expected.items():
            assert_words(checkpoint[name], parts)
        weight = checkpoint["model.layers.0.mlp.up_proj.weight"]
        assert isinstance(weight, WordSource)
        assert weight.shape == (128, 128)
        assert weight.format == "NVFP4"
        assert weight.dtype == "F32"
        assert [ref.tensor.rpartition(".")[2] for ref in weight.sources] == [
            "weight_packed",
            "weight_scale",
            "weight_global_scale",
        ]
        scale = checkpoint["model.layers.0.mlp.up_proj.input_global_scale"]
        assert scale.dtype == "F32"
        assert scale.read(0, 1).tolist() == [3.5]
        assert checkpoint["lm_head.weight"].dtype == "BF16"
        assert not any(name.endswith(("weight_scale", "weight_packed")) for name in checkpoint.tensors)


@pytest.mark.parametrize("divisor", [1.0, 2688.0, 1e-38, float(np.float32(2) ** -149), 3e38])
def test_the_global_scale_is_the_divisor_bit_for_bit(tmp_path, divisor):
    parts = nvfp4_parts(4, 64, divisor)
    write(tmp_path, parts.compressed_tensors("a"), nvfp4_group(["Linear"]))
    with open_checkpoint(tmp_path) as checkpoint:
        words = words_of(checkpoint["a.weight"], 0, 1)
        assert isinstance(words, NVFP4Words)
        assert words.divisor == parts.divisor
        assert_words(checkpoint["a.weight"], parts)


@pytest.mark.parametrize(
    ("dtype", "shape"), [("BF16", (6, 1)), ("BF16", (6,)), ("F32", (6, 1)), ("F32", (6,)), ("F16", (6, 1))]
)
def test_channel_scales_of_every_stored_kind(tmp_path, dtype, shape):
    parts = fp8_parts(6, 32)
    if dtype == "F16":  # a binary16 scale is a BF16 value only where its low three fraction bits are zero
        parts = FP8Parts(parts.codes, np.array([0x3F80, 0, 0x3C00, 0x3DA0, 0x4010, 0x3E40], np.uint16))
    write(tmp_path, parts.tensors("a", dtype, lambda n: shape), fp8_group(["Linear"]))
    with open_checkpoint(tmp_path) as checkpoint:
        assert_words(checkpoint["a.weight"], parts)


def test_one_tensor_scale_is_repeated_for_every_row(tmp_path):
    parts = fp8_parts(6, 32)
    parts = FP8Parts(parts.codes, np.full(6, 0x3DA0, np.uint16))
    for index, shape in enumerate(((1,), (), (1, 1))):
        tensors = {
            "a.weight": parts.codes.view(ml_dtypes.float8_e4m3fn),
            "a.weight_scale": parts.scales[:1].view(ml_dtypes.bfloat16).astype(np.float32).reshape(shape),
            "a.input_scale": np.array([0.25], ml_dtypes.bfloat16),
        }
        folder = write(tmp_path / str(index), tensors, fp8_group(["Linear"], "tensor"))
        with open_checkpoint(folder) as checkpoint:
            assert_words(checkpoint["a.weight"], parts)
            scale = checkpoint["a.input_scale"]
            assert scale.dtype == "F32"
            assert scale.read(0, 1).tolist() == [0.25]


@pytest.mark.parametrize(
    ("bits", "why"),
    [(0x3F800001, "is no BF16 value"), (0x3F808000, "is no BF16 value"), (0xBF800000, "is not finite and >= +0")],
)
def test_scales_that_are_no_bf16_value_do_not_map(tmp_path, bits, why):
    parts = fp8_parts(6, 32)
    tensors = parts.tensors("a", "F32")
    tensors["a.weight_scale"].view(np.uint32)[3] = bits
    write(tmp_path, tensors, fp8_group(["Linear"]))
    with open_checkpoint(tmp_path) as checkpoint:
        tensor = checkpoint["a.weight"]
        assert isinstance(tensor, DecodedTensor)
        assert why in tensor.reason
        assert "row 3" in tensor.reason
        expected = parts.codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * tensors["a.weight_scale"]
        np.testing.assert_array_equal(tensor.read(2, 5), expected[2:5])


def test_block_scales_decode_but_do_not_map(tmp_path):
    codes = fp8_parts(6, 40).codes.view(ml_dtypes.float8_e4m3fn)
    scales = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    group = fp8_group(["Linear"], "block", weights={"block_structure": [4, 16]})
    write(tmp_path, {"a.weight": codes, "a.weight_scale": scales}, group)
    with open_checkpoint(tmp_path) as checkpoint:
        tensor = checkpoint["a.weight"]
        assert isinstance(tensor, DecodedTensor)
        assert "several scales per row" in tensor.reason
        expected = codes.astype(np.float32) * np.repeat(np.repeat(scales, 4, 0), 16, 1)[:6, :40]
        np.testing.assert_array_equal(tensor.read(3, 6), expected[3:6])


def refused(folder, tensors, *groups, ignore=("lm_head",)):
    write(folder, tensors, *groups, ignore=ignore)
    with pytest.raises(SourceError) as caught:
        open_checkpoint(folder)
    return str(caught.value)


@pytest.mark.parametrize("missing", ["weight_global_scale", "weight_scale"])
def test_a_missing_part_of_an_expert_is_an_error(tmp_path, missing):
    tensors = {}
    for expert in range(3):
        tensors |= nvfp4_parts(4, 64, seed=expert).compressed_tensors(f"model.layers.0.mlp.experts.{expert}.up_proj")
    del tensors[f"model.layers.0.mlp.experts.1.up_proj.{missing}"]
    message = refused(tmp_path, tensors, nvfp4_group(["Linear"]))
    assert f"experts.1.up_proj.{missing} is missing" in message


def test_fp8_codes_without_scales_are_an_error(tmp_path):
    tensors = {"a.weight": fp8_parts(4, 32).codes.view(ml_dtypes.float8_e4m3fn)}
    assert "a.weight_scale is missing" in refused(tmp_path, tensors, fp8_group(["Linear"]))


def test_parts_that_belong_to_no_weight_are_an_error(tmp_path):
    tensors = {"a.weight_scale": np.ones(4, np.float32), "b": np.ones(1, np.float32)}
    assert "'a.weight_scale' belongs to no quantized weight" in refused(tmp_path, tensors, fp8_group(["Linear"]))


def test_a_quantized_weight_that_is_ignored_or_untargeted_is_an_error(tmp_path):
    tensors = nvfp4_parts(4, 64).compressed_tensors("a")
    assert "ignore list names it" in refused(tmp_path / "i", tensors, nvfp4_group(["Linear"]), ignore=("a",))
    assert "no config group targets it" in refused(tmp_path / "u", tensors, nvfp4_group(["re:b.*"]))


def test_plain_weights_stay_whatever_the_groups_say(tmp_path):
    tensors = {
        "a.gate.weight": Random((4, 64)),
        "a.norm.weight": Random((64,)),
        "lm_head.weight": Random((4, 64), "F32"),
    }
    write(tmp_path, tensors, nvfp4_group(["Linear", "re:a.*"]))
    with open_checkpoint(tmp_path) as checkpoint:
        assert [tensor.dtype for tensor in checkpoint.tensors.values()] == ["BF16", "BF16", "F32"]


def test_integer_codes_without_scales_are_no_plain_weight(tmp_path):
    tensors = {"a.weight": np.ones((4, 64), np.int8)}
    group = fp8_group(["Linear"], weights={"type": "int"}) | {"format": "int-quantized"}
    write(tmp_path / "t", tensors, group)
    with open_checkpoint(tmp_path / "t") as checkpoint:
        tensor = checkpoint["a.weight"]
        assert isinstance(tensor, DecodedTensor)
        assert "int-quantized" in tensor.reason


def test_the_scheme_decides_and_contradicting_parts_are_an_error(tmp_path):
    tensors = nvfp4_parts(4, 64).compressed_tensors("a")
    assert "is float-quantized" in refused(tmp_path / "f", tensors, nvfp4_group(["b"]), fp8_group(["Linear"]))
    tensors = fp8_parts(4, 64).tensors("a")
    assert "is nvfp4-pack-quantized" in refused(tmp_path / "n", tensors, nvfp4_group(["Linear"]))
    assert "strategy 'tensor'" in refused(tmp_path / "t", tensors, fp8_group(["Linear"], "tensor"))
    one = {"a.weight": tensors["a.weight"], "a.weight_scale": np.ones(1, np.float32)}
    assert "strategy 'channel'" in refused(tmp_path / "c", one, fp8_group(["Linear"]))


def test_a_swizzled_or_padded_scale_plane_is_an_error(tmp_path):
    parts = nvfp4_parts(4, 64)
    tensors = parts.compressed_tensors("a")
    tensors["a.weight_scale"] = np.zeros((128, 4), np.uint8).view(ml_dtypes.float8_e4m3fn)
    assert "row-major F8_E4M3 block scales [4, 4]" in refused(tmp_path, tensors, nvfp4_group(["Linear"]))


@pytest.mark.parametrize("word", [0, 0x80000000, 0xBF800000, 0x7F800000, 0x7FC00000])
def test_a_divisor_that_is_not_finite_and_positive_is_an_error(tmp_path, word):
    tensors = NVFP4Parts(*(nvfp4_parts(4, 64).codes, nvfp4_parts(4, 64).scales), np.uint32(word)).compressed_tensors(
        "a"
    )
    assert "finite positive" in refused(tmp_path, tensors, nvfp4_group(["Linear"]))


@pytest.mark.parametrize("word", [0x7F, 0x80, 0xB8, 0xFF])
def test_invalid_block_scales_are_found_when_read(tmp_path, word):
    parts = nvfp4_parts(4, 64)
    parts.scales[2, 1] = word
    write(tmp_path, parts.compressed_tensors("a"), nvfp4_group(["Linear"]))
    with open_checkpoint(tmp_path) as checkpoint:
        words_of(checkpoint["a.weight"], 0, 2)
        with pytest.raises(InvalidWordsError, match=rf"'a\.weight_scale' has word {word:#04x} at \[2, 1\]"):
            words_of(checkpoint["a.weight"], 1, 4)


def test_invalid_fp8_codes_are_found_when_read(tmp_path):
    for index, (row, word, rule) in enumerate(((2, 0x7F, "NaN"), (2, 0xFF, "NaN"), (1, 0x01, "scale zero"))):
        parts = fp8_parts(4, 32)
        parts.codes[row, 5] = word
        write(tmp_path / str(index), parts.tensors("a"), fp8_group(["Linear"]))
        with (
            open_checkpoint(tmp_path / str(index)) as checkpoint,
            pytest.raises(InvalidWordsError, match=rule) as caught,
        ):
            words_of(checkpoint["a.weight"], 0, 4)
        assert f"[{row}, 5]" in str(caught.value)


def test_formats_that_map_to_nothing_are_named_when_used(tmp_path):
    group = fp8_group(["Linear"], "group", weights={"num_bits": 4, "type": "int", "group_size": 128})
    group["format"] = "pack-quantized"
    tensors = {"a.weight_packed": np.zeros((4, 8), np.int32), "a.weight_scale": np.ones((4, 1), np.float32)}
    tensors["a.weight_shape"] = np.array([4, 64])
    write(tmp_path, tensors, group)
    with open_checkpoint(tmp_path) as checkpoint:
        tensor = checkpoint["a.weight"]
        assert isinstance(tensor, DecodedTensor)
        assert "pack-quantized" in tensor.reason
        with pytest.raises(SourceError, match="cannot be decoded"):
            tensor.read(0, 1)
