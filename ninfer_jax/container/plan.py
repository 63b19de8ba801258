"""Every byte position of an artifact, decided before anything is written (container).

Objects are laid in the order given, each at the next multiple of its alignment; the file ends at the end of the last
object. The directory is compact JSON in canonical member order, so equal inputs give equal bytes on every machine.
Nothing is read or written here.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from ninfer_jax.container import framing
from ninfer_jax.container._directory import parse_directory
from ninfer_jax.container._strict_json import show
from ninfer_jax.container.schema import RAW_BYTES, Identity, ResourceObject, StoredObject, TensorObject
from ninfer_jax.errors import ArtifactError, FormatError, LayoutError
from ninfer_jax.formats import Format
from ninfer_jax.layouts import LAYOUTS, geometry

_MAX_FILE_NBYTES = 2**63 - 1  # file offsets of the operating system are signed


@dataclass(frozen=True)
class TensorEntry:
    """A tensor to store.

    Attributes:
        name: stored name.
        shape: logical shape, elements; `()` is a scalar.
        format: canonical name or spec; the format's layout is used.
    """

    name: str
    shape: Sequence[int]
    format: str | Format


@dataclass(frozen=True)
class ResourceEntry:
    """A file to store as `raw-bytes-v1`.

    Attributes:
        name: stored name.
        nbytes: size in bytes, > 0.
    """

    name: str
    nbytes: int


@dataclass(frozen=True)
class ArtifactPlan:
    """The finished plan of a revision 2 artifact. Made by `plan_artifact`; `plan[name]` is one object.

    Attributes:
        identity: model_id and weights_id.
        objects: tensors and resources in stored order, with offsets and sizes.
        header: prefix and JSON directory, as the file starts.
        payload_offset: byte of the file where payload offsets count from.
        file_size: bytes of the whole file.
    """

    identity: Identity
    objects: tuple[StoredObject, ...]
    header: bytes = field(repr=False)
    payload_offset: int
    file_size: int

    @cached_property
    def by_name(self) -> Mapping[str, StoredObject]:
        """Read-only mapping of name to object, in stored order."""
        return MappingProxyType({stored.name: stored for stored in self.objects})

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the header in hexadecimal: equal digests mean equal names, shapes, formats and offsets."""
        return hashlib.sha256(self.header).hexdigest()

    def __getitem__(self, name: str) -> StoredObject:
        stored = self.by_name.get(name)
        if stored is None:
            raise ArtifactError(f"the plan has no object {name!r}; plan every object before writing")
        return stored


def plan_artifact(identity: Identity | tuple[str, str], entries: Iterable[TensorEntry | ResourceEntry]) -> ArtifactPlan:
    """Plan a revision 2 artifact: `offset_i = up(offset_(i-1) + nbytes_(i-1), alignment_i)`.

    Args:
        identity: model_id and weights_id, both nonempty.
        entries: tensors and resources in the order they are stored; at least one.

    Returns:
        The plan, whose header passed every check that a reader makes.

    Raises:
        ArtifactError: a rule is broken; the message names the object. Nothing has been written.
    """
    model_id, weights_id = identity
    objects: list[StoredObject] = []
    cursor = 0
    for index, entry in enumerate(entries):
        stored = _place(index, entry, cursor)
        objects.append(stored)
        cursor = stored.offset + stored.nbytes
    root = {"identity": {"model_id": model_id, "weights_id": weights_id}, "objects": [item.entry() for item in objects]}
    raw = _encode(root)
    if len(raw) > framing.MAX_JSON_NBYTES:
        raise ArtifactError(
            f"the directory of {len(objects)} objects takes {len(raw)} bytes; at most {framing.MAX_JSON_NBYTES} are "
            "allowed, so store fewer objects or shorten their names"
        )
    payload_offset = framing.payload_offset(len(raw))
    if payload_offset + cursor > _MAX_FILE_NBYTES:
        raise ArtifactError(
            f"the artifact needs {payload_offset + cursor} bytes; a file holds at most {_MAX_FILE_NBYTES}"
        )
    # The reader's own rules judge the header, so that what is planned can be opened and the rules exist once.
    checked = parse_directory(raw, framing.WRITTEN_REVISION, cursor)
    header = framing.prefix(len(raw)) + raw
    return ArtifactPlan(checked.identity, checked.objects, header, payload_offset, payload_offset + cursor)


def _place(index: int, entry: TensorEntry | ResourceEntry, cursor: int) -> StoredObject:
    if isinstance(entry, ResourceEntry):
        return ResourceObject(entry.name, RAW_BYTES, cursor, entry.nbytes)
    try:
        plan = geometry(entry.format, entry.shape)
    except (FormatError, LayoutError) as error:
        raise ArtifactError(f"object {index} ({show(entry.name)}): {error}") from error
    alignment = LAYOUTS[plan.layout].alignment
    offset = -(-cursor // alignment) * alignment
    return TensorObject(entry.name, plan.shape, plan.format, plan.layout, offset, plan.nbytes)


def _encode(root: dict[str, object]) -> bytes:
    text = json.dumps(root, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        near = show(text[max(0, error.start - 20) : error.start])
        raise ArtifactError(f"a name holds a lone surrogate (behind {near}); UTF-8 cannot represent it") from None
