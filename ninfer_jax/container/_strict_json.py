"""JSON as the container allows it: RFC 8259 text in UTF-8, parsed so that hostile text costs no more than its length.

Stricter than `json.loads`: no byte order mark, no duplicate member, no NaN or Infinity, no nesting deeper than a
directory has, no more arrays and objects than a directory of that length could hold. Integers beyond 64 bits become
`OversizedInteger`, so that the check of the member that holds one can name it. The members themselves are checked in
`ninfer_jax.container._directory`.
"""

import json
import re
from typing import Any, NoReturn

from ninfer_jax.errors import ArtifactError

MAX_DEPTH = 8  # a directory has four: root, objects, one object, its shape; what is slightly deeper gets its own error
_BYTES_PER_NODE = 32  # the shortest entry of one object and one array takes more than twice this
_INTEGER_DIGITS = 20  # 2**64 - 1 has twenty
# An unterminated string runs to the end of the text: were it skipped, each escaped quote in it would start a new scan.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{\]}]', re.DOTALL)


class OversizedInteger:
    """Stands for an integer of more than 64 bits; holds no digits, so building one costs nothing."""

    def __init__(self, digits: int):
        self.digits = digits

    def __repr__(self) -> str:
        return f"an integer of {self.digits} digits"


def parse_strict(raw: bytes) -> Any:
    """Parse the JSON text of a directory.

    Args:
        raw: the whole JSON text, UTF-8.

    Returns:
        Dicts, lists, strings, ints, floats, booleans, None and `OversizedInteger`.

    Raises:
        ArtifactError: anything else; the message says which rule, and where where that is known.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(
            f"the JSON directory is not UTF-8: byte {error.start} of {len(raw)} ({error.reason})"
        ) from None
    if text.startswith("\ufeff"):
        raise ArtifactError("the JSON directory starts with a byte order mark; write plain UTF-8 without one")
    _check_nesting(text)
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique_members,
            parse_int=_integer,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        raise ArtifactError(f"the JSON directory does not parse at character {error.pos}: {error.msg}") from None


def _check_nesting(text: str) -> None:
    """Bound depth and node count before a recursive parser sees the text; unbalanced text is left to that parser."""
    depth = nodes = 0
    limit = MAX_DEPTH + len(text) // _BYTES_PER_NODE
    for match in _TOKENS.finditer(text):
        token = text[match.start()]
        if token in "[{":
            depth += 1
            nodes += 1
            if depth > MAX_DEPTH:
                raise ArtifactError(
                    f"the JSON directory nests deeper than {MAX_DEPTH} levels at character {match.start()}; "
                    "a directory has four (root, objects, object, shape)"
                )
            if nodes > limit:
                raise ArtifactError(
                    f"the JSON directory of {len(text)} characters holds more than {limit} arrays and objects, "
                    "more than any directory of its length"
                )
        elif token in "]}":
            depth -= 1


def _integer(digits: str) -> int | OversizedInteger:
    length = len(digits.lstrip("-"))
    return int(digits) if length <= _INTEGER_DIGITS else OversizedInteger(length)


def _refuse_constant(token: str) -> NoReturn:
    raise ArtifactError(f"the JSON directory contains {token}, which is not JSON; sizes and dimensions are integers")


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))
        owner = f"the object named {show(members['name'])}" if "name" in members else "an object"
        raise ArtifactError(f"the JSON directory repeats member {show(repeated)} in {owner}; each member appears once")
    return members


def show(value: Any) -> str:
    """A JSON value as an error prints it: escaped, and cut where it is long."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict):
        return f"an object of {len(value)} members"
    if isinstance(value, list):
        return f"an array of {len(value)} elements"
    text = repr(value[:61]) if isinstance(value, str) and len(value) > 60 else repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
