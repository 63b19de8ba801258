"""Opening an artifact: structure checked first, payloads as views of the mapped file (container).

Reads revisions 1 and 2. No code, scale or word is looked at here, and nothing is copied or decoded: a payload is bytes,
its planes are views of those bytes. Checking words is `ninfer_jax.codecs.check_words`.
"""

import difflib
import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

import numpy as np
from jaxtyping import UInt8

from ninfer_jax.container import framing
from ninfer_jax.container._directory import parse_directory
from ninfer_jax.container.schema import Identity, ResourceObject, StoredObject, TensorObject
from ninfer_jax.errors import ArtifactError
from ninfer_jax.layouts import payload_to_planes, slice_rows
from ninfer_jax.planes import Planes

_SNIFFED_NBYTES = 64


class _Contents(NamedTuple):
    """What the checks of one file yield."""

    revision: int
    identity: Identity
    objects: tuple[StoredObject, ...]
    payload_offset: int
    file_size: int
    buffer: mmap.mmap


def open_artifact(path: str | os.PathLike[str]) -> "Artifact":
    """Open a `.ninfer` file of revision 1 or 2 and check its whole structure.

    Only the prefix and the directory are read; the payload is mapped, not read. What is allocated is bounded by the
    directory that is really in the file, never by what its prefix declares.

    Args:
        path: a regular file. It must not be truncated while it is mapped: the operating system ends a process that
            touches pages that are gone.

    Returns:
        The artifact, also a context manager. Views taken from it stay valid after it is closed.

    Raises:
        ArtifactError: the file cannot be read, is something else (the message says what), or breaks a rule.

    Source: container, revisions 1 and 2.
    """
    try:
        with _open_regular(path) as file:
            contents = _read_contents(file)
    except ArtifactError as error:
        raise ArtifactError(f"{os.fspath(path)}: {error}") from error.__cause__
    except OSError as error:
        raise ArtifactError(f"{os.fspath(path)}: cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise ArtifactError(f"{os.fspath(path)}: its JSON directory needs more memory than is available") from error
    return Artifact(Path(path), contents)


def _open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    # A pipe or a device would block or never end, so the kind is asked before the file is opened.
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:  # a null character, or one that the file system's encoding does not have
        raise ArtifactError(f"is not the name of a file: {error}") from None
    if not stat.S_ISREG(mode):
        raise ArtifactError("is not a regular file; an artifact is one file")
    return open(path, "rb")


def _read_contents(file: BinaryIO) -> _Contents:
    file_size = os.fstat(file.fileno()).st_size
    start = file.read(_SNIFFED_NBYTES)
    revision, json_nbytes = framing.parse_prefix(start, file_size)
    file.seek(framing.PREFIX_NBYTES)
    raw = file.read(json_nbytes)
    if len(raw) != json_nbytes:
        raise ArtifactError(f"only {len(raw)} of the {json_nbytes} directory bytes can be read; the file is changing")
    payload_offset = framing.payload_offset(json_nbytes)
    identity, objects = parse_directory(raw, revision, file_size - payload_offset)
    buffer = mmap.mmap(file.fileno(), file_size, access=mmap.ACCESS_READ)
    return _Contents(revision, identity, objects, payload_offset, file_size, buffer)


class Artifact:
    """An open `.ninfer` file: identity, ordered objects, and zero-copy access to payloads.

    Made by `open_artifact`. `artifact[name]` is the object with that name, `name in artifact` asks for it, and
    iterating gives the objects in stored order.

    Attributes:
        path: the file as it was given.
        revision: 1 or 2.
        identity: model_id, and weights_id (None in revision 1).
        objects: tensors and resources in stored order.
        payload_offset: byte of the file where payload offsets count from.
        file_size: bytes.
        tensors: read-only mapping of name to tensor, in stored order.
        resources: read-only mapping of name to resource, in stored order.
    """

    def __init__(self, path: Path, contents: _Contents):
        self.path = path
        self.revision = contents.revision
        self.identity = contents.identity
        self.objects = contents.objects
        self.payload_offset = contents.payload_offset
        self.file_size = contents.file_size
        self._by_name = {stored.name: stored for stored in contents.objects}
        self.tensors: Mapping[str, TensorObject] = MappingProxyType(
            {stored.name: stored for stored in contents.objects if isinstance(stored, TensorObject)}
        )
        self.resources: Mapping[str, ResourceObject] = MappingProxyType(
            {stored.name: stored for stored in contents.objects if isinstance(stored, ResourceObject)}
        )
        self._map: mmap.mmap | None = contents.buffer

    def __enter__(self) -> "Artifact":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[StoredObject]:
        return iter(self.objects)

    def __len__(self) -> int:
        return len(self.objects)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> StoredObject:
        stored = self._by_name.get(name)
        if stored is None:
            close = difflib.get_close_matches(name, self._by_name, n=3)
            hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise ArtifactError(f"{self.path} has no object {name!r} among its {len(self.objects)}{hint}")
        return stored

    def __repr__(self) -> str:
        identity = "/".join(filter(None, self.identity))
        return f"<Artifact {identity}, revision {self.revision}, {len(self.objects)} objects, {self.file_size} bytes>"

    def payload(self, name: str) -> UInt8[np.ndarray, " nbytes"]:
        """Payload bytes of an object: a read-only view of the mapped file.

        Args:
            name: name of a tensor or resource.

        Returns:
            UInt8[nbytes], not copied. Reading it reads the file.

        Raises:
            ArtifactError: no such object, or the artifact is closed.
        """
        stored = self[name]
        return np.frombuffer(self._buffer(), np.uint8, stored.nbytes, self.payload_offset + stored.offset)

    def planes(self, name: str) -> Planes:
        """Planes of a tensor, shaped, as read-only views of the mapped file.

        Args:
            name: name of a tensor.

        Returns:
            The planes tuple of its format, or the word array of a direct tensor (little-endian dtypes).

        Raises:
            ArtifactError: no such tensor, or the artifact is closed.
        """
        stored = self._tensor(name)
        return payload_to_planes(self.payload(name), stored.format, stored.shape)

    def row_planes(self, name: str, start: int, stop: int) -> Planes:
        """Planes of rows [start, stop) of a tensor, as views of the mapped file where rows are contiguous.

        Args:
            name: name of a tensor.
            start: first row; for NVFP4 a multiple of the geometry's `row_block`, where a view is wanted.
            stop: row behind the last one; `stop - start` is a multiple of `row_block`.

        Raises:
            ArtifactError: no such tensor, or the artifact is closed.
            LayoutError: rows that do not exist, or not a whole number of row blocks.
        """
        return slice_rows(self.planes(name), self._tensor(name).format, start, stop)

    def release(self, name: str) -> None:
        """Let go of the memory that reading this payload brought in; views stay valid and read the file again.

        A mapped page counts as resident memory of the process once it was touched. Walking a large artifact object by
        object keeps that bounded by calling this behind itself. Does nothing where the system has no such advice.
        """
        stored = self[name]
        if hasattr(mmap, "MADV_DONTNEED"):
            start = self.payload_offset + stored.offset
            page = start // mmap.PAGESIZE * mmap.PAGESIZE
            self._buffer().madvise(mmap.MADV_DONTNEED, page, start + stored.nbytes - page)

    def close(self) -> None:
        """Close the artifact; the mapping itself ends with the last view of it."""
        buffer, self._map = self._map, None
        if buffer is not None:
            try:
                buffer.close()
            except BufferError:  # views are alive; they own the mapping now
                return

    def _tensor(self, name: str) -> TensorObject:
        stored = self[name]
        if not isinstance(stored, TensorObject):
            raise ArtifactError(f"object {name!r} is a resource and has no planes; read its bytes with payload()")
        return stored

    def _buffer(self) -> mmap.mmap:
        if self._map is None:
            raise ArtifactError(f"{self.path} is closed; open it again with open_artifact")
        return self._map
