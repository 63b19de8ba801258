"""Apply the `[[rule]]` entries of a recipe: the first rule that matches a source tensor takes it.

Leaves out templates (`ninfer_jax.recipes.templates`) and formats (`ninfer_jax.recipes.placement`).
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from ninfer_jax.errors import RecipeError
from ninfer_jax.recipes.objects import TensorSpec
from ninfer_jax.recipes.placement import fits, store
from ninfer_jax.recipes.rows import describe
from ninfer_jax.recipes.schema import Rule
from ninfer_jax.recipes.scope import Scope
from ninfer_jax.recipes.templates import filled, stored_rows
from ninfer_jax.sources import SourceTensor


def apply_rules(
    rules: tuple[Rule, ...], tensors: Iterable[SourceTensor], scope: Scope
) -> tuple[list[TensorSpec], list[str]]:
    """Plan every tensor by its first matching rule.

    Args:
        rules: in file order.
        tensors: source tensors that no object used, in source order.
        scope: names for templates.

    Returns:
        The stored tensors in source order, and the names of dropped ones.

    Raises:
        RecipeError: a tensor that no rule matches, or a rule that takes no tensor and is not optional.
    """
    tensors = list(tensors)
    taken = [0] * len(rules)
    specs: list[TensorSpec] = []
    dropped: list[str] = []
    for tensor in tensors:
        index = next((i for i, rule in enumerate(rules) if _matches(rule, tensor, scope)), None)
        if index is None:
            raise RecipeError(_unmatched(rules, tensor))
        taken[index] += 1
        storage = rules[index].storage
        if storage is None:
            dropped.append(tensor.name)
            continue
        storage = filled(storage, scope)
        name = scope.text(rules[index].name, name=tensor.name)
        rows = stored_rows(tensor, storage)
        specs.append(store(name, rows, storage.format, cast=storage.cast, encoder=storage.encoder))
    for number, (rule, count) in enumerate(zip(rules, taken, strict=True), 1):
        if not count and not rule.optional:
            raise RecipeError(_idle(number, rule, tensors))
    return specs, dropped


def _matches(rule: Rule, tensor: SourceTensor, scope: Scope) -> bool:
    if not fnmatchcase(tensor.name, rule.match):
        return False
    if rule.rank is not None and len(tensor.shape) != rule.rank:
        return False
    if rule.dtypes is not None and tensor.dtype not in rule.dtypes:
        return False
    if rule.min_k is not None and (not tensor.shape or tensor.shape[-1] < rule.min_k):
        return False
    return not (rule.fits and rule.storage) or fits(scope.text(rule.storage.format), tensor.shape)


def _unmatched(rules: tuple[Rule, ...], tensor: SourceTensor) -> str:
    what = f"tensor {describe(tensor)}"
    if not rules:
        return f"no object of the recipe uses {what}; add a [[rule]] for it (drop = true leaves it out)"
    near = [i for i, rule in enumerate(rules, 1) if fnmatchcase(tensor.name, rule.match)]
    why = f"; rule {near[0]} matches its name, but not its rank, dtype or shape" if near else ""
    return f'no rule matches {what}{why}; end the recipe with match = "*", or drop it'


def _idle(number: int, rule: Rule, tensors: list[SourceTensor]) -> str:
    named = sum(fnmatchcase(tensor.name, rule.match) for tensor in tensors)
    why = "no tensor has such a name"
    if named:
        why = f"{named} tensors have such a name, but earlier rules take them or a condition does not hold"
    return f"rule {number} (match = {rule.match!r}) takes no tensor: {why}; remove it, or set optional = true"
