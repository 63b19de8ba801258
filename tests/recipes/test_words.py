"""Quantized words through recipes: copied bit for bit, fused where that is exact, refused where it is not."""

import ml_dtypes
import numpy as np
import pytest

from ninfer_jax.codecs import check_words
from ninfer_jax.errors import RecipeError
from ninfer_jax.recipes import (
    Resolution,
    TensorSpec,
    WordSource,
    concat,
    deinterleave,
    gather_rows,
    load_recipe,
    reshape,
    resolve,
    slice_rows,
    store,
)
from ninfer_jax.sources import open_checkpoint
from ninfer_jax.words import NVFP4Words, QuantizedWords
from tests.checkpoints import (
    NVFP4Parts,
    fp8_group,
    fp8_parts,
    nvfp4_group,
    nvfp4_parts,
    quantization_config,
    write_checkpoint,
    write_mixed,
)

ENCODER = "MAXABS_F16_RECIP_RNE_V1"


def words_of(rows: object, start: int, stop: int) -> QuantizedWords:
    assert isinstance(rows, WordSource)
    return rows.read_words(start, stop)


def recipe_file(tmp_path, text: str):
    path = tmp_path / "r.toml"
    path.write_text('[identity]\nmodel_id = "m"\nweights_id = "w"\n' + text)
    return path


def resolve_text(tmp_path, checkpoint, text: str) -> Resolution:
    return resolve(load_recipe(recipe_file(tmp_path, text)), checkpoint)


def by_name(resolution: Resolution) -> dict[str, TensorSpec]:
    return {spec.name: spec for spec in resolution.tensors}


def test_a_mixed_checkpoint_is_stored_word_for_word(tmp_path):
    expected = write_mixed(tmp_path / "c")
    with open_checkpoint(tmp_path / "c") as checkpoint:
        specs = by_name(resolve(load_recipe("word-exact"), checkpoint))
        assert len(specs) == 14
        for name, parts in expected.items():
            spec = specs[name]
            assert spec.word_exact
            assert spec.format == ("NVFP4" if isinstance(parts, NVFP4Parts) else "FP8_E4M3FN_ROW_BF16S")
            words = words_of(spec.rows, 0, spec.shape[0])
            check_words(words, spec.format)
            np.testing.assert_array_equal(words.codes, parts.codes)
            np.testing.assert_array_equal(words.scales, parts.scales)
        scale = specs["model.layers.1.mlp.gate_proj.input_global_scale"]
        assert (scale.format, scale.cast, scale.shape) == ("FP32", None, (1,))


FUSED = """
[[object]]
name = "gate_up"
format = "NVFP4"
parts = [{ source = "g.weight" }, { source = "u.weight" }]
"""


def write_pair(folder, divisors):
    parts = [nvfp4_parts(128, 64, divisor, seed) for seed, divisor in enumerate(divisors)]
    tensors = parts[0].compressed_tensors("g") | parts[1].compressed_tensors("u")
    write_checkpoint(folder, tensors, quantization_config(nvfp4_group(["Linear"])), shards=2)
    return parts


def test_parts_with_one_divisor_share_an_nvfp4_parent(tmp_path):
    parts = write_pair(tmp_path / "c", (37.25, 37.25))
    with open_checkpoint(tmp_path / "c") as checkpoint:
        (spec,) = resolve_text(tmp_path, checkpoint, FUSED).tensors
        assert spec.shape == (256, 64)
        for start, stop in ((0, 256), (100, 160)):
            words = words_of(spec.rows, start, stop)
            assert isinstance(words, NVFP4Words)
            np.testing.assert_array_equal(words.codes, np.concatenate([p.codes for p in parts])[start:stop])
            np.testing.assert_array_equal(words.scales, np.concatenate([p.scales for p in parts])[start:stop])
            assert words.divisor == parts[0].divisor


def test_parts_with_different_divisors_never_share_a_parent(tmp_path):
    write_pair(tmp_path / "c", (37.25, float(np.nextafter(np.float32(37.25), np.float32(38)))))
    with open_checkpoint(tmp_path / "c") as checkpoint:
        with pytest.raises(RecipeError, match=r"'g\.weight'.*'u\.weight'.*divisors differ"):
            resolve_text(tmp_path, checkpoint, FUSED)
        named = FUSED.replace("parts =", 'encoder = "NVFP4_MAXABS_V1"\nparts =')
        (spec,) = resolve_text(tmp_path, checkpoint, named).tensors
        assert (spec.encoder, spec.lossy, spec.rows.dtype) == ("NVFP4_MAXABS_V1", True, "F32")
        expected = np.concatenate([checkpoint[name].read(0, 128) for name in ("g.weight", "u.weight")])
        np.testing.assert_array_equal(spec.rows.read(0, 256), expected)


def test_parts_of_different_formats_never_share_a_parent(tmp_path):
    tensors = nvfp4_parts(128, 64).compressed_tensors("g") | fp8_parts(128, 64).tensors("u")
    config = quantization_config(nvfp4_group(["Linear"]), fp8_group(["re:u"]))
    write_checkpoint(tmp_path / "c", tensors, config)
    with open_checkpoint(tmp_path / "c") as checkpoint, pytest.raises(RecipeError, match="formats differ"):
        resolve_text(tmp_path, checkpoint, FUSED)


def test_row_selections_keep_words(tmp_path):
    parts = fp8_parts(24, 32)
    write_checkpoint(tmp_path, parts.tensors("a"), quantization_config(fp8_group(["Linear"])))
    with open_checkpoint(tmp_path) as checkpoint:
        tensor, ids = checkpoint["a.weight"], np.array([5, 6, 7, 0, 23])
        order = np.arange(24)
        for rows, expected in (
            (slice_rows(tensor, 3, 20), order[3:20]),
            (deinterleave(tensor, 3, 1, 2), order.reshape(3, 2, 4)[:, 1].ravel()),
            (gather_rows(tensor, ids), ids),
            (concat(slice_rows(tensor, 20, 24), tensor), np.concatenate([order[20:], order])),
        ):
            words = words_of(rows, 1, len(expected))
            np.testing.assert_array_equal(words.codes, parts.codes[expected[1:]])
            np.testing.assert_array_equal(words.scales, parts.scales[expected[1:]])
        with pytest.raises(RecipeError, match="does not work on quantized words"):
            reshape(tensor, (32, 24))


def test_another_format_needs_an_encoder_by_name(tmp_path):
    write_mixed(tmp_path / "c")
    rule = '[[rule]]\nmatch = "*q_proj.weight"\nformat = "Q4G64_F16S"\n'
    rest = '[[rule]]\nmatch = "*"\nformat = "source"\n'
    with open_checkpoint(tmp_path / "c") as checkpoint:
        with pytest.raises(RecipeError, match=rf"holds FP8_E4M3FN_ROW_BF16S words; name an encoder \({ENCODER}\)"):
            resolve_text(tmp_path, checkpoint, rule + rest)
        specs = by_name(resolve_text(tmp_path, checkpoint, rule + f'encoder = "{ENCODER}"\n' + rest))
        spec = specs["model.layers.0.self_attn.q_proj.weight"]
        assert (spec.format, spec.encoder, spec.lossy, spec.word_exact) == ("Q4G64_F16S", ENCODER, True, False)
        assert not isinstance(spec.rows, WordSource)
        assert "decoded" in spec.notes[0]
        np.testing.assert_array_equal(spec.rows.read(3, 9), checkpoint[spec.name].read(3, 9))


def test_uniform_recipes_requantize_only_when_told(tmp_path):
    write_mixed(tmp_path / "c")
    with open_checkpoint(tmp_path / "c") as checkpoint:
        with pytest.raises(RecipeError, match="name an encoder"):
            resolve(load_recipe("uniform-q6"), checkpoint)
        specs = by_name(resolve(load_recipe("uniform-q6", {"encoder": ENCODER}), checkpoint))
        assert specs["model.layers.0.mlp.up_proj.weight"].lossy
        assert not specs["lm_head.weight"].lossy
        assert specs["lm_head.weight"].format == "Q6G64_F16S"


def test_words_become_direct_values_only_by_a_cast(tmp_path):
    write_mixed(tmp_path / "c")
    with open_checkpoint(tmp_path / "c") as checkpoint:
        tensor = checkpoint["model.layers.0.mlp.up_proj.weight"]
        with pytest.raises(RecipeError, match=r'would be decoded; name cast = "exact"'):
            store("x", tensor, "FP32")
        assert store("x", tensor, "FP32", cast="exact").lossy
        with pytest.raises(RecipeError, match="only by a cast"):
            store("x", tensor, "BF16")


def test_what_does_not_map_names_tensor_dialect_and_reason(tmp_path):
    codes = fp8_parts(6, 64).codes.view(ml_dtypes.float8_e4m3fn)
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 16]}}
    tensors = {"a.weight": codes, "a.weight_scale_inv": np.ones((2, 4), np.float32)}
    write_checkpoint(tmp_path, tensors, config)
    with open_checkpoint(tmp_path) as checkpoint:
        for name in ("word-exact", "uniform-fp8", "uniform-q4"):
            with pytest.raises(RecipeError, match=r"'a\.weight' F32 \[6, 64\] \(fp8-block\).*several scales per row"):
                resolve(load_recipe(name), checkpoint)
        (spec,) = resolve(load_recipe("uniform-fp8", {"encoder": "FP8_ROW_MAXABS_BF16_V1"}), checkpoint).tensors
        assert spec.lossy
        with pytest.raises(RecipeError, match=r"several scales per row.*name an encoder with its format"):
            store("x", concat(checkpoint["a.weight"]), "direct")


def test_what_nothing_decodes_is_refused_before_anything_is_read(tmp_path):
    group = {"targets": ["Linear"], "format": "pack-quantized", "weights": {"num_bits": 4, "strategy": "group"}}
    tensors = {"a.weight_packed": np.zeros((4, 128), np.int32), "a.weight_scale": np.ones((4, 8), np.float32)}
    write_checkpoint(tmp_path, tensors, quantization_config(group))
    with open_checkpoint(tmp_path) as checkpoint:
        message = r"'a\.weight.*pack-quantized.*nothing here decodes it either; drop it"
        for recipe in (load_recipe("word-exact"), load_recipe("uniform-q4", {"encoder": ENCODER})):
            with pytest.raises(RecipeError, match=message):
                resolve(recipe, checkpoint)
        tensor = checkpoint["a.weight"]
        for rows in (tensor, concat(tensor, tensor), slice_rows(tensor, 1, 2), reshape(tensor, (2, 256))):
            with pytest.raises(RecipeError, match=message):
                store("x", rows, "FP32", cast="exact")


MODELOPT = """
[checkpoint]
dialect = "modelopt"
[[rule]]
match = "*.weight"
format = "NVFP4"
[[rule]]
match = "*.input_scale"
format = "FP32"
"""


def test_a_modelopt_divisor_is_made_only_where_the_recipe_says_so(tmp_path):
    parts = nvfp4_parts(128, 64)
    config = {"quantization_config": {"quant_method": "modelopt"}}
    write_checkpoint(tmp_path / "c", parts.modelopt("a", 0.0123), config)
    recipe = load_recipe(recipe_file(tmp_path, MODELOPT))
    assert recipe.dialect == "modelopt"
    with open_checkpoint(tmp_path / "c", dialect=recipe.dialect) as checkpoint:
        with pytest.raises(RecipeError, match=r"\(modelopt\).*is a multiplier"):
            resolve(recipe, checkpoint)
        made = MODELOPT.replace('"NVFP4"', '"NVFP4"\ndivisor = "reciprocal"')
        weight, scale = resolve_text(tmp_path, checkpoint, made).tensors
        words = words_of(weight.rows, 0, 128)
        assert isinstance(words, NVFP4Words)
        assert words.divisor == (np.float32(1) / np.float32(0.0123)).view(np.uint32)
        assert f"{int(np.float32(0.0123).view(np.uint32)):#010x}" in weight.notes[0]
        assert (scale.format, scale.shape) == ("FP32", ())
        wrong = MODELOPT.replace('"FP32"', '"FP32"\ndivisor = "reciprocal"')
        with pytest.raises(RecipeError, match="needs an NVFP4 tensor with a multiplier"):
            resolve_text(tmp_path, checkpoint, wrong.replace('"NVFP4"', '"NVFP4"\ndivisor = "reciprocal"'))


def test_float8_without_a_dialect_is_no_weight(tmp_path):
    write_checkpoint(tmp_path, {"a": np.zeros((4, 64), ml_dtypes.float8_e4m3fn)})
    with open_checkpoint(tmp_path) as checkpoint:
        for name in ("word-exact", "uniform-fp8"):
            with pytest.raises(RecipeError, match="without their scales"):
                resolve(load_recipe(name), checkpoint)


def test_a_layout_that_cannot_hold_the_shape_is_named(tmp_path):
    tensors = nvfp4_parts(100, 64).compressed_tensors("a")
    write_checkpoint(tmp_path, tensors, quantization_config(nvfp4_group(["Linear"])))
    with open_checkpoint(tmp_path) as checkpoint, pytest.raises(RecipeError, match=r"'a\.weight'.*as NVFP4"):
        resolve(load_recipe("word-exact"), checkpoint)
