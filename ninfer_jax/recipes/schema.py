"""What a recipe file says, as checked records: identity, options, dimensions, id lists, resources, objects and rules.

The records hold templates and expressions as text; nothing here looks at a checkpoint. Leaves out finding recipe files
(`ninfer_jax.recipes.library`) and applying them (`ninfer_jax.recipes.resolve`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_jax.errors import RecipeError
from ninfer_jax.recipes.objects import Cast
from ninfer_jax.recipes.tables import (
    BOOLEAN,
    INTEGER,
    INTEGERS,
    SCALAR,
    SIZE,
    SIZES,
    STRING,
    TABLE,
    TABLES,
    Kind,
    check_table,
    choice,
)
from ninfer_jax.sources import ELEMENT_TYPES

RECIPROCAL = "reciprocal"
Size = int | str

_ELEMENTS = Kind(
    f"one or a list of {', '.join(ELEMENT_TYPES)}",
    lambda value: all(isinstance(name, str) and name in ELEMENT_TYPES for name in _listed(value)),
)

_STORE_KEYS = {
    "format": STRING,
    "cast": choice("round", "exact"),
    "encoder": STRING,
    "divisor": choice(RECIPROCAL),
}
_RULE_KEYS = {
    "match": STRING,
    "rank": INTEGER,
    "dtype": _ELEMENTS,
    "min_k": INTEGER,
    "fits": BOOLEAN,
    **_STORE_KEYS,
    "drop": BOOLEAN,
    "name": STRING,
    "optional": BOOLEAN,
}
_PART_KEYS = {"source": STRING, "ids": STRING, "shape": SIZES, "steps": TABLES}
_OBJECT_KEYS = {"name": STRING, "when": STRING, **_STORE_KEYS, **_PART_KEYS, "parts": TABLES}
_GROUP_KEYS = {"each": STRING, "count": SIZE, "when": STRING, "object": TABLES}
_HEAD_KEYS = ("heads", "part", "of")
_OPTION_KEYS = {"kind": choice("integer", "string", "file"), "default": SCALAR, "about": STRING}
_STEPS: Mapping[str, Kind] = {
    "slice": SIZES,
    "deinterleave": TABLE,
    "gather": STRING,
    "reshape": SIZES,
    "squeeze": INTEGER,
    "transpose": INTEGERS,
    "widen": Kind("true", lambda value: value is True),
}


@dataclass(frozen=True)
class Storage:
    """How selected rows are stored; see `ninfer_jax.recipes.store`.

    Attributes:
        format: canonical name or keyword, or a template of one.
        cast: cast of a direct format.
        encoder: encoder profile, or a template that may give an empty text for none.
        reciprocal: True where the divisor of NVFP4 is made from a multiplier.
    """

    format: str
    cast: Cast | None
    encoder: str | None
    reciprocal: bool


@dataclass(frozen=True)
class Rule:
    """One `[[rule]]`: which source tensors it takes, and how they are stored; storage None drops them."""

    match: str
    rank: int | None
    dtypes: tuple[str, ...] | None
    min_k: int | None
    fits: bool
    storage: Storage | None
    name: str
    optional: bool


@dataclass(frozen=True)
class Part:
    """Rows of one source tensor, or of an id list, after their steps."""

    source: str | None
    ids: str | None
    shape: tuple[Size, ...] | None
    steps: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class ObjectEntry:
    """One stored tensor: its parts, concatenated along rows, after the steps that follow."""

    name: str
    when: str | None
    storage: Storage
    parts: tuple[Part, ...]
    steps: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class ObjectGroup:
    """Entries repeated for each index, or taken together under one condition."""

    each: str | None
    count: Size
    when: str | None
    entries: tuple["ObjectEntry | ObjectGroup", ...]


@dataclass(frozen=True)
class Option:
    """A value that the caller may give: an integer, a string or a file."""

    kind: str
    default: str | int | None
    about: str


@dataclass(frozen=True)
class IdList:
    """A list of row ids from the file that an option names: the ids themselves, or counts to rank tokens by."""

    option: str
    ranking: bool
    size: Size
    width: Size | None


@dataclass(frozen=True)
class ResourceEntry:
    """A file to store as raw bytes."""

    name: str
    file: str
    optional: bool


@dataclass(frozen=True)
class Schema:
    """A whole recipe file."""

    about: str
    model_id: str
    weights_id: str
    dialect: str | None
    options: Mapping[str, Option]
    dims: Mapping[str, Size]
    ids: Mapping[str, IdList]
    resources: tuple[ResourceEntry, ...]
    entries: tuple[ObjectEntry | ObjectGroup, ...]
    rules: tuple[Rule, ...]


_TOP_KEYS = {
    "about": STRING,
    "identity": TABLE,
    "checkpoint": TABLE,
    "options": TABLE,
    "dims": TABLE,
    "ids": TABLE,
    "resource": TABLES,
    "object": TABLES,
    "rule": TABLES,
}


def parse_schema(table: Mapping[str, Any]) -> Schema:
    """Check a parsed recipe file.

    Raises:
        RecipeError: anything that a recipe may not hold; the message names the place and what is allowed.
    """
    check_table(table, "the recipe", _TOP_KEYS, ("identity",))
    identity, checkpoint = table["identity"], table.get("checkpoint", {})
    check_table(identity, "[identity]", {"model_id": STRING, "weights_id": STRING}, ("model_id", "weights_id"))
    check_table(checkpoint, "[checkpoint]", {"dialect": STRING})
    dims = table.get("dims", {})
    check_table(dims, "[dims]", dict.fromkeys(dims, SIZE))
    if not table.get("rule") and not table.get("object") and not table.get("resource"):
        raise RecipeError("the recipe stores nothing; it needs a [[rule]], an [[object]] or a [[resource]]")
    return Schema(
        about=table.get("about", ""),
        model_id=identity["model_id"],
        weights_id=identity["weights_id"],
        dialect=checkpoint.get("dialect"),
        options={name: _option(name, value) for name, value in table.get("options", {}).items()},
        dims=dims,
        ids={name: _id_list(name, value) for name, value in table.get("ids", {}).items()},
        resources=tuple(_resource(i, entry) for i, entry in enumerate(table.get("resource", []), 1)),
        entries=tuple(_entry(f"[[object]] {i}", entry) for i, entry in enumerate(table.get("object", []), 1)),
        rules=tuple(_rule(f"[[rule]] {i}", rule) for i, rule in enumerate(table.get("rule", []), 1)),
    )


def _listed(value: Any) -> list[Any]:
    """A list as it is, anything else as a list of one."""
    return value if isinstance(value, list) else [value]


def _storage(where: str, table: Mapping[str, Any]) -> Storage:
    if "format" not in table:
        raise RecipeError(f"{where} lacks the key 'format'; a canonical name, 'source' or 'direct' is needed")
    if "divisor" in table and "encoder" in table:
        raise RecipeError(f"{where} names both divisor and encoder; with an encoder no stored divisor is kept")
    return Storage(table["format"], table.get("cast"), table.get("encoder"), "divisor" in table)


def _rule(where: str, table: Mapping[str, Any]) -> Rule:
    check_table(table, where, _RULE_KEYS, ("match",))
    drop = table.get("drop", False)
    extra = [key for key in (*_STORE_KEYS, "name", "fits") if key in table]
    if drop and extra:
        raise RecipeError(f"{where} drops its tensors, so {extra[0]!r} has no meaning; remove one of them")
    dtypes = table.get("dtype")
    return Rule(
        match=table["match"],
        rank=table.get("rank"),
        dtypes=None if dtypes is None else tuple(_listed(dtypes)),
        min_k=table.get("min_k"),
        fits=table.get("fits", False),
        storage=None if drop else _storage(where, table),
        name=table.get("name", "{name}"),
        optional=table.get("optional", False),
    )


def _entry(where: str, table: Mapping[str, Any]) -> ObjectEntry | ObjectGroup:
    if "object" not in table:
        return _object(where, table)
    check_table(table, where, _GROUP_KEYS)
    if ("each" in table) != ("count" in table):
        raise RecipeError(f"{where} needs both each (the name of the index) and count, or neither")
    entries = tuple(_entry(f"{where}.object {i}", entry) for i, entry in enumerate(table["object"], 1))
    return ObjectGroup(table.get("each"), table.get("count", 1), table.get("when"), entries)


def _object(where: str, table: Mapping[str, Any]) -> ObjectEntry:
    check_table(table, where, _OBJECT_KEYS, ("name",))
    where = f"{where} ({table['name']})"
    storage = _storage(where, table)
    if "parts" not in table:
        return ObjectEntry(table["name"], table.get("when"), storage, (_part(where, table),), ())
    if "source" in table or "ids" in table or "shape" in table:
        raise RecipeError(f"{where} has parts, so source, ids and shape belong to them")
    if not table["parts"]:
        raise RecipeError(f"{where} has an empty list of parts; at least one is needed")
    for i, part in enumerate(table["parts"], 1):
        check_table(part, f"{where} part {i}", _PART_KEYS)
    parts = tuple(_part(f"{where} part {i}", part) for i, part in enumerate(table["parts"], 1))
    return ObjectEntry(table["name"], table.get("when"), storage, parts, _steps(where, table))


def _part(where: str, table: Mapping[str, Any]) -> Part:
    if ("source" in table) == ("ids" in table):
        raise RecipeError(f"{where} needs either source (a tensor) or ids (an id list)")
    shape = table.get("shape")
    return Part(table.get("source"), table.get("ids"), None if shape is None else tuple(shape), _steps(where, table))


def _steps(where: str, table: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    steps = []
    for i, step in enumerate(table.get("steps", []), 1):
        place = f"{where} step {i}"
        check_table(step, place, _STEPS)
        if len(step) != 1:
            raise RecipeError(f"{place} needs exactly one of {', '.join(_STEPS)}; steps run in the order of the list")
        ((kind, value),) = step.items()
        if kind == "deinterleave":
            check_table(value, f"{place} deinterleave", dict.fromkeys(_HEAD_KEYS, SIZE), _HEAD_KEYS)
        if kind == "slice" and len(value) != 2:
            raise RecipeError(f"{place}: slice = {value!r} needs [start, stop]")
        steps.append((kind, value))
    return tuple(steps)


def _option(name: str, table: Any) -> Option:
    where = f"[options.{name}]"
    if not isinstance(table, dict):
        raise RecipeError(f"{where} must be a table with the keys kind, default and about")
    check_table(table, where, _OPTION_KEYS, ("kind",))
    default = table.get("default")
    if default is not None and (table["kind"] == "integer") != isinstance(default, int):
        raise RecipeError(f"{where}: default = {default!r} does not fit kind {table['kind']!r}")
    return Option(table["kind"], default, table.get("about", ""))


def _id_list(name: str, table: Any) -> IdList:
    where = f"[ids.{name}]"
    if not isinstance(table, dict):
        raise RecipeError(f"{where} must be a table with the keys file or ranking, size and width")
    check_table(table, where, {"file": STRING, "ranking": STRING, "size": SIZE, "width": SIZE}, ("size",))
    if ("file" in table) == ("ranking" in table):
        raise RecipeError(f"{where} needs either file or ranking, the name of an option of kind file")
    if ("ranking" in table) != ("width" in table):
        raise RecipeError(f"{where}: width is the length of a row of counts, and goes with ranking")
    return IdList(table.get("file") or table["ranking"], "ranking" in table, table["size"], table.get("width"))


def _resource(index: int, table: Mapping[str, Any]) -> ResourceEntry:
    where = f"[[resource]] {index}"
    check_table(table, where, {"name": STRING, "file": STRING, "optional": BOOLEAN}, ("name", "file"))
    return ResourceEntry(table["name"], table["file"], table.get("optional", False))
