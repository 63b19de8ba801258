"""Integer arithmetic over config.json: the dimensions, conditions and indices of recipe templates.

`heads * head_dim`, `config("text_config.hidden_size")`, `l % 4 == 3`: names, integers, strings, `+ - * // %`,
comparisons, `and or not`, `a if c else b`, `list[index]` and `config(path, default)`. Nothing else is evaluated, and
numbers stay below 2^63. Leaves out where expressions appear (`ninfer_jax.recipes.templates`).
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ninfer_jax.errors import RecipeError

MAX_EXPRESSION = 500
"""Longest expression, characters."""

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_MISSING = object()


def config_value(config: Mapping[str, Any] | None, path: str, default: Any = _MISSING) -> Any:
    """The member of config.json at a dotted path; null counts as missing.

    Raises:
        RecipeError: it is missing and there is no default.
    """
    value: Any = config
    for member in path.split("."):
        value = value.get(member) if isinstance(value, Mapping) else None
    if value is not None:
        return value
    if default is _MISSING:
        lacks = f"config.json lacks {path!r}" if config is not None else f"no config.json gives {path!r}"
        raise RecipeError(f"{lacks}, which the recipe needs")
    return default


def evaluate(text: str, names: Mapping[str, Any], config: Mapping[str, Any] | None) -> Any:
    """Evaluate an expression.

    Args:
        text: the expression.
        names: values of names.
        config: config.json, or None.

    Raises:
        RecipeError: anything outside the language, an unknown name, or a division by zero.
    """
    if len(text) > MAX_EXPRESSION:
        raise RecipeError(f"expression of {len(text)} characters; at most {MAX_EXPRESSION} are evaluated")
    try:
        return _Evaluation(names, config).value(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, RecipeError):
            raise RecipeError(f"in {text!r}: {error}") from None
        raise RecipeError(f"{text!r} is no expression that recipes know") from None
    except (TypeError, IndexError, ZeroDivisionError, OverflowError) as error:
        raise RecipeError(f"{text!r} cannot be evaluated: {error}") from None


def evaluate_count(value: int | str, names: Mapping[str, Any], config: Mapping[str, Any] | None, what: str) -> int:
    """Evaluate an extent or index: an integer, or an expression that gives one.

    Raises:
        RecipeError: it gives no integer >= 0.
    """
    number = evaluate(value, names, config) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise RecipeError(f"{what} = {value!r} gives {number!r}; an integer >= 0 is needed")
    return number


class _Evaluation:
    def __init__(self, names: Mapping[str, Any], config: Mapping[str, Any] | None):
        self.names, self.config = names, config

    def value(self, node: ast.expr) -> Any:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise RecipeError(f"{ast.unparse(node)!r} is not allowed in an expression")
        return method(node)

    def _constant(self, node: ast.Constant) -> Any:
        if not isinstance(node.value, int | str):
            raise RecipeError(f"{node.value!r} is neither an integer nor a string")
        return node.value

    def _name(self, node: ast.Name) -> Any:
        if node.id not in self.names:
            raise RecipeError(f"unknown name {node.id!r}; known are {', '.join(sorted(self.names)) or 'none'}")
        return self.names[node.id]

    def _list(self, node: ast.List) -> Any:
        return [self.value(item) for item in node.elts]

    def _binop(self, node: ast.BinOp) -> Any:
        function = _BINARY.get(type(node.op))
        left, right = self.value(node.left), self.value(node.right)
        if function is None or not isinstance(left, int) or not isinstance(right, int):
            raise RecipeError(f"{ast.unparse(node)!r}: integers and + - * // % only")
        result = function(left, right)
        if abs(result) >= 2**63:
            raise RecipeError(f"{ast.unparse(node)!r} does not fit in 64 bits")
        return result

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return not value
        if isinstance(node.op, ast.USub) and isinstance(value, int):
            return -value
        raise RecipeError(f"{ast.unparse(node)!r} is not allowed in an expression")

    def _boolop(self, node: ast.BoolOp) -> Any:
        values = (self.value(item) for item in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)

    def _compare(self, node: ast.Compare) -> bool:
        left = self.value(node.left)
        for operation, item in zip(node.ops, node.comparators, strict=True):
            function, right = _COMPARE.get(type(operation)), self.value(item)
            if function is None:
                raise RecipeError(f"{ast.unparse(node)!r} compares in a way that is not allowed")
            if not function(left, right):
                return False
            left = right
        return True

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self.value(node.body) if self.value(node.test) else self.value(node.orelse)

    def _subscript(self, node: ast.Subscript) -> Any:
        items, index = self.value(node.value), self.value(node.slice)
        if not isinstance(items, list) or not isinstance(index, int):
            raise RecipeError(f"{ast.unparse(node)!r}: only a list is indexed, by an integer")
        return items[index]

    def _call(self, node: ast.Call) -> Any:
        arguments = [self.value(argument) for argument in node.args]
        if not (isinstance(node.func, ast.Name) and node.func.id == "config") or node.keywords:
            raise RecipeError(f"{ast.unparse(node)!r}: the only function is config(path, default)")
        if len(arguments) not in (1, 2) or not isinstance(arguments[0], str):
            raise RecipeError(f"{ast.unparse(node)!r}: config takes a path and an optional default")
        return config_value(self.config, *arguments)
