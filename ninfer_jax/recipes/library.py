"""Load recipes: TOML files, and the built-in ones by name (`uniform-q4`, `qwen3.6-27b`, `llama`, ...).

Leaves out what a recipe file may say (`ninfer_jax.recipes.schema`) and applying it (`ninfer_jax.recipes.resolve`).
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from ninfer_jax.errors import RecipeError
from ninfer_jax.recipes.schema import Option, Schema, parse_schema

MAX_RECIPE_BYTES = 4 * 2**20
"""Largest recipe file that is read, bytes."""

_UNIFORM = {
    "uniform-q4": "Q4G64_F16S",
    "uniform-q5": "Q5G64_F16S",
    "uniform-q6": "Q6G64_F16S",
    "uniform-w8": "W8G32_F16S",
    "uniform-fp8": "FP8_E4M3FN_ROW_BF16S",
    "uniform-nvfp4": "NVFP4",
}
_FILES = {
    **dict.fromkeys(_UNIFORM, "uniform.toml"),
    "word-exact": "word-exact.toml",
    "qwen3.6-27b": "qwen3.6-27b.toml",
    "llama": "llama.toml",
    "qwen3": "qwen3.toml",
}

BUILTIN_RECIPES: Mapping[str, str] = MappingProxyType(
    {
        **{name: f"every rank-2 tensor with K >= 64 as {form}, the rest direct" for name, form in _UNIFORM.items()},
        "word-exact": "every tensor as it is: direct words, and quantized checkpoints word for word",
        "qwen3.6-27b": "the 1124 objects of target qwen3.6-27b / groupwise-int, dimensions from config.json",
        "llama": "dense Llama family: fused query/key/value and gate/up, dimensions from config.json",
        "qwen3": "dense Qwen3 family: as llama, with query and key norms",
    }
)
"""Names of the built-in recipes, with one line about each."""


@dataclass(frozen=True)
class Recipe:
    """A loaded recipe with its options.

    Attributes:
        name: built-in name, or the file name without its suffix.
        schema: what the file says.
        options: value of every option that is given or has a default; files as paths.
        text: the TOML text.
    """

    name: str
    schema: Schema = field(repr=False)
    options: Mapping[str, str | int | Path]
    text: str = field(repr=False)

    @property
    def dialect(self) -> str | None:
        """Dialect that the checkpoint must be opened with; None to follow its config.json."""
        return self.schema.dialect

    @property
    def digest(self) -> str:
        """SHA-256 of text, options and the contents of option files: equal digests store the same objects."""
        values = {name: _digestible(value) for name, value in sorted(self.options.items())}
        return hashlib.sha256(json.dumps([self.text, values]).encode()).hexdigest()


def load_recipe(name_or_path: str | Path, options: Mapping[str, str] | None = None) -> Recipe:
    """Load a built-in recipe by name, or a recipe file.

    Args:
        name_or_path: a name from `BUILTIN_RECIPES`, or the path of a TOML file.
        options: values of the recipe's options as text, such as `{"draft_counts": "counts.i64"}`.

    Raises:
        RecipeError: an unknown name, an unreadable or malformed file, or options that the recipe does not have.
    """
    text, name = _read(name_or_path)
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RecipeError(f"recipe {name} is not valid TOML: {error}") from None
    try:
        schema = parse_schema(table)
    except RecipeError as error:
        raise RecipeError(f"recipe {name}: {error}") from None
    given = dict(options or {})
    builtin = isinstance(name_or_path, str) and name_or_path in BUILTIN_RECIPES
    if builtin and name in _UNIFORM:
        if "format" in given:
            raise RecipeError(
                f"recipe {name} fixes its format ({_UNIFORM[name]}); choose another uniform recipe instead"
            )
        given["format"] = _UNIFORM[name]
    folder = None if builtin else Path(name_or_path).parent
    return Recipe(name, schema, _option_values(name, schema.options, given, folder), text)


def _read(name_or_path: str | Path) -> tuple[str, str]:
    if isinstance(name_or_path, str) and name_or_path in BUILTIN_RECIPES:
        file = resources.files("ninfer_jax.recipes").joinpath("builtin", _FILES[name_or_path])
        return file.read_text(encoding="utf-8"), name_or_path
    path = Path(name_or_path)
    if not path.is_file():
        raise RecipeError(f"{path.name!r} is neither a recipe file nor one of {', '.join(BUILTIN_RECIPES)}")
    try:
        if path.stat().st_size > MAX_RECIPE_BYTES:
            raise RecipeError(f"recipe {path.name} has more than {MAX_RECIPE_BYTES} bytes")
        return path.read_text(encoding="utf-8"), path.stem
    except OSError as error:
        raise RecipeError(f"recipe {path.name} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"recipe {path.name} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _option_values(
    recipe: str, known: Mapping[str, Option], given: Mapping[str, str], folder: Path | None
) -> dict[str, str | int | Path]:
    values: dict[str, str | int | Path] = {}
    for name in given:
        if name not in known:
            raise RecipeError(f"recipe {recipe} has no option {name!r}; it has {', '.join(known) or 'none'}")
    for name, option in known.items():
        if name in given:
            values[name] = _option_value(recipe, name, option, given[name], Path())
        elif option.default is not None:
            values[name] = _option_value(recipe, name, option, str(option.default), folder or Path())
        elif option.kind != "file":
            raise RecipeError(f"recipe {recipe} needs the option {name!r} ({option.about or option.kind})")
    return values


def _option_value(recipe: str, name: str, option: Option, text: str, folder: Path) -> str | int | Path:
    if option.kind == "string":
        return text
    if option.kind == "integer":
        if not text.isascii() or not text.isdecimal() or len(text) > 18:
            raise RecipeError(f"recipe {recipe}: option {name} = {text!r}; an integer >= 0 is needed")
        return int(text)
    path = folder / text
    if not path.is_file():
        raise RecipeError(f"recipe {recipe}: option {name} names the file {path.name!r}, which does not exist")
    return path


def _digestible(value: str | int | Path) -> str | int:
    if not isinstance(value, Path):
        return value
    with value.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
