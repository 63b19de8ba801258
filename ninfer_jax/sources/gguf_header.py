"""The header of a GGUF file, walked once before the `gguf` package reads it.

That package believes every count in a file: one that declares 2**61 entries keeps it busy for ever. Here every length
is held against the bytes that are there. Leaves out what keys and tensors mean. Specification: checkpoint-sources.
"""

import mmap
import struct
from pathlib import Path

from ninfer_jax.errors import SourceError

MAX_ENTRIES = 1 << 22
"""Most entries of one metadata array; the largest vocabularies and merge lists have under 2**20."""

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MAX_RANK = 4
_SMALLEST_KEY, _SMALLEST_TENSOR = 8 + 4 + 1, 8 + 4 + 4 + 8


class _Cursor:
    """A position in the file that never leaves it."""

    def __init__(self, data: mmap.mmap):
        self.data = data
        self.position = 0

    def skip(self, nbytes: int) -> None:
        left = len(self.data) - self.position
        if nbytes > left:
            raise ValueError(f"its header needs {nbytes} bytes at byte {self.position}, and {left} are left")
        self.position += nbytes

    def integer(self, code: str) -> int:
        size = struct.calcsize(code)
        self.skip(size)
        return struct.unpack_from(code, self.data, self.position - size)[0]

    def count(self, what: str, smallest: int) -> int:
        """A count of things of at least `smallest` bytes each."""
        count, left = self.integer("<Q"), len(self.data) - self.position
        if count * smallest > left:
            raise ValueError(f"it declares {count} {what}, and {left} bytes are left")
        return count

    def string(self) -> None:
        self.skip(self.integer("<Q"))


def check_gguf_header(path: Path) -> None:
    """Check that the header of a GGUF file ends inside the file.

    Args:
        path: the file.

    Raises:
        SourceError: it cannot be read, is not little-endian GGUF of version 2 or 3, is truncated, or declares more
            than it can hold.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(8)
            if len(start) < 8 or start[:4] != _MAGIC:
                raise ValueError("it does not start with the magic GGUF and a version")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _walk(_Cursor(data))
    except OSError as error:
        raise SourceError(f"cannot read {path.name}: {error.strerror or error}") from None
    except ValueError as error:
        raise SourceError(f"{path.name} is not a readable GGUF file: {error}; get it again") from None


def _walk(cursor: _Cursor) -> None:
    cursor.skip(len(_MAGIC))
    version = cursor.integer("<I")
    if version not in _VERSIONS:
        raise ValueError(f"its version is {version}, read are little-endian files of version 2 and 3")
    # The number of tensors stands before the metadata, the tensors after it.
    tensors = cursor.count("tensors", _SMALLEST_TENSOR)
    for _ in range(cursor.count("metadata keys", _SMALLEST_KEY)):
        cursor.string()
        _skip_value(cursor, cursor.integer("<I"))
    for _ in range(tensors):
        cursor.string()
        rank = cursor.integer("<I")
        if rank > _MAX_RANK:
            raise ValueError(f"a tensor has rank {rank}, at most {_MAX_RANK} is allowed")
        cursor.skip(8 * rank + 4 + 8)


def _skip_value(cursor: _Cursor, kind: int) -> None:
    if kind == _STRING:
        cursor.string()
    elif kind == _ARRAY:
        _skip_array(cursor)
    else:
        cursor.skip(_scalar_bytes(kind))


def _skip_array(cursor: _Cursor) -> None:
    kind = cursor.integer("<I")
    size = 8 if kind == _STRING else _scalar_bytes(kind)
    count = cursor.count("array entries", size)
    if count > MAX_ENTRIES:
        raise ValueError(f"an array of its metadata has {count} entries, at most {MAX_ENTRIES} are read")
    if kind != _STRING:
        cursor.skip(count * size)
        return
    for _ in range(count):
        cursor.string()


def _scalar_bytes(kind: int) -> int:
    if kind not in _SCALAR_BYTES:
        raise ValueError(f"its metadata has a value of type {kind} where a scalar or a string is needed")
    return _SCALAR_BYTES[kind]
