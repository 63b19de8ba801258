"""Apply a recipe to a checkpoint: every stored object in order, or the first reason why not.

Nothing is read but headers, scales, config and id lists; nothing is written. A checkpoint opened from config.json
alone gives the same names, order, shapes and formats. Leaves out conversion (`ninfer_jax.convert`).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_jax.errors import RecipeError, SourceError
from ninfer_jax.recipes.coverage import partly_stored
from ninfer_jax.recipes.expressions import evaluate
from ninfer_jax.recipes.id_lists import rank_tokens, read_counts, read_ids, tokenizer_ids
from ninfer_jax.recipes.library import Recipe
from ninfer_jax.recipes.matching import apply_rules
from ninfer_jax.recipes.objects import ObjectSpec, RecipeIdentity, Resolution, ResourceSpec
from ninfer_jax.recipes.schema import IdList, ResourceEntry
from ninfer_jax.recipes.scope import Scope
from ninfer_jax.recipes.templates import Expansion
from ninfer_jax.sources import Checkpoint


def resolve(recipe: Recipe, checkpoint: Checkpoint) -> Resolution:
    """Plan every object that a recipe makes of a checkpoint.

    Args:
        recipe: from `load_recipe`.
        checkpoint: from `open_checkpoint` with `dialect=recipe.dialect`, or from `open_config` for recipes of objects.

    Raises:
        RecipeError: the recipe does not fit the checkpoint; the message names rule or object and tensor.
        SourceError: the checkpoint itself is at fault.
    """
    try:
        scope = _scope(recipe, checkpoint)
        identity = _identity(recipe, checkpoint, scope)
        resources, notes = _resources(recipe.schema.resources, checkpoint)
        ids = {name: _ids(recipe, checkpoint, entry, scope) for name, entry in recipe.schema.ids.items()}
        options = {name: entry.option for name, entry in recipe.schema.ids.items()}
        expansion = Expansion(checkpoint, ids, options)
        tensors = expansion.expand(recipe.schema.entries, scope)
        if checkpoint.declared and not recipe.schema.entries:
            raise RecipeError("its rules need the tensors of a checkpoint; config.json alone does not list them")
        rest = [tensor for name, tensor in checkpoint.tensors.items() if name not in expansion.used]
        ruled, dropped = ([], []) if checkpoint.declared else apply_rules(recipe.schema.rules, rest, scope)
        notes += expansion.notes + partly_stored(tensors, checkpoint.tensors)
        return resolution(identity, [*resources, *tensors, *ruled], dropped, notes)
    except RecipeError as error:
        raise RecipeError(f"recipe {recipe.name}: {error}") from None


def resolution(
    identity: RecipeIdentity | tuple[str, str],
    objects: Iterable[ObjectSpec],
    dropped: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> Resolution:
    """Put planned objects together, as `resolve` does at its end.

    Raises:
        RecipeError: no object, an empty identity, or two objects stored under one name.
    """
    identity, objects = RecipeIdentity(*identity), tuple(objects)
    if not identity.model_id or not identity.weights_id:
        raise RecipeError("identity needs a nonempty model_id and weights_id")
    if not objects:
        raise RecipeError("nothing would be stored; an artifact needs at least one object")
    origins: dict[str, str] = {}
    for spec in objects:
        origin = _origin(spec)
        if spec.name in origins:
            raise RecipeError(f"two objects would be stored as {spec.name!r}: {origins[spec.name]} and {origin}")
        origins[spec.name] = origin
    return Resolution(identity, objects, tuple(dropped), tuple(notes))


def _origin(spec: ObjectSpec) -> str:
    if isinstance(spec, ResourceSpec):
        return f"file {spec.file}"
    return ", ".join(ref.tensor for ref in spec.rows.sources) or "a constant"


def _scope(recipe: Recipe, checkpoint: Checkpoint) -> Scope:
    """Options first, then dimensions in file order; each may use those before it."""
    scope = Scope(dict(recipe.options), checkpoint.config)
    for name, size in recipe.schema.dims.items():
        value: Any = evaluate(size, scope.values, scope.config) if isinstance(size, str) else size
        scope = scope.having(**{name: value})
    return scope


def _identity(recipe: Recipe, checkpoint: Checkpoint, scope: Scope) -> RecipeIdentity:
    names = {"checkpoint": checkpoint.name, "recipe": recipe.name}
    for what, name in names.items():
        if not name.isprintable():  # also a byte that is not UTF-8, which no artifact can hold
            raise RecipeError(f"the name of the {what}, {name!r}, cannot be part of an identity; rename it")
    return RecipeIdentity(scope.text(recipe.schema.model_id, **names), scope.text(recipe.schema.weights_id, **names))


def _resources(entries: tuple[ResourceEntry, ...], checkpoint: Checkpoint) -> tuple[list[ResourceSpec], list[str]]:
    specs: list[ResourceSpec] = []
    notes: list[str] = []
    for entry in entries:
        try:
            path = checkpoint.resource_path(entry.file)
        except SourceError as error:
            if checkpoint.declared:
                specs.append(ResourceSpec(entry.name, None, None, entry.file))
            elif entry.optional:
                notes.append(f"{entry.name}: left out, because the checkpoint has no {entry.file}")
            else:
                raise RecipeError(f"resource {entry.name}: {error}") from None
            continue
        nbytes = path.stat().st_size
        if nbytes == 0:
            raise RecipeError(f"resource {entry.name}: {entry.file} is empty, and a stored resource is not")
        specs.append(ResourceSpec(entry.name, path, nbytes, entry.file))
    return specs, notes


def _ids(recipe: Recipe, checkpoint: Checkpoint, entry: IdList, scope: Scope) -> np.ndarray | None:
    """The ids of one list; placeholders of the right length for a declared checkpoint, None where no file is given."""
    known: Mapping[str, Any] = recipe.schema.options
    if entry.option not in known or known[entry.option].kind != "file":
        raise RecipeError(f"id list names {entry.option!r}, which is no option of kind file")
    size = scope.count(entry.size, "size")
    if checkpoint.declared:
        return np.zeros(size, np.int64)
    path = recipe.options.get(entry.option)
    if not isinstance(path, Path):
        return None
    if not entry.ranking:
        return read_ids(path, size)
    counts = read_counts(path, scope.count(entry.width or 0, "width"))
    candidates, forced = tokenizer_ids(checkpoint)
    return rank_tokens(counts, candidates, forced, size)
