"""The dense families, templates of one's own, id lists, and the Python API."""

import json

import numpy as np
import pytest

from ninfer_jax.errors import RecipeError, SourceError
from ninfer_jax.recipes import (
    RowSource,
    WordSource,
    concat,
    gather_rows,
    load_recipe,
    resolution,
    resolve,
    store,
    transpose,
)
from ninfer_jax.sources import open_checkpoint, open_config
from tests.checkpoints import (
    Random,
    array_of,
    llama_config,
    llama_shapes,
    nvfp4_group,
    nvfp4_parts,
    quantization_config,
    random_tensors,
    write_checkpoint,
)

LLAMA = llama_config()
QWEN3 = llama_config(model_type="qwen3", head_dim=32, tie_word_embeddings=True)


def write(folder, config, extra=None):
    tensors = random_tensors(llama_shapes(config)) | (extra or {})
    write_checkpoint(folder, tensors, config, shards=3)
    return {name: array_of(tensor) for name, tensor in tensors.items()}


def read(rows: RowSource) -> np.ndarray:
    return rows.read(0, rows.shape[0])


@pytest.mark.parametrize(("family", "config"), [("llama", LLAMA), ("qwen3", QWEN3)])
def test_dense_families(tmp_path, family, config):
    arrays = write(tmp_path / "tiny", config)
    with open_checkpoint(tmp_path / "tiny") as checkpoint:
        found = resolve(load_recipe(family), checkpoint)
        specs = {spec.name: spec for spec in found.tensors}
        assert found.identity == ("tiny", "groupwise-int")
        assert ("text/output_head" in specs) != config["tie_word_embeddings"]
        assert specs["text/token_embedding"].format == "Q6G64_F16S"
        for layer in range(2):
            source, stored = f"model.layers.{layer}.", f"text/layers/{layer}/"
            qkv = np.concatenate([arrays[f"{source}self_attn.{name}_proj.weight"] for name in "qkv"])
            fused = specs[stored + "attention/query_key_value"]
            assert fused.format == "Q4G64_F16S"
            np.testing.assert_array_equal(read(fused.rows), qkv)
            gate_up = np.concatenate([arrays[f"{source}mlp.{name}_proj.weight"] for name in ("gate", "up")])
            np.testing.assert_array_equal(read(specs[stored + "mlp/gate_up"].rows), gate_up)
            assert (stored + "attention/query_norm" in specs) == (family == "qwen3")
            assert specs[stored + "input_norm"].format == "BF16"


def test_families_plan_from_config_alone(tmp_path):
    write(tmp_path / "c", LLAMA)
    with open_checkpoint(tmp_path / "c") as checkpoint:
        full = resolve(load_recipe("llama"), checkpoint)
    planned = resolve(load_recipe("llama"), open_config(tmp_path / "c"))
    assert [(s.name, s.shape, s.format) for s in planned.tensors] == [(s.name, s.shape, s.format) for s in full.tensors]
    with pytest.raises(SourceError, match="need the checkpoint"):
        planned.tensors[0].rows.read(0, 1)


def test_formats_are_options(tmp_path):
    write(tmp_path / "c", LLAMA)
    options = {"linear": "NVFP4", "embedding": "BF16", "head": "FP8_E4M3FN_ROW_BF16S", "weights": "nvfp4"}
    with open_checkpoint(tmp_path / "c") as checkpoint:
        found = resolve(load_recipe("llama", options), checkpoint)
        assert found.identity.weights_id == "nvfp4"
        assert {spec.name: spec.encoder for spec in found.tensors}["text/layers/0/mlp/down"] == "NVFP4_MAXABS_V1"
        with pytest.raises(RecipeError, match="unknown format 'Q4'"):
            resolve(load_recipe("llama", {"linear": "Q4"}), checkpoint)


def test_rotary_tables_and_copies_of_a_tied_head_are_dropped(tmp_path):
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
        "lm_head.weight": Random((256, 128)),
    }
    write(tmp_path / "c", LLAMA | {"tie_word_embeddings": True}, extra)
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert resolve(load_recipe("llama"), checkpoint).dropped == tuple(extra)


def test_an_unknown_tensor_is_an_error(tmp_path):
    write(tmp_path / "c", LLAMA, {"model.layers.0.adapter.weight": Random((4, 4))})
    with open_checkpoint(tmp_path / "c") as checkpoint, pytest.raises(RecipeError, match=r"layers\.0\.adapter\.weight"):
        resolve(load_recipe("llama"), checkpoint)


def test_a_quantized_llama_fuses_word_for_word(tmp_path):
    config = llama_config(num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4)
    plain = random_tensors(llama_shapes(config))
    tensors, parts = {}, {}
    for index, (name, tensor) in enumerate(plain.items()):
        if name.endswith("_proj.weight"):
            parts[name] = nvfp4_parts(*tensor.shape, seed=index)
            tensors |= parts[name].compressed_tensors(name.removesuffix(".weight"), input_scale=2.0)
        else:
            tensors[name] = tensor
    write_checkpoint(tmp_path / "c", tensors, quantization_config(nvfp4_group(["Linear"])) | config)
    options = {"linear": "source", "embedding": "source", "head": "source"}
    with open_checkpoint(tmp_path / "c") as checkpoint:
        specs = {spec.name: spec for spec in resolve(load_recipe("llama", options), checkpoint).tensors}
        fused = specs["text/layers/0/attention/query_key_value"]
        assert fused.format == "NVFP4"
        assert isinstance(fused.rows, WordSource)
        codes = [parts[f"model.layers.0.self_attn.{name}_proj.weight"].codes for name in "qkv"]
        np.testing.assert_array_equal(fused.rows.read_words(0, 384).codes, np.concatenate(codes))
        scales = [spec for name, spec in specs.items() if name.endswith("input_global_scale")]
        assert {spec.format for spec in scales} == {"FP32"}
        assert len(scales) == 7


TEMPLATE = """
[identity]
model_id = "m-{kind}"
weights_id = "w"
[options]
kind = { kind = "string", default = "x" }
keep = { kind = "file" }
[dims]
n = 'config("n")'
half = "n // 2"
[ids.keep]
file = "keep"
size = 3
[[object]]
name = "kept"
format = "source"
source = "a0"
shape = ["n", 4]
steps = [{ gather = "keep" }, { transpose = [1, 0] }]
[[object]]
name = "ids"
format = "I32"
ids = "keep"
[[object]]
each = "i"
count = "half"
[[object.object]]
each = "j"
count = 2
when = "i != 1"
[[object.object.object]]
name = "t/{i}/{j}"
format = "FP32"
source = "a{j}"
steps = [{ slice = ["i", "i + 1"] }, { reshape = [4] }, { widen = true }]
[[resource]]
name = "readme"
file = "README.md"
optional = true
[[rule]]
match = "*"
drop = true
"""


@pytest.fixture
def template(tmp_path):
    config = {"n": 6}
    tensors = {f"a{i}": Random((6, 4), seed=i) for i in range(3)}
    write_checkpoint(tmp_path / "c", tensors, config)
    (tmp_path / "r.toml").write_text(TEMPLATE)
    np.save(tmp_path / "keep.npy", np.array([4, 0, 5]))
    return tmp_path, {name: array_of(tensor) for name, tensor in tensors.items()}


def test_templates_of_ones_own(template):
    folder, arrays = template
    recipe = load_recipe(folder / "r.toml", {"keep": str(folder / "keep.npy")})
    with open_checkpoint(folder / "c") as checkpoint:
        found = resolve(recipe, checkpoint)
        specs = {spec.name: spec for spec in found.tensors}
        assert list(specs) == ["kept", "ids", "t/0/0", "t/0/1", "t/2/0", "t/2/1"]
        np.testing.assert_array_equal(read(specs["kept"].rows), arrays["a0"][[4, 0, 5]].T)
        np.testing.assert_array_equal(read(specs["ids"].rows), np.array([4, 0, 5], np.int32))
        np.testing.assert_array_equal(read(specs["t/2/1"].rows), arrays["a1"][2].astype(np.float32))
        assert found.identity == ("m-x", "w")
        assert found.dropped == ("a2",)
        assert found.notes == (
            "readme: left out, because the checkpoint has no README.md",
            "a0: 2 of its 6 rows are in no object, first rows [1, 2)",
            "a1: 4 of its 6 rows are in no object, first rows [1, 2)",
        )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("k.json", json.dumps([1, 2]), r"is int64 \[2\]; 3 integers are needed"),
        ("k.json", json.dumps([1, 2, 6]), r"id 6 \(position 2\) lies|id 6 \(position 2\) is"),
        ("k.json", json.dumps([1, 2, 0.5]), "is float64"),
        ("k.json", "[1, 2", "cannot be read"),
        ("k.json", "[[1], [2, 3]]", "cannot be read"),
        ("k.npy", "junk", "cannot be read"),
        ("k.txt", "1", r"\.npy or \.json is needed"),
    ],
)
def test_bad_id_lists(template, name, content, message):
    folder, _ = template
    (folder / name).write_text(content)
    with open_checkpoint(folder / "c") as checkpoint, pytest.raises(RecipeError, match=message):
        resolve(load_recipe(folder / "r.toml", {"keep": str(folder / name)}), checkpoint)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('shape = ["n", 4]', 'shape = ["n", 5]', r"'a0' BF16 \[6, 4\] should have shape \[6, 5\]"),
        ('source = "a{j}"', 'source = "b{j}"', "no tensor 'b0'"),
        ('gather = "keep"', 'gather = "gone"', "unknown id list 'gone'"),
        ('file = "keep"', 'file = "kind"', "no option of kind file"),
        ('each = "j"', 'each = "n"', "'n' is already"),
        ("t/{i}/{j}", "t/{i}", "two objects would be stored as 't/0'"),
        ("transpose = [1, 0]", "transpose = [1, 1]", "no permutation"),
        ("half = ", "kind = ", "'kind' is already"),
        ('count = "half"', 'count = "kind"', "an integer >= 0"),
        ('model_id = "m-{kind}"', 'model_id = "{other}"', r"uses \{other\}"),
        ('file = "README.md"', 'file = "../README.md"', "plain file name"),
    ],
)
def test_template_errors(template, old, new, message):
    folder, _ = template
    text = TEMPLATE.replace(old, new)
    assert text != TEMPLATE
    (folder / "r.toml").write_text(text.replace("optional = true\n", "") if "README" in old else text)
    with open_checkpoint(folder / "c") as checkpoint, pytest.raises(RecipeError, match=message):
        resolve(load_recipe(folder / "r.toml", {"keep": str(folder / "keep.npy")}), checkpoint)


def test_the_python_api(template):
    folder, arrays = template
    with open_checkpoint(folder / "c") as checkpoint:
        fused = concat(checkpoint["a0"], gather_rows(checkpoint["a1"], np.array([5, 1])))
        specs = [
            store("fused", fused, "Q4G64_F16S"),
            store("turned", transpose(checkpoint["a2"], (1, 0)), "BF16"),
        ]
        found = resolution(("model", "mine"), specs)
        assert found.identity.model_id == "model"
        np.testing.assert_array_equal(read(found.tensors[0].rows), np.concatenate([arrays["a0"], arrays["a1"][[5, 1]]]))
        assert (found.tensors[0].encoder, found.tensors[0].shape) == ("MAXABS_F16_RECIP_RNE_V1", (8, 4))
        with pytest.raises(RecipeError, match="two objects would be stored as 'fused'"):
            resolution(("model", "mine"), [specs[0], specs[0]])
        with pytest.raises(RecipeError, match="nonempty model_id"):
            resolution(("", "mine"), specs)
