"""Names that templates and expressions of a recipe may use, and their substitution into text.

Leaves out the expression language (`ninfer_jax.recipes.expressions`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_jax.errors import RecipeError
from ninfer_jax.recipes.expressions import evaluate, evaluate_count
from ninfer_jax.recipes.schema import Size

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Scope:
    """Values by name, over one config.json.

    Attributes:
        values: options, dimensions and indices.
        config: config.json, or None.
    """

    values: Mapping[str, Any]
    config: Mapping[str, Any] | None

    def having(self, **values: Any) -> "Scope":
        """This scope with more names.

        Raises:
            RecipeError: a name is taken.
        """
        for name in values:
            if name in self.values:
                raise RecipeError(f"the name {name!r} is already an option, a dimension or an index")
        return Scope({**self.values, **values}, self.config)

    def count(self, size: Size, what: str) -> int:
        """Evaluate an extent or index."""
        return evaluate_count(size, self.values, self.config, what)

    def counts(self, sizes: tuple[Size, ...] | list[Size], what: str) -> tuple[int, ...]:
        """Evaluate a list of extents."""
        return tuple(self.count(size, what) for size in sizes)

    def holds(self, condition: str | None) -> bool:
        """True where a condition is absent or evaluates to a true value."""
        return condition is None or bool(evaluate(condition, self.values, self.config))

    def text(self, template: str, **more: str) -> str:
        """Replace every `{name}` by its value.

        Raises:
            RecipeError: an unknown name, or a brace that belongs to none.
        """
        values = {**self.values, **more}

        def value_of(match: re.Match[str]) -> str:
            name = match.group(1)
            if name not in values:
                raise RecipeError(f"{template!r} uses {{{name}}}; known are {', '.join(sorted(values)) or 'none'}")
            return str(values[name])

        if set(_FIELD.sub("", template)) & {"{", "}"}:
            raise RecipeError(f"{template!r} has a brace that is no {{name}}")
        return _FIELD.sub(value_of, template)
