"""Recipe files: what they may say, options, and errors that name the place and what is allowed."""

import re
from pathlib import Path

import pytest

import ninfer_jax.recipes
from ninfer_jax.errors import RecipeError
from ninfer_jax.recipes import BUILTIN_RECIPES, load_recipe

HEAD = '[identity]\nmodel_id = "m"\nweights_id = "w"\n'
RULE = '[[rule]]\nmatch = "*"\nformat = "source"\n'
OBJECT = '[[object]]\nname = "x"\nformat = "BF16"\n'


def load(tmp_path, text: str, options: dict[str, str] | None = None):
    path = tmp_path / "r.toml"
    path.write_text(text)
    return load_recipe(path, options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[identity", "not valid TOML"),
        (RULE, "lacks the key 'identity'"),
        ('[identity]\nmodel_id = "m"\n' + RULE, r"\[identity\] lacks the key 'weights_id'"),
        (HEAD, "stores nothing"),
        (HEAD + "[rules]\n" + RULE, "unknown key 'rules'; allowed are about, identity"),
        (HEAD + "rule = 3\n", r"\[identity\] has the unknown key 'rule'"),
        ('[identity]\nmodel_id = ""\nweights_id = "w"\n' + RULE, "a nonempty string is needed"),
        (HEAD + RULE + "formt = 1\n", r"\[\[rule\]\] 1 has the unknown key 'formt'; allowed are match, rank"),
        (HEAD + RULE + RULE + 'rank = "2"\n', r"\[\[rule\]\] 2: rank = '2' is not allowed; an integer"),
        (HEAD + RULE + "rank = true\n", "rank = True is not allowed"),
        (HEAD + RULE + "rank = -1\n", "rank = -1 is not allowed"),
        (HEAD + RULE + 'drop = "yes"\n', "true or false is needed"),
        (HEAD + RULE + 'cast = "truncate"\n', "'round' or 'exact' is needed"),
        (HEAD + RULE + "dtype = [1]\n", "one or a list of BOOL, U8"),
        (HEAD + RULE + 'dtype = "FP32"\n', "dtype = 'FP32' is not allowed; one or a list of BOOL, .*F32"),
        (HEAD + RULE + 'divisor = "exact"\n', "'reciprocal' is needed"),
        (HEAD + RULE + 'divisor = "reciprocal"\nencoder = "E"\n', "both divisor and encoder"),
        (HEAD + RULE + "drop = true\n", "'format' has no meaning"),
        (HEAD + '[[rule]]\nmatch = "*"\n', "lacks the key 'format'"),
        (HEAD + '[[rule]]\nformat = "source"\n', "lacks the key 'match'"),
        (HEAD + OBJECT, r"\[\[object\]\] 1 \(x\) needs either source"),
        (HEAD + OBJECT + 'source = "a"\nids = "b"\n', "needs either source"),
        (HEAD + '[[object]]\nname = "x"\nsource = "a"\n', "lacks the key 'format'"),
        (HEAD + OBJECT + "parts = []\n", "empty list of parts"),
        (HEAD + OBJECT + 'source = "a"\nparts = [{ source = "b" }]\n', "belong to them"),
        (HEAD + OBJECT + 'parts = [{ source = "b", name = "c" }]\n', "part 1 has the unknown key 'name'"),
        (HEAD + OBJECT + 'source = "a"\nshape = [1.5]\n', "a list of integers or expressions"),
        (HEAD + OBJECT + 'source = "a"\nsteps = [{ rotate = 1 }]\n', "step 1 has the unknown key 'rotate'"),
        (HEAD + OBJECT + 'source = "a"\nsteps = [{}]\n', "exactly one of slice, deinterleave"),
        (HEAD + OBJECT + 'source = "a"\nsteps = [{ squeeze = 0, widen = true }]\n', "exactly one of"),
        (HEAD + OBJECT + 'source = "a"\nsteps = [{ slice = [1] }]\n', r"needs \[start, stop\]"),
        (HEAD + OBJECT + 'source = "a"\nsteps = [{ widen = false }]\n', "true is needed"),
        (HEAD + OBJECT + 'source = "a"\nsteps = [{ deinterleave = { heads = 2 } }]\n', "lacks the key 'part'"),
        (HEAD + '[[object]]\neach = "l"\n[[object.object]]\n' + OBJECT[11:] + 'source = "a"\n', "both each"),
        (HEAD + '[[object]]\nname = "g"\n[[object.object]]\n' + OBJECT[11:] + 'source = "a"\n', "unknown key 'name'"),
        (HEAD + RULE + "[options]\nx = 3\n", r"\[options.x\] must be a table"),
        (HEAD + RULE + '[options]\nx = { kind = "float" }\n', "'integer' or 'string' or 'file'"),
        (HEAD + RULE + '[options]\nx = { kind = "integer", default = "a" }\n', "does not fit kind"),
        (HEAD + RULE + "[ids]\nx = 3\n", r"\[ids.x\] must be a table"),
        (HEAD + RULE + "[ids]\nx = { size = 3 }\n", "either file or ranking"),
        (HEAD + RULE + '[ids]\nx = { size = 3, ranking = "o" }\n', "goes with ranking"),
        (HEAD + RULE + '[[resource]]\nname = "x"\n', "lacks the key 'file'"),
        (HEAD + RULE + "[dims]\nx = 1.5\n", "an integer >= 0 or an expression"),
        (HEAD + RULE + "[checkpoint]\ndialects = []\n", "unknown key 'dialects'; allowed are dialect"),
    ],
)
def test_malformed_recipes(tmp_path, text, message):
    with pytest.raises(RecipeError, match=message) as caught:
        load(tmp_path, text)
    assert str(tmp_path) not in str(caught.value)


def test_documented_examples_are_recipes(tmp_path):
    text = (Path(ninfer_jax.recipes.__file__).parent / "README.md").read_text()
    examples = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        schema = load(tmp_path, example if "[identity]" in example else HEAD + example).schema
        assert schema.rules or schema.entries


def test_unknown_recipes_list_the_known_ones(tmp_path):
    with pytest.raises(RecipeError, match=r"neither a recipe file nor one of uniform-q4, .*qwen3\.6-27b, llama"):
        load_recipe("uniform-q3")
    with pytest.raises(RecipeError, match="neither a recipe file"):
        load_recipe(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match=r"not UTF-8 text: .* at byte 0"):
        load_recipe(tmp_path / "latin.toml")


@pytest.mark.parametrize("name", BUILTIN_RECIPES)
def test_built_in_recipes_load(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert len(recipe.digest) == 64


OPTIONS = """
[options]
n = { kind = "integer", default = 3 }
s = { kind = "string", about = "some text" }
f = { kind = "file" }
"""


def test_options(tmp_path):
    (tmp_path / "ids.json").write_text("[1]")
    text = HEAD + RULE + OPTIONS
    with pytest.raises(RecipeError, match=r"needs the option 's' \(some text\)"):
        load(tmp_path, text)
    assert load(tmp_path, text, {"s": "v"}).options == {"n": 3, "s": "v"}
    options = {"s": "v", "n": "12", "f": str(tmp_path / "ids.json")}
    assert load(tmp_path, text, options).options == {"n": 12, "s": "v", "f": tmp_path / "ids.json"}
    for bad in ({"n": "-1"}, {"n": "1e3"}, {"n": "9" * 40}, {"n": "٣"}, {"f": "gone"}, {"x": "1"}):
        with pytest.raises(RecipeError):
            load(tmp_path, text, {"s": "v"} | bad)


def test_the_digest_follows_text_options_and_file_contents(tmp_path):
    file = tmp_path / "ids.json"
    file.write_text("[1]")
    text, options = HEAD + RULE + OPTIONS, {"s": "v", "f": str(file)}
    first = load(tmp_path, text, options).digest
    assert load(tmp_path, text, options).digest == first
    assert load(tmp_path, text, options | {"n": "4"}).digest != first
    assert load(tmp_path, text + "# more\n", options).digest != first
    file.write_text("[2]")
    assert load(tmp_path, text, options).digest != first


def test_a_default_file_lies_beside_the_recipe(tmp_path):
    (tmp_path / "ids.json").write_text("[1]")
    recipe = load(tmp_path, HEAD + RULE + '[options]\nf = { kind = "file", default = "ids.json" }\n')
    assert recipe.options == {"f": tmp_path / "ids.json"}
