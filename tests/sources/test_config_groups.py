"""`config_groups`, `ignore` and overlapping targets, resolved as compressed-tensors does."""

import pytest

from ninfer_jax.errors import SourceError
from ninfer_jax.sources.dialects.config_groups import parse_config_groups
from tests.checkpoints import fp8_group, nvfp4_group, quantization_config


def groups(*entries, ignore=()):
    return parse_config_groups(quantization_config(*entries, ignore=ignore)["quantization_config"])


def format_of(found, module):
    scheme = found.scheme(module)
    return scheme and scheme.format


def test_a_name_wins_over_a_pattern_and_a_pattern_over_a_class():
    found = groups(
        nvfp4_group(["Linear"]), fp8_group(["re:.*self_attn.*"]), nvfp4_group(["model.layers.3.self_attn.q_proj"])
    )
    assert format_of(found, "model.layers.0.mlp.up_proj") == "nvfp4-pack-quantized"
    assert format_of(found, "model.layers.0.self_attn.q_proj") == "float-quantized"
    assert format_of(found, "model.layers.3.self_attn.q_proj") == "nvfp4-pack-quantized"


def test_the_order_of_groups_does_not_change_that():
    found = groups(fp8_group(["re:.*self_attn.*"]), nvfp4_group(["Linear"]))
    assert format_of(found, "model.layers.0.self_attn.q_proj") == "float-quantized"
    assert format_of(found, "model.layers.0.mlp.up_proj") == "nvfp4-pack-quantized"


def test_a_target_of_two_groups_belongs_to_the_later_one():
    assert format_of(groups(nvfp4_group(["Linear"]), fp8_group(["Linear"])), "x") == "float-quantized"
    assert format_of(groups(fp8_group(["Linear"]), nvfp4_group(["Linear"])), "x") == "nvfp4-pack-quantized"


def test_of_several_patterns_the_first_in_sorted_order_wins():
    found = groups(nvfp4_group(["re:.*proj"]), fp8_group(["re:.*down.*"]))
    assert format_of(found, "mlp.down_proj") == "float-quantized"
    assert format_of(found, "mlp.up_proj") == "nvfp4-pack-quantized"


def test_patterns_match_from_the_start_and_need_not_reach_the_end():
    found = groups(fp8_group(["re:model\\.layers\\.1"]))
    assert format_of(found, "model.layers.10.mlp") == "float-quantized"
    assert format_of(found, "draft.model.layers.1") is None


def test_ignore_lies_on_top():
    found = groups(nvfp4_group(["Linear"]), ignore=("lm_head", "re:.*mlp.gate$"))
    assert found.ignored("lm_head")
    assert found.ignored("model.layers.7.mlp.gate")
    assert not found.ignored("model.layers.7.mlp.gate_proj")
    assert not found.ignored("model.lm_head")

    assert groups(nvfp4_group(["re:.*"]), ignore=("Embedding",)).ignored("model.embed_tokens")


def test_a_target_of_another_class_or_module_does_not_match():
    assert groups(nvfp4_group(["Embedding"])).scheme("mlp.up_proj") is None
    assert groups(nvfp4_group(["lm_head"])).scheme("mlp.up_proj") is None


def test_embeddings_and_other_classes():
    found = groups(nvfp4_group(["Conv2d"]), fp8_group(["Linear"]), nvfp4_group(["Embedding"]))
    assert format_of(found, "mlp.up_proj") == "float-quantized"
    assert format_of(found, "model.embed_tokens") == "nvfp4-pack-quantized"


def test_groups_without_a_format_follow_their_weights_in_a_mixed_checkpoint():
    nvfp4, fp8 = nvfp4_group(["a"]), fp8_group(["b"])
    del nvfp4["format"], fp8["format"]
    found = groups(nvfp4, fp8)
    assert format_of(found, "a") == "nvfp4-pack-quantized"
    assert format_of(found, "b") == "float-quantized"


def test_presets_and_groups_without_weights():
    found = parse_config_groups({"config_groups": {"NVFP4": ["a"], "FP8_DYNAMIC": ["b"], "g": {"targets": ["c"]}}})
    assert format_of(found, "a") == "nvfp4-pack-quantized"
    assert (found.targets["b"].format, found.targets["b"].strategy) == ("float-quantized", "channel")
    assert format_of(found, "c") == "dense"


def test_block_structures():
    for block in ([128, 64], "128x64"):
        group = fp8_group(["a"], "block", weights={"block_structure": block})
        assert groups(group).targets["a"].block == (128, 64)
    with pytest.raises(SourceError, match="block_structure"):
        groups(fp8_group(["a"], "block"))


def test_asymmetric_weights_map_to_nothing():
    group = fp8_group(["a"], weights={"symmetric": False})
    assert format_of(groups(group), "a") == "asymmetric"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"config_groups": []},
        {"config_groups": {"g": 1}},
        {"config_groups": {"W4A16": ["Linear"]}},
        {"config_groups": {"g": {"targets": "Linear"}}},
        {"config_groups": {"g": {"targets": ["a"], "weights": []}}},
        {"config_groups": {"g": {"targets": ["a"]}}, "ignore": "lm_head"},
    ],
)
def test_malformed_configs(config):
    with pytest.raises(SourceError):
        parse_config_groups(config)


def test_an_invalid_pattern_is_named():
    with pytest.raises(SourceError, match=r"invalid regular expression 're:\['"):
        groups(fp8_group(["re:["])).scheme("x")
