"""Target qwen3.6-27b / groupwise-int: the whole inventory, and every transform on a scaled-down checkpoint."""

import json
from collections import Counter

import numpy as np
import pytest

from ninfer_jax.errors import RecipeError
from ninfer_jax.recipes import Resolution, TensorSpec, load_recipe, resolve
from ninfer_jax.sources import open_checkpoint, open_config
from tests.checkpoints import (
    array_of,
    qwen_config,
    qwen_shapes,
    random_tensors,
    real_qwen_config,
    write_counts,
    write_qwen,
)

Q4, Q5, Q6, W8 = "Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S"
FULL = [
    ("input_norm", (5120,), "BF16"),
    ("attention/query_key", (7168, 5120), Q4),
    ("attention/gate_value", (7168, 5120), Q5),
    ("attention/query_norm", (256,), "BF16"),
    ("attention/key_norm", (256,), "BF16"),
    ("attention/output", (5120, 6144), Q5),
    ("post_attention_norm", (5120,), "BF16"),
    ("mlp/gate_up", (34816, 5120), Q4),
    ("mlp/down", (5120, 17408), Q5),
]
GDN = [
    ("input_norm", (5120,), "BF16"),
    ("gdn/a_log", (48,), "FP32"),
    ("gdn/dt_bias", (48,), "FP32"),
    ("gdn/convolution", (4, 10240), "BF16"),
    ("gdn/a_projection", (48, 5120), "BF16"),
    ("gdn/b_projection", (48, 5120), "BF16"),
    ("gdn/query_key", (4096, 5120), Q4),
    ("gdn/value_z", (12288, 5120), Q5),
    ("gdn/norm", (128,), "BF16"),
    ("gdn/output", (5120, 6144), Q5),
    ("post_attention_norm", (5120,), "BF16"),
    ("mlp/gate_up", (34816, 5120), Q4),
    ("mlp/down", (5120, 17408), Q5),
]
TAIL = [
    ("text/final_norm", (5120,), "BF16"),
    ("text/output_head", (248320, 5120), Q6),
    ("text/draft_head", (131072, 5120), Q4),
    ("text/draft_head_token_ids", (131072,), "I32"),
    ("mtp/input_projection", (5120, 10240), W8),
    ("mtp/embedding_norm", (5120,), "BF16"),
    ("mtp/hidden_norm", (5120,), "BF16"),
    ("mtp/layer/input_norm", (5120,), "BF16"),
    ("mtp/layer/attention/query_key_gate_value", (14336, 5120), W8),
    ("mtp/layer/attention/query_norm", (256,), "BF16"),
    ("mtp/layer/attention/key_norm", (256,), "BF16"),
    ("mtp/layer/attention/output", (5120, 6144), W8),
    ("mtp/layer/post_attention_norm", (5120,), "BF16"),
    ("mtp/layer/mlp/gate_up", (34816, 5120), W8),
    ("mtp/layer/mlp/down", (5120, 17408), W8),
    ("mtp/final_norm", (5120,), "BF16"),
    ("vision/patch_embedding", (1152, 1536), Q6),
    ("vision/patch_embedding_bias", (1152,), "BF16"),
    ("vision/position_embedding", (2304, 1152), "BF16"),
]
VISION = [
    ("attention/qkv", (3456, 1152), Q4),
    ("attention/qkv_bias", (3456,), "BF16"),
    ("attention/output", (1152, 1152), Q5),
    ("attention/output_bias", (1152,), "BF16"),
    ("mlp/fc1", (4304, 1152), Q4),
    ("mlp/fc1_bias", (4304,), "BF16"),
    ("mlp/fc2", (1152, 4304), Q5),
    ("mlp/fc2_bias", (1152,), "BF16"),
    ("norm1/weight", (1152,), "BF16"),
    ("norm1/bias", (1152,), "BF16"),
    ("norm2/weight", (1152,), "BF16"),
    ("norm2/bias", (1152,), "BF16"),
]
MERGER = [
    ("vision/merger/fc1", (4608, 4608), W8),
    ("vision/merger/fc1_bias", (4608,), "BF16"),
    ("vision/merger/fc2", (5120, 4608), W8),
    ("vision/merger/fc2_bias", (5120,), "BF16"),
    ("vision/merger/norm/weight", (1152,), "BF16"),
    ("vision/merger/norm/bias", (1152,), "BF16"),
]
RESOURCES = [
    "frontend/tokenizer.json",
    "frontend/tokenizer_config.json",
    "frontend/chat_template.jinja",
    "frontend/generation_config.json",
    "frontend/preprocessor_config.json",
    "frontend/video_preprocessor_config.json",
]


def inventory() -> list[tuple[str, tuple[int, ...], str]]:
    """The table of the target, written out."""
    rows = [("text/token_embedding", (248320, 5120), Q6)]
    for layer in range(64):
        rows += [(f"text/layers/{layer}/{name}", *rest) for name, *rest in (FULL if layer % 4 == 3 else GDN)]
    rows += TAIL
    for block in range(27):
        rows += [(f"vision/layers/{block}/{name}", *rest) for name, *rest in VISION]
    return rows + MERGER


def test_config_alone_gives_the_complete_inventory(tmp_path):
    config = real_qwen_config()
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = resolve(load_recipe("qwen3.6-27b"), open_config(tmp_path / "config.json"))
    assert len(found.objects) == 1124
    assert [spec.name for spec in found.objects[:6]] == RESOURCES
    assert [spec.nbytes for spec in found.resources] == [None] * 6
    assert [(spec.name, spec.shape, spec.format) for spec in found.tensors] == inventory()
    counts = Counter(spec.format for spec in found.tensors)
    assert counts == {"BF16": 582, "FP32": 96, "I32": 1, Q4: 183, Q5: 246, Q6: 3, W8: 7}
    assert found.identity == ("qwen3.6-27b", "groupwise-int")
    used = {ref.tensor for spec in found.tensors for ref in spec.rows.sources}
    assert used == set(qwen_shapes(config))
    assert len(used) == 1199


def test_layer_types_win_over_the_interval(tmp_path):
    config = qwen_config()
    config["text_config"]["layer_types"] = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = resolve(load_recipe("qwen3.6-27b"), open_config(tmp_path))
    full = [spec.name for spec in found.tensors if spec.name.endswith("attention/gate_value")]
    assert full == ["text/layers/0/attention/gate_value", "text/layers/3/attention/gate_value"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen")
    write_qwen(folder / "c")
    counts = write_counts(folder / "counts.i64", 320)
    arrays = {name: array_of(tensor) for name, tensor in random_tensors(qwen_shapes(qwen_config())).items()}
    with open_checkpoint(folder / "c") as checkpoint:
        yield folder, checkpoint, arrays, counts


def specs_of(resolution: Resolution) -> dict[str, TensorSpec]:
    return {spec.name: spec for spec in resolution.tensors}


@pytest.fixture(scope="module")
def specs(small):
    folder, checkpoint, _, _ = small
    recipe = load_recipe("qwen3.6-27b", {"draft_counts": str(folder / "counts.i64")})
    resolution = resolve(recipe, checkpoint)
    assert [spec.name for spec in resolution.resources] == RESOURCES
    assert all(spec.path is not None and spec.nbytes == spec.path.stat().st_size for spec in resolution.resources)
    assert not resolution.dropped
    assert not resolution.notes
    return specs_of(resolution)


def assert_values(spec: TensorSpec, expected: np.ndarray) -> None:
    assert spec.shape == expected.shape
    count, step = expected.shape[0], 7
    blocks = [spec.rows.read(start, min(start + step, count)) for start in range(0, count, step)]
    assert np.concatenate(blocks).tobytes() == expected.tobytes()


def heads_split(q_proj: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    split = q_proj.reshape(4, 2, 16, 128)
    return split[:, 0].reshape(64, 128), split[:, 1].reshape(64, 128)


def test_full_attention(small, specs):
    arrays = small[2]
    prefix = "model.language_model.layers.3."
    query, gate = heads_split(arrays[prefix + "self_attn.q_proj.weight"])
    key, value = (arrays[f"{prefix}self_attn.{name}_proj.weight"] for name in "kv")
    gate_up = [arrays[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up")]
    layer = "text/layers/3/"
    assert_values(specs[layer + "attention/query_key"], np.concatenate([query, key]))
    assert_values(specs[layer + "attention/gate_value"], np.concatenate([gate, value]))
    assert_values(specs[layer + "attention/output"], arrays[prefix + "self_attn.o_proj.weight"])
    assert_values(specs[layer + "mlp/gate_up"], np.concatenate(gate_up))
    assert_values(specs[layer + "post_attention_norm"], arrays[prefix + "post_attention_layernorm.weight"])
    assert "text/layers/3/gdn/norm" not in specs


def test_gdn(small, specs):
    arrays = small[2]
    prefix, layer = "model.language_model.layers.1.linear_attn.", "text/layers/1/gdn/"
    qkv = arrays[prefix + "in_proj_qkv.weight"]
    assert_values(specs[layer + "query_key"], qkv[:64])
    assert_values(specs[layer + "value_z"], np.concatenate([qkv[64:], arrays[prefix + "in_proj_z.weight"]]))
    assert_values(specs[layer + "convolution"], np.ascontiguousarray(arrays[prefix + "conv1d.weight"][:, 0].T))
    for name in ("A_log", "dt_bias"):
        spec = specs[layer + name.lower()]
        assert (spec.format, spec.cast) == ("FP32", None)
        assert_values(spec, arrays[prefix + name].astype(np.float32))
    for name in ("a", "b"):
        assert_values(specs[f"{layer}{name}_projection"], arrays[f"{prefix}in_proj_{name}.weight"])


def test_mtp_and_vision(small, specs):
    arrays = small[2]
    query, gate = heads_split(arrays["mtp.layers.0.self_attn.q_proj.weight"])
    key, value = (arrays[f"mtp.layers.0.self_attn.{name}_proj.weight"] for name in "kv")
    assert_values(specs["mtp/layer/attention/query_key_gate_value"], np.concatenate([query, key, gate, value]))
    assert_values(specs["mtp/input_projection"], arrays["mtp.fc.weight"])
    patch = arrays["model.visual.patch_embed.proj.weight"]
    assert_values(specs["vision/patch_embedding"], patch.reshape(32, 96))
    assert_values(specs["vision/layers/1/mlp/fc2_bias"], arrays["model.visual.blocks.1.mlp.linear_fc2.bias"])
    assert_values(specs["vision/merger/fc2"], arrays["model.visual.merger.linear_fc2.weight"])


def test_every_source_tensor_is_used(small, specs):
    assert {ref.tensor for spec in specs.values() for ref in spec.rows.sources} == set(small[2])


def ranking(counts: np.ndarray, size: int) -> list[int]:
    """The draft ranking by sorting tuples, independent of the implementation."""
    candidates, forced = 313, {309, 310, 311}  # tokenizer_config.json adds 310 and takes 312 away
    others = sorted(set(range(candidates)) - forced, key=lambda i: (-counts[i], i))
    kept = others[: size - len(forced)] + sorted(forced)
    return sorted(kept, key=lambda i: -counts[i])


@pytest.mark.parametrize("size", [160, 3, 313])
def test_draft_head(small, size):
    folder, checkpoint, arrays, counts = small
    options = {"draft_counts": str(folder / "counts.i64"), "draft_rows": str(size)}
    found = specs_of(resolve(load_recipe("qwen3.6-27b", options), checkpoint))
    ids = ranking(counts, size)
    assert_values(found["text/draft_head_token_ids"], np.array(ids, np.int32))
    assert found["text/draft_head_token_ids"].format == "I32"
    assert_values(found["text/draft_head"], arrays["lm_head.weight"][ids])


def test_without_counts_the_draft_objects_are_left_out(small):
    found = resolve(load_recipe("qwen3.6-27b"), small[1])
    assert not [spec for spec in found.tensors if "draft" in spec.name]
    assert [note.split(":")[0] for note in found.notes] == ["text/draft_head", "text/draft_head_token_ids"]
    assert "draft_counts" in found.notes[0]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda path: path.write_bytes(b""), {}, r"has 0 bytes; a multiple of 2560"),
        (lambda path: path.write_bytes(bytes(2561)), {}, "2561 bytes"),
        (lambda path: np.full(320, -1).tofile(path), {}, "negative count at id 0"),
        (lambda path: np.ones(320, np.int64).tofile(path), {"draft_rows": "314"}, "313 candidates"),
        (lambda path: np.ones(320, np.int64).tofile(path), {"draft_rows": "2"}, "3 are forced"),
    ],
)
def test_bad_counts(small, tmp_path, make, options, message):
    make(tmp_path / "counts")
    recipe = load_recipe("qwen3.6-27b", {"draft_counts": str(tmp_path / "counts"), **options})
    with pytest.raises(RecipeError, match=message):
        resolve(recipe, small[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: config["text_config"].update(intermediate_size=200), r"down_proj\.weight|gate_proj\.weight"),
        (lambda config: config["text_config"].pop("head_dim"), r"config\.json lacks 'text_config\.head_dim'"),
        (lambda config: config["text_config"].update(num_hidden_layers=5), r"no tensor '.*layers\.4"),
        (lambda config: config["text_config"].update(num_hidden_layers=3), r"no object of the recipe uses tensor"),
        (lambda config: config["text_config"].update(num_hidden_layers=10**9), "repeated 1000000000 times"),
        (lambda config: config["text_config"].update(num_hidden_layers="4"), "an integer >= 0 is needed"),
    ],
)
def test_a_config_that_does_not_fit_the_weights(tmp_path, change, message):
    config = qwen_config()
    write_qwen(tmp_path, config)
    change(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with open_checkpoint(tmp_path) as checkpoint, pytest.raises(RecipeError, match=message):
        resolve(load_recipe("qwen3.6-27b"), checkpoint)


def test_a_missing_resource_is_named(tmp_path):
    write_qwen(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with open_checkpoint(tmp_path) as checkpoint, pytest.raises(RecipeError, match=r"no file chat_template\.jinja"):
        resolve(load_recipe("qwen3.6-27b"), checkpoint)
