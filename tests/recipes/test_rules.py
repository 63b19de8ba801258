"""`[[rule]]` recipes: first match, conditions, the listed errors, and the uniform recipes."""

import numpy as np
import pytest

from ninfer_jax.errors import RecipeError
from ninfer_jax.formats import FORMATS
from ninfer_jax.layouts import encoded_size
from ninfer_jax.recipes import BUILTIN_RECIPES, Resolution, load_recipe, resolve
from ninfer_jax.sources import open_checkpoint, open_config
from tests.checkpoints import Random, minilm_tensors, write_checkpoint

HEAD = '[identity]\nmodel_id = "m"\nweights_id = "w"\n'
TENSORS = {
    "a.weight": Random((130, 96), "F32"),
    "a.bias": Random((96,), "F32"),
    "b.weight": Random((16, 32), "BF16"),
    "b.half": Random((4, 64), "F16"),
    "ids": np.arange(6, dtype=np.int64),
    "count": np.arange(3, dtype=np.int32),
    "wide": np.array([1.5, 2.5]),
    "scalar": np.array(2, np.float32),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = write_checkpoint(tmp_path_factory.mktemp("rules") / "c", TENSORS)
    with open_checkpoint(folder) as opened:
        yield opened


def apply(tmp_path, checkpoint, rules: str) -> Resolution:
    path = tmp_path / "r.toml"
    path.write_text(HEAD + rules)
    return resolve(load_recipe(path), checkpoint)


REST = """
[[rule]]
match = "*"
format = "direct"
"""


def formats(resolution: Resolution) -> dict[str, tuple[str, str | None]]:
    return {spec.name: (spec.format, spec.cast) for spec in resolution.tensors}


def test_the_first_rule_that_matches_wins(tmp_path, checkpoint):
    rules = """
[[rule]]
match = "a.*"
rank = 2
format = "Q4G64_F16S"
[[rule]]
match = "*.weight"
format = "Q5G64_F16S"
[[rule]]
match = "[ab].*"
format = "FP32"
cast = "exact"
[[rule]]
match = "wid?"
drop = true
"""
    found = apply(tmp_path, checkpoint, rules + REST)
    assert formats(found) == {
        "a.weight": ("Q4G64_F16S", None),
        "a.bias": ("FP32", None),
        "b.weight": ("Q5G64_F16S", None),
        "b.half": ("FP32", "exact"),
        "ids": ("I32", "exact"),
        "count": ("I32", None),
        "scalar": ("FP32", None),
    }
    assert found.dropped == ("wide",)
    assert found.identity == ("m", "w")
    assert [spec.encoder for spec in found.tensors][:2] == ["MAXABS_F16_RECIP_RNE_V1", None]
    assert [spec.name for spec in found.tensors] == [name for name in TENSORS if name != "wide"]


def test_conditions_and_names(tmp_path, checkpoint):
    rules = """
[[rule]]
match = "*"
rank = 2
min_k = 64
fits = true
dtype = ["F32", "BF16"]
format = "Q6G64_F16S"
name = "text/{name}"
[[rule]]
match = "*"
dtype = "F64"
format = "FP32"
cast = "round"
"""
    found = formats(apply(tmp_path, checkpoint, rules + REST))
    assert found["text/a.weight"] == ("Q6G64_F16S", None)
    assert found["b.weight"] == ("BF16", None)
    assert found["b.half"] == ("FP32", "exact")
    assert found["wide"] == ("FP32", "round")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ('[[rule]]\nmatch = "a.*"\nformat = "source"\n', r"no rule matches tensor 'b\.weight' BF16 \[16, 32\]"),
        ('[[rule]]\nmatch = "*"\nrank = 2\nformat = "direct"\n', "rule 1 matches its name, but not its rank"),
        ('[[rule]]\nmatch = "z*"\nformat = "source"\n' + REST, r"rule 1 \(match = 'z\*'\) takes no tensor"),
        (REST + '[[rule]]\nmatch = "a.*"\nformat = "source"\n', "2 tensors have such a name, but earlier rules"),
        ('[[rule]]\nmatch = "*"\nformat = "direct"\nname = "x"\n', r"stored as 'x': a\.weight and a\.bias"),
        ('[[rule]]\nmatch = "a.bias"\nformat = "Q4G64_F16S"\n' + REST, r"'a\.bias' F32 \[96\] cannot be stored as Q4"),
        ('[[rule]]\nmatch = "a.weight"\nformat = "NVFP4"\n' + REST, r"cannot be stored as NVFP4.*N % 128"),
        ('[[rule]]\nmatch = "b.half"\nformat = "source"\n' + REST, r'format = "FP32" with cast = "exact"'),
        (
            '[[rule]]\nmatch = "wide"\nformat = "source"\n' + REST,
            r'F64 words; name format = "FP32" with cast = "exact"',
        ),
        ('[[rule]]\nmatch = "ids"\nformat = "source"\n' + REST, r'I64 words; name format = "I32" with cast = "exact"'),
        ('[[rule]]\nmatch = "a.bias"\nformat = "BF16"\n' + REST, r'name cast = "round" or cast = "exact"'),
        ('[[rule]]\nmatch = "b.weight"\nformat = "FP32"\n' + REST, r'type is BF16; name cast = "round"'),
        ('[[rule]]\nmatch = "ids"\nformat = "BF16"\ncast = "round"\n' + REST, r"no cast 'round' takes 'ids'.*I32"),
        ('[[rule]]\nmatch = "wide"\nformat = "BF16"\ncast = "round"\n' + REST, r"F64 casts to FP32"),
        ('[[rule]]\nmatch = "ids"\nformat = "Q4G64_F16S"\n' + REST, "cannot be quantized"),
        ('[[rule]]\nmatch = "a.weight"\nformat = "Q4G64_F16S"\ncast = "round"\n' + REST, "takes no cast"),
        ('[[rule]]\nmatch = "a.bias"\nformat = "FP32"\nencoder = "X"\n' + REST, "takes a cast, not encoder"),
        ('[[rule]]\nmatch = "a.bias"\nformat = "source"\ncast = "round"\n' + REST, "takes neither cast nor encoder"),
        ('[[rule]]\nmatch = "a.weight"\nformat = "q4"\n' + REST, "unknown format 'q4'.*the keywords 'source'"),
        ('[[rule]]\nmatch = "a.weight"\nformat = "Q4G64_F16S"\nencoder = "X"\n' + REST, "unknown encoder profile 'X'"),
        (
            '[[rule]]\nmatch = "a.weight"\nformat = "Q4G64_F16S"\nencoder = "NVFP4_MAXABS_V1"\n' + REST,
            "does not encode Q4G64_F16S",
        ),
        ('[[rule]]\nmatch = "*"\ndrop = true\n', "nothing would be stored"),
        ('[[rule]]\nmatch = "*"\nformat = "direct"\nname = "{x}"\n', r"uses \{x\}; known are"),
        ('[[rule]]\nmatch = "*"\nformat = "direct"\nname = "a{name"\n', r"brace that is no \{name\}"),
        ('[[rule]]\nmatch = "*"\nformat = "direct"\ndivisor = "reciprocal"\n', "needs an NVFP4 tensor"),
    ],
)
def test_errors_before_anything_is_written(tmp_path, checkpoint, rules, message):
    with pytest.raises(RecipeError, match=message) as caught:
        apply(tmp_path, checkpoint, rules)
    assert str(caught.value).startswith("recipe r: ")
    assert "\n" not in str(caught.value)


def test_a_tensor_without_elements_can_only_be_dropped(tmp_path):
    write_checkpoint(tmp_path / "c", {"a": np.ones((2, 64), np.float32), "none": np.ones((0, 64), np.float32)})
    with open_checkpoint(tmp_path / "c") as checkpoint:
        with pytest.raises(RecipeError, match=r"'none' F32 \[0, 64\] has no elements.*drop it by a \[\[rule\]\]"):
            resolve(load_recipe("uniform-q4"), checkpoint)
        assert apply(tmp_path, checkpoint, '[[rule]]\nmatch = "none"\ndrop = true\n' + REST).dropped == ("none",)


def test_an_optional_rule_may_take_nothing(tmp_path, checkpoint):
    rules = '[[rule]]\nmatch = "z*"\ndrop = true\noptional = true\n'
    assert len(apply(tmp_path, checkpoint, rules + REST).tensors) == len(TENSORS)


UNIFORM = {name: load_recipe(name).options["format"] for name in BUILTIN_RECIPES if name.startswith("uniform-")}


def test_every_quantized_format_has_a_uniform_recipe():
    assert sorted(map(str, UNIFORM.values())) == sorted(name for name, spec in FORMATS.items() if spec.bits < 16)


def test_a_uniform_recipe_keeps_its_format():
    with pytest.raises(RecipeError, match=r"fixes its format \(Q4G64_F16S\)"):
        load_recipe("uniform-q4", {"format": "BF16"})


@pytest.mark.parametrize("name", UNIFORM)
def test_uniform_recipes_on_a_minilm(tmp_path, name):
    tensors = minilm_tensors()
    with open_checkpoint(write_checkpoint(tmp_path / "minilm", tensors)) as checkpoint:
        found = resolve(load_recipe(name), checkpoint)
    assert found.identity == ("minilm", name)
    assert [spec.name for spec in found.tensors] == list(tensors)
    for spec in found.tensors:
        matrix = len(spec.shape) == 2 and spec.name != "embeddings.position_ids"
        fits = name != "uniform-nvfp4" or spec.shape[0] % 128 == 0
        direct = "I32" if spec.name == "embeddings.position_ids" else "FP32"
        assert spec.format == (UNIFORM[name] if matrix and fits else direct)
        assert encoded_size(spec.format, spec.shape) > 0


def test_rules_need_tensors(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RecipeError, match="rules need the tensors"):
        resolve(load_recipe("uniform-q4"), open_config(tmp_path))
