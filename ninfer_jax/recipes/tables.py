"""Checked access to TOML tables: unknown keys and wrong types are RecipeErrors that say what is allowed.

Leaves out what the keys mean (`ninfer_jax.recipes.schema`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ninfer_jax.errors import RecipeError


class Kind(NamedTuple):
    """A type of value that a key may have.

    Attributes:
        text: how to call it in an error.
        accepts: True for a value of the kind.
    """

    text: str
    accepts: Callable[[Any], bool]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return (_is_int(value) and value >= 0) or isinstance(value, str)


STRING = Kind("a nonempty string", lambda value: isinstance(value, str) and bool(value))
INTEGER = Kind("an integer >= 0", lambda value: _is_int(value) and value >= 0)
BOOLEAN = Kind("true or false", lambda value: isinstance(value, bool))
SIZE = Kind("an integer >= 0 or an expression in a string", _is_size)
SIZES = Kind("a list of integers or expressions", lambda value: isinstance(value, list) and all(map(_is_size, value)))
INTEGERS = Kind("a list of integers >= 0", lambda value: isinstance(value, list) and all(map(INTEGER.accepts, value)))
TABLE = Kind("a table", lambda value: isinstance(value, dict))
TABLES = Kind("an array of tables", lambda value: isinstance(value, list) and all(isinstance(v, dict) for v in value))
SCALAR = Kind("a string or an integer", lambda value: isinstance(value, str) or _is_int(value))


def choice(*values: str) -> Kind:
    """One of a few strings."""
    return Kind(" or ".join(repr(value) for value in values), lambda value: value in values)


def check_table(table: Mapping[str, Any], where: str, keys: Mapping[str, Kind], required: tuple[str, ...] = ()) -> None:
    """Check a table against the keys it may have.

    Args:
        table: the table.
        where: how to call it in an error, such as `[[rule]] 3`.
        keys: every allowed key and its kind.
        required: keys that must be there.

    Raises:
        RecipeError: an unknown key, a missing one, or a value of the wrong kind.
    """
    for key, value in table.items():
        if key not in keys:
            raise RecipeError(f"{where} has the unknown key {key!r}; allowed are {', '.join(keys)}")
        if not keys[key].accepts(value):
            raise RecipeError(f"{where}: {key} = {value!r} is not allowed; {keys[key].text} is needed")
    for key in required:
        if key not in table:
            raise RecipeError(f"{where} lacks the key {key!r}; allowed are {', '.join(keys)}")
