"""Expand the `[[object]]` entries of a recipe into stored tensors, over layers and conditions from config.json.

Every source tensor is looked up, checked against the shape that the recipe expects, and read lazily. Leaves out rules
(`ninfer_jax.recipes.matching`) and where the formats are decided (`ninfer_jax.recipes.placement`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ninfer_jax.errors import RecipeError
from ninfer_jax.recipes.declared import DeclaredTensor
from ninfer_jax.recipes.elements import IntegerRows, decode, reshape, squeeze, transpose, widen
from ninfer_jax.recipes.objects import RowSource, TensorSpec
from ninfer_jax.recipes.placement import store
from ninfer_jax.recipes.rows import concat, deinterleave, describe, gather_rows, slice_rows
from ninfer_jax.recipes.schema import ObjectEntry, ObjectGroup, Part, Storage
from ninfer_jax.recipes.scope import Scope
from ninfer_jax.sources import Checkpoint, MultiplierNVFP4Tensor

MAX_REPEAT = 100_000
"""Largest number of repetitions of one group; a larger count is a broken config."""

_TORCH_TYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass
class Expansion:
    """Turns entries into tensors, and remembers what they used.

    Attributes:
        checkpoint: where the tensors come from; a declared one gives shapes only.
        ids: id lists by name; None in a list's place where its option was not given.
        ids_options: the option that each id list comes from.
        used: names of source tensors that some object reads.
        notes: what was left out, and why.
    """

    checkpoint: Checkpoint
    ids: Mapping[str, np.ndarray | None]
    ids_options: Mapping[str, str]
    used: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def expand(self, entries: tuple[ObjectEntry | ObjectGroup, ...], scope: Scope) -> list[TensorSpec]:
        """Tensors of all entries, in stored order."""
        specs: list[TensorSpec] = []
        for entry in entries:
            if isinstance(entry, ObjectGroup):
                specs.extend(self._group(entry, scope))
            elif scope.holds(entry.when):
                specs.extend(self._object(entry, scope))
        return specs

    def _group(self, group: ObjectGroup, scope: Scope) -> list[TensorSpec]:
        count = scope.count(group.count, "count") if group.each else 1
        if count > MAX_REPEAT:
            raise RecipeError(f"a group is repeated {count} times; at most {MAX_REPEAT} are allowed")
        specs: list[TensorSpec] = []
        for index in range(count):
            inner = scope.having(**{group.each: index}) if group.each else scope
            if inner.holds(group.when):
                specs.extend(self.expand(group.entries, inner))
        return specs

    def _object(self, entry: ObjectEntry, scope: Scope) -> list[TensorSpec]:
        name = scope.text(entry.name)
        absent = [self.ids_options[ids] for ids in _id_lists(entry) if ids in self.ids and self.ids[ids] is None]
        if absent:
            self.notes.append(f"{name}: left out, because the option {absent[0]} was not given")
            return []
        storage = filled(entry.storage, scope)
        try:
            rows = [self._part(part, storage, scope) for part in entry.parts]
            joined = self._apply(rows[0] if len(rows) == 1 else concat(*rows), entry.steps, scope)
        except RecipeError as error:
            raise RecipeError(f"object {name}: {error}") from None
        return [store(name, joined, storage.format, cast=storage.cast, encoder=storage.encoder)]

    def _part(self, part: Part, storage: Storage, scope: Scope) -> RowSource:
        if part.ids is not None:
            rows: RowSource = IntegerRows(self._ids(part.ids), part.ids)
        else:
            rows = stored_rows(self._source(part, scope), storage)
        return self._apply(rows, part.steps, scope)

    def _source(self, part: Part, scope: Scope) -> RowSource:
        name = scope.text(part.source or "")
        expected = None if part.shape is None else scope.counts(part.shape, "shape")
        self.used.add(name)
        if self.checkpoint.declared:
            if expected is None:
                raise RecipeError(f"tensor {name!r} has no shape in the recipe, so planning it needs the weights")
            return DeclaredTensor(name, expected, _declared_type(self.checkpoint.config or {}))
        tensor = self.checkpoint.tensors.get(name)
        if tensor is None:
            raise RecipeError(f"checkpoint {self.checkpoint.name} has no tensor {name!r}")
        if expected is not None and tensor.shape != expected:
            raise RecipeError(f"{describe(tensor)} should have shape {list(expected)} by the recipe and config.json")
        return tensor

    def _ids(self, name: str) -> np.ndarray:
        if name not in self.ids:
            raise RecipeError(f"unknown id list {name!r}; known are {', '.join(self.ids) or 'none'}")
        ids = self.ids[name]
        if ids is None:
            raise RecipeError(f"id list {name!r} needs the option {self.ids_options[name]}")
        return ids

    def _apply(self, rows: RowSource, steps: tuple[tuple[str, Any], ...], scope: Scope) -> RowSource:
        for kind, value in steps:
            rows = gather_rows(rows, self._ids(value)) if kind == "gather" else _STEPS[kind](rows, value, scope)
        return rows


def _id_lists(entry: ObjectEntry) -> list[str]:
    """Names of the id lists that an entry reads."""
    steps = [step for part in entry.parts for step in part.steps] + list(entry.steps)
    gathered = [value for kind, value in steps if kind == "gather"]
    return [part.ids for part in entry.parts if part.ids is not None] + gathered


def filled(storage: Storage, scope: Scope) -> Storage:
    """A storage whose templates are replaced by their values; an empty encoder is none."""
    encoder = scope.text(storage.encoder) if storage.encoder is not None else ""
    return replace(storage, format=scope.text(storage.format), encoder=encoder or None)


def stored_rows(rows: RowSource, storage: Storage) -> RowSource:
    """A source tensor as a storage asks for it: values where an encoder is named, a made divisor where one is.

    Raises:
        RecipeError: a divisor is asked for where there is no multiplier, or it would not be a finite positive value.
    """
    if storage.encoder is not None:
        return decode(rows)
    if storage.reciprocal:
        if not isinstance(rows, MultiplierNVFP4Tensor):
            raise RecipeError(f'divisor = "reciprocal" needs an NVFP4 tensor with a multiplier, not {describe(rows)}')
        if rows.reciprocal is None:
            raise RecipeError(f"the reciprocal of the multiplier of {describe(rows)} is not finite and positive")
        return rows.reciprocal
    return rows


def _slice(rows: RowSource, value: Any, scope: Scope) -> RowSource:
    start, stop = scope.counts(value, "slice")
    return slice_rows(rows, start, stop)


def _deinterleave(rows: RowSource, value: Any, scope: Scope) -> RowSource:
    return deinterleave(rows, **{key: scope.count(size, key) for key, size in value.items()})


_STEPS: Mapping[str, Callable[[RowSource, Any, Scope], RowSource]] = {
    "slice": _slice,
    "deinterleave": _deinterleave,
    "reshape": lambda rows, value, scope: reshape(rows, scope.counts(value, "reshape")),
    "squeeze": lambda rows, value, scope: squeeze(rows, value),
    "transpose": lambda rows, value, scope: transpose(rows, value),
    "widen": lambda rows, value, scope: widen(rows),
}


def _declared_type(config: Mapping[str, Any]) -> str:
    """Element type of weights that only config.json speaks of; BF16 where it does not say."""
    text = config.get("text_config")
    for place in (config, text if isinstance(text, Mapping) else {}):
        for member in ("dtype", "torch_dtype"):
            if place.get(member) in _TORCH_TYPES:
                return _TORCH_TYPES[place[member]]
    return "BF16"
