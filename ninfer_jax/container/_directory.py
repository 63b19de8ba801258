"""Every structural rule of revisions 1 and 2, checked before any payload is read (container, "Objects").

Both revisions share the objects and differ in the root. Rules are applied in array order and the first broken one is
reported with the object it belongs to. All arithmetic is on Python integers, so nothing wraps. Codes and scales are not
looked at: scanning them is a separate, explicit step.

Where the specification leaves a choice: duplicate members and a byte order mark are refused (`_strict_json`), a name
with a lone surrogate is refused because UTF-8 cannot write it, `-0` is the integer 0, and revision 1 may hold all nine
formats.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ninfer_jax.container._strict_json import OversizedInteger, parse_strict, show
from ninfer_jax.container.schema import RAW_BYTES, Identity, ResourceObject, StoredObject, TensorObject
from ninfer_jax.errors import ArtifactError, LayoutError
from ninfer_jax.formats import FORMATS
from ninfer_jax.layouts import LAYOUTS, geometry

_RESOURCE_ALIGNMENT = 1
_RESOURCE_MEMBERS = ("name", "kind", "encoding", "offset", "bytes")
_TENSOR_MEMBERS = ("name", "kind", "shape", "format", "layout", "offset", "bytes")
_ROOT_MEMBERS = {1: ("model_id", "objects"), 2: ("identity", "objects")}
_IDENTITY_MEMBERS = ("model_id", "weights_id")


class Directory(NamedTuple):
    """The checked contents of a JSON directory."""

    identity: Identity
    objects: tuple[StoredObject, ...]


def parse_directory(raw: bytes, revision: int, payload_nbytes: int) -> Directory:
    """Parse and check the JSON directory of an artifact.

    Args:
        raw: the JSON text, exactly `json_bytes` bytes.
        revision: 1 or 2.
        payload_nbytes: bytes of the file from the payload offset to its end.

    Raises:
        ArtifactError: the first broken rule, with the object that breaks it.
    """
    root = _members(parse_strict(raw), _ROOT_MEMBERS[revision], "the directory root")
    identity = _identity(root, revision)
    entries = root["objects"]
    if not isinstance(entries, list) or not entries:
        raise ArtifactError(f"the directory root: member 'objects' is {show(entries)}; a nonempty array is needed")
    objects: list[StoredObject] = []
    names: dict[str, int] = {}
    cursor = 0
    for index, entry in enumerate(entries):
        where = _label(index, entry)
        stored = _stored_object(entry, where)
        if names.setdefault(stored.name, index) != index:
            raise ArtifactError(f"{where}: object {names[stored.name]} has the same name; names are unique")
        cursor = _check_place(stored, where, cursor, payload_nbytes)
        objects.append(stored)
    return Directory(identity, tuple(objects))


def _label(index: int, entry: Any) -> str:
    name = entry.get("name") if isinstance(entry, dict) else None
    return f"object {index} ({show(name)})" if isinstance(name, str) else f"object {index}"


def _identity(root: dict[str, Any], revision: int) -> Identity:
    if revision == 1:
        return Identity(_text(root, "model_id", "the directory root"), None)
    members = _members(root["identity"], _IDENTITY_MEMBERS, "member 'identity'")
    return Identity(*(_text(members, key, "member 'identity'") for key in _IDENTITY_MEMBERS))


def _stored_object(entry: Any, where: str) -> StoredObject:
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if kind == TensorObject.kind:
        return _tensor(_members(entry, _TENSOR_MEMBERS, where), where)
    if kind == ResourceObject.kind:
        return _resource(_members(entry, _RESOURCE_MEMBERS, where), where)
    if not isinstance(entry, dict):
        raise ArtifactError(f"{where}: the entry is {show(entry)}; a JSON object is needed")
    given = f"is {show(kind)}" if "kind" in entry else "is missing"
    raise ArtifactError(f"{where}: member 'kind' {given}; it is 'tensor' or 'resource'")


def _tensor(entry: dict[str, Any], where: str) -> TensorObject:
    name = _text(entry, "name", where)
    shape = _shape(entry["shape"], where)
    format, layout = _registered(entry, "format", FORMATS, where), _registered(entry, "layout", LAYOUTS, where)
    offset = _integer(entry, "offset", where, minimum=0)
    nbytes = _integer(entry, "bytes", where, minimum=1)
    try:
        expected = geometry(format, shape, layout).nbytes
    except LayoutError as error:
        raise ArtifactError(f"{where}: {error}") from error
    if nbytes != expected:
        raise ArtifactError(
            f"{where}: member 'bytes' is {nbytes}; layout {layout} stores {format} {list(shape)} in {expected} bytes"
        )
    return TensorObject(name, shape, format, layout, offset, nbytes)


def _resource(entry: dict[str, Any], where: str) -> ResourceObject:
    name = _text(entry, "name", where)
    encoding = _registered(entry, "encoding", {RAW_BYTES: None}, where)
    offset = _integer(entry, "offset", where, minimum=0)
    return ResourceObject(name, encoding, offset, _integer(entry, "bytes", where, minimum=1))


def _check_place(stored: StoredObject, where: str, cursor: int, payload_nbytes: int) -> int:
    """Order, alignment and bounds of one payload; returns the cursor behind it."""
    alignment = LAYOUTS[stored.layout].alignment if isinstance(stored, TensorObject) else _RESOURCE_ALIGNMENT
    if stored.offset < cursor:
        raise ArtifactError(
            f"{where}: offset {stored.offset} lies before byte {cursor}, where the previous object ends; "
            "objects are stored in array order and never overlap"
        )
    if stored.offset % alignment:
        raise ArtifactError(f"{where}: offset {stored.offset} is not a multiple of its alignment {alignment}")
    end = stored.offset + stored.nbytes
    if end > payload_nbytes:
        raise ArtifactError(
            f"{where}: bytes [{stored.offset}, {end}) reach beyond the {payload_nbytes} payload bytes of the file; "
            "the file is truncated or its directory is wrong"
        )
    return end


def _members(value: Any, expected: tuple[str, ...], where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ArtifactError(f"{where} is {show(value)}; an object with members {', '.join(expected)} is needed")
    missing = [key for key in expected if key not in value]
    extra = [key for key in value if key not in expected]
    if missing or extra:
        wrong = [f"lacks {', '.join(missing)}"] if missing else []
        names = ", ".join(map(show, extra[:4])) + (" and more" if len(extra) > 4 else "")
        wrong += [f"has unknown {names}"] if extra else []
        raise ArtifactError(f"{where} {' and '.join(wrong)}; its members are exactly {', '.join(expected)}")
    return value


def _text(entry: dict[str, Any], key: str, where: str) -> str:
    value = entry[key]
    if not isinstance(value, str) or not value:
        raise ArtifactError(f"{where}: member {key!r} is {show(value)}; a nonempty string is needed")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ArtifactError(
            f"{where}: member {key!r} is {show(value)}, which holds a lone surrogate; UTF-8 cannot represent it"
        ) from None
    return value


def _registered(entry: dict[str, Any], key: str, registry: Mapping[str, object], where: str) -> str:
    value = _text(entry, key, where)
    if value not in registry:
        raise ArtifactError(f"{where}: unknown {key} {show(value)}; known: {', '.join(registry)} (spelled exactly)")
    return value


def _integer(entry: dict[str, Any], key: str, where: str, minimum: int) -> int:
    value = entry[key]
    if not _is_integer(value) or value < minimum:
        raise ArtifactError(f"{where}: member {key!r} is {show(value)}; {_integer_rule(value, minimum)}")
    return value


def _shape(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ArtifactError(f"{where}: member 'shape' is {show(value)}; an array of positive integers is needed")
    for axis, dim in enumerate(value):
        if not _is_integer(dim) or dim < 1:
            raise ArtifactError(f"{where}: dimension {axis} of 'shape' is {show(dim)}; {_integer_rule(dim, 1)}")
    return tuple(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integer_rule(value: Any, minimum: int) -> str:
    if isinstance(value, OversizedInteger):
        return "sizes fit 64 bits"
    return f"an integer of at least {minimum} is needed (no boolean, no fraction, no exponent)"
