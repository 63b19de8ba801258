"""A reader of `.ninfer` revisions 1 and 2, by the rules in the order the specification lists them (container)."""

import json
from typing import Any, NamedTuple

from tests.oracle.layouts import LAYOUT_OF, size

MAGIC = b"NINFER\0"
TENSOR = {"name", "kind", "shape", "format", "layout", "offset", "bytes"}
RESOURCE = {"name", "kind", "encoding", "offset", "bytes"}


class Reject(ValueError):
    """The image is not a conforming artifact."""


class Artifact(NamedTuple):
    """What a conforming image holds; objects are the directory entries as they are."""

    revision: int
    model_id: str
    weights_id: str | None
    objects: list[dict[str, Any]]
    payload_offset: int
    image: bytes

    def payload(self, name: str) -> bytes:
        """The bytes of one object."""
        (entry,) = (entry for entry in self.objects if entry["name"] == name)
        start = self.payload_offset + entry["offset"]
        return self.image[start : start + entry["bytes"]]


def read(image: bytes) -> Artifact:
    """Check everything but the payloads.

    Raises:
        Reject: for any violation.
    """
    _need(len(image) >= 16 and image[:7] == MAGIC and image[7] in (1, 2), "prefix")
    revision = image[7]
    json_bytes = int.from_bytes(image[8:16], "little")
    _need(0 < json_bytes <= len(image) - 16, "JSON length")
    payload_offset = -(-(16 + json_bytes) // 4096) * 4096
    _need(len(image) >= payload_offset, "file ends before the payload")
    root = _parse(image[16 : 16 + json_bytes])
    model_id, weights_id = _identity(root, revision)
    objects = root["objects"]
    _need(isinstance(objects, list) and len(objects) > 0, "objects")
    cursor, names = 0, set()
    for entry in objects:
        alignment = _check_entry(entry)
        _need(entry["name"] not in names, "duplicate name")
        names.add(entry["name"])
        offset, nbytes = entry["offset"], entry["bytes"]
        _need(offset >= cursor and offset % alignment == 0, "offset")
        _need(offset + nbytes <= len(image) - payload_offset, "beyond the file")
        cursor = offset + nbytes
    return Artifact(revision, model_id, weights_id, objects, payload_offset, image)


def _need(condition: bool, rule: str) -> None:
    if not condition:
        raise Reject(rule)


def _no_constant(token: str) -> None:
    raise Reject(f"{token} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    _need(len(members) == len(pairs), "duplicate member")
    return members


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8")
        root = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except Reject:
        raise
    except (ValueError, RecursionError) as error:
        raise Reject(f"JSON: {error}") from None
    _need(isinstance(root, dict), "root")
    return root


def _text(value: Any) -> bool:
    """A nonempty string of Unicode scalar values."""
    return isinstance(value, str) and value != "" and not any(0xD800 <= ord(c) < 0xE000 for c in value)


def _integer(value: Any, least: int) -> bool:
    return type(value) is int and least <= value < 2**64


def _identity(root: dict[str, Any], revision: int) -> tuple[str, str | None]:
    if revision == 1:
        _need(set(root) == {"model_id", "objects"} and _text(root["model_id"]), "root members")
        return root["model_id"], None
    _need(set(root) == {"identity", "objects"}, "root members")
    identity = root["identity"]
    _need(isinstance(identity, dict) and set(identity) == {"model_id", "weights_id"}, "identity members")
    _need(_text(identity["model_id"]) and _text(identity["weights_id"]), "identity")
    return identity["model_id"], identity["weights_id"]


def _check_entry(entry: Any) -> int:
    """Check one directory entry alone; return its alignment."""
    _need(isinstance(entry, dict), "object")
    kind = entry.get("kind")
    _need(kind in ("tensor", "resource"), "kind")
    _need(set(entry) == (TENSOR if kind == "tensor" else RESOURCE), "object members")
    _need(_text(entry["name"]), "name")
    _need(_integer(entry["offset"], 0) and _integer(entry["bytes"], 1), "offset or bytes")
    if kind == "resource":
        _need(entry["encoding"] == "raw-bytes-v1", "encoding")
        return 1
    shape = entry["shape"]
    _need(isinstance(shape, list) and all(_integer(dim, 1) for dim in shape), "shape")
    _need(isinstance(entry["format"], str) and entry["format"] in LAYOUT_OF, "format")
    _need(entry["layout"] == LAYOUT_OF[entry["format"]], "layout")
    try:
        expected = size(entry["format"], tuple(shape))
    except ValueError as error:
        raise Reject(str(error)) from None
    _need(entry["bytes"] == expected, "bytes")
    return 256
