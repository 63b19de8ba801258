"""Strict JSON for files that came from elsewhere: every failure is one SourceError, never a RecursionError.

Leaves out what the values mean; callers check members and types.
"""

import json
from pathlib import Path
from typing import Any

from ninfer_jax.errors import SourceError

MAX_JSON_BYTES = 512 * 2**20
"""Largest JSON file that is read, bytes; the largest shard index or tokenizer of a public checkpoint is far smaller."""

_MAX_DIGITS = 100


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"member {repeated!r} appears twice")
    return members


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits")
    return int(digits)


def parse_json_object(data: bytes, what: str) -> dict[str, Any]:
    """Parse UTF-8 bytes that must hold one JSON object without repeated members.

    Args:
        data: the bytes.
        what: how to call them in an error, such as `config.json`.

    Raises:
        SourceError: not UTF-8, not JSON, nested too deeply, a repeated member, or not an object.
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_refuse_duplicates, parse_int=_integer)
    except RecursionError:
        raise SourceError(f"{what} is nested too deeply to be read") from None
    except ValueError as error:
        raise SourceError(f"{what} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise SourceError(f"{what} holds a JSON {type(value).__name__}, but an object is needed")
    return value


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file, as `parse_json_object` does.

    Raises:
        SourceError: also for a file that is missing, unreadable or larger than `MAX_JSON_BYTES`.
    """
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise SourceError(f"{path.name} has {size} bytes; JSON files up to {MAX_JSON_BYTES} bytes are read")
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(f"cannot read {path.name}: {error.strerror or error}") from None
    return parse_json_object(data, path.name)
