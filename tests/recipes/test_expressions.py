"""The expression language of templates: what it computes, and what it refuses."""

import pytest

from ninfer_jax.errors import RecipeError
from ninfer_jax.recipes.expressions import evaluate, evaluate_count

CONFIG = {"a": 7, "text": {"heads": 24, "types": ["x", "y"], "none": None}, "flag": True}
NAMES = {"l": 5, "heads": 3, "types": ["x", "y", "x"]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 * heads + l // 2 - 1", 7),
        ("-l + 6", 1),
        ("l % 4 == 1", True),
        ("0 < l <= 5 != 6", True),
        ("not l and heads or 2 > 3", False),
        ("types[l % 3] == 'x' if types else 0", True),
        ("config('text.heads') * 2", 48),
        ("config('text.none', 4)", 4),
        ("config('text.missing', heads)", 3),
        ("config('a.b.c', 1)", 1),
        ("config('text.types')[1]", "y"),
        ("config('x', [])", []),
        ("config('flag')", True),
        ("'y' in types", True),
        ("4 not in [1, 2]", True),
    ],
)
def test_values(text, value):
    assert evaluate(text, NAMES, CONFIG) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "heads.real",
        "().__class__",
        "[x for x in types]",
        "lambda: 1",
        "2 ** 8",
        "1 / 2",
        "1.5",
        "'a' * 3",
        "types * 100",
        "f'{heads}'",
        "heads(1)",
        "config()",
        "config(1)",
        "config('a', default=1)",
        "config('gone')",
        "unknown",
        "l // 0",
        "types[9]",
        "types['a']",
        "heads[0]",
        "9223372036854775807 + 1",
        "10 * " * 60 + "10",
        "1 +",
        "",
        "x = 1",
        "(" * 300 + "1" + ")" * 300,
        "1 + " * 200 + "1",
        "'a' < 1",
        "+l",
        "\x00",
    ],
)
def test_refusals(text):
    with pytest.raises(RecipeError):
        evaluate(text, NAMES, CONFIG)


def test_counts():
    assert evaluate_count("heads * 2", NAMES, None, "x") == 6
    assert evaluate_count(4, {}, None, "x") == 4
    for bad in ("heads - 4", "types", "l == 5", -1):
        with pytest.raises(RecipeError, match="an integer >= 0 is needed"):
            evaluate_count(bad, NAMES, None, "x")


def test_a_missing_config_is_named():
    with pytest.raises(RecipeError, match=r"no config\.json gives 'a'"):
        evaluate("config('a')", {}, None)
    with pytest.raises(RecipeError, match=r"config\.json lacks 'b\.c'"):
        evaluate("config('b.c')", {}, CONFIG)
