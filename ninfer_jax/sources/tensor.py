"""One tensor of a checkpoint, read by blocks of rows.

Rows are read with positioned reads and not through a memory map: peak memory is then the block itself (mapped pages
count as resident), a file that shrinks while it is read gives an error and not a bus fault, and threads may read side
by side. Leaves out file headers (`safetensors_file`, `gguf_file`) and quantized dialects
(`ninfer_jax.sources.dialects`).
"""

import math
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32

from ninfer_jax.errors import SourceChangedError, SourceError
from ninfer_jax.sources.dtypes import ELEMENT_TYPES

MAX_READ_BYTES = 1 << 30
"""Largest single positioned read, bytes; systems cut reads at about 2 GiB."""


class SourceRef(NamedTuple):
    """One checkpoint tensor that is read: its name, and the name of the file that holds it (never a path)."""

    tensor: str
    file: str


@dataclass(frozen=True)
class SourceFile:
    """One weight file of a checkpoint.

    Attributes:
        name: file name without a folder.
        nbytes: size in bytes.
        path: where it is; kept out of `repr` and of reports.
    """

    name: str
    nbytes: int
    path: Path = field(repr=False)


@runtime_checkable
class SourceTensor(Protocol):
    """What every tensor of a checkpoint offers, stored plainly or in a quantized dialect.

    Attributes:
        name: name in the checkpoint.
        shape: logical shape, elements.
        dtype: safetensors name of the element type; `F32` where `read` decodes quantized words.
        file: name of the file that holds it, or holds its first part.
        rows: extent of axis 0; 1 for a scalar.
        sources: the stored tensors behind it.
    """

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...

    @property
    def file(self) -> str: ...

    @property
    def rows(self) -> int: ...

    @property
    def sources(self) -> tuple[SourceRef, ...]: ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """Values of rows [start, stop) of axis 0, shape [stop - start, *shape[1:]]; [1] for a scalar."""
        ...


def row_count(shape: tuple[int, ...]) -> int:
    """Rows of a shape: its first extent, or 1 for a scalar."""
    return shape[0] if shape else 1


def check_row_range(what: str, rows: int, start: int, stop: int) -> None:
    """Raise SourceError unless 0 <= start <= stop <= rows."""
    if not 0 <= start <= stop <= rows:
        raise SourceError(f"rows [{start}, {stop}) of {what} were asked for, but it has rows [0, {rows})")


class PositionedFile:
    """A file opened for positioned reads, shared by its tensors and by threads; `close` ends it.

    What is read belongs together: a file that is written to after it was opened is an error at the next read. One that
    is replaced or removed by name is read on as it was.
    """

    def __init__(self, path: Path):
        self.name = path.name
        self.path = path
        try:
            # Without O_NONBLOCK, opening a pipe waits for a writer.
            self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise SourceError(f"cannot open {path.name}: {error.strerror or error}") from None
        status = os.fstat(self._descriptor)
        self.nbytes = status.st_size
        self._state = status.st_size, status.st_mtime_ns
        if not stat.S_ISREG(status.st_mode):
            self.close()
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a device or a pipe"
            raise SourceError(f"{path.name} is {kind}; a regular file is needed")

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        """Return bytes [offset, offset + nbytes) as a new uint8 array.

        Raises:
            SourceChangedError: the file was written to since it was opened.
            SourceError: the file is closed, ends early or cannot be read.
        """
        if self._descriptor is None:
            raise SourceError(f"{self.name} was read after its checkpoint was closed; read inside the `with` block")
        buffer = np.empty(nbytes, np.uint8)
        view, done = buffer.data, 0
        try:
            while done < nbytes:
                count = os.preadv(self._descriptor, [view[done : done + MAX_READ_BYTES]], offset + done)
                if count == 0:
                    break
                done += count
            status = os.fstat(self._descriptor)
        except OSError as error:
            raise SourceError(f"cannot read {self.name} at byte {offset + done}: {error.strerror}") from None
        if (status.st_size, status.st_mtime_ns) != self._state:
            raise SourceChangedError(f"{self.name} was written to while it was read")
        if done < nbytes:
            raise SourceError(f"{self.name} ends at byte {offset + done}; {nbytes - done} more bytes were expected")
        return buffer

    def close(self) -> None:
        """Close the file; later reads raise SourceError."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@dataclass(frozen=True)
class StoredTensor:
    """A tensor whose elements lie in C order in one file; a `SourceTensor`.

    Attributes:
        offset: byte of the first element in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    handle: PositionedFile = field(repr=False)
    offset: int

    @property
    def file(self) -> str:
        """Name of the file."""
        return self.handle.name

    @property
    def rows(self) -> int:
        """Extent of axis 0; 1 for a scalar."""
        return row_count(self.shape)

    @property
    def sources(self) -> tuple[SourceRef, ...]:
        """Itself."""
        return (SourceRef(self.name, self.file),)

    @property
    def nbytes(self) -> int:
        """Stored size, bytes."""
        return math.prod(self.shape) * ELEMENT_TYPES[self.dtype].bits // 8

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read rows [start, stop); see `SourceTensor.read`.

        Raises:
            SourceError: rows outside the tensor, elements narrower than a byte, or a file that cannot be read.
        """
        check_row_range(f"tensor {self.name!r}", self.rows, start, stop)
        dtype = ELEMENT_TYPES[self.dtype].dtype
        if dtype is None:
            raise SourceError(
                f"tensor {self.name!r} has sub-byte {self.dtype} elements, which no recipe reads; store it as U8 bytes"
            )
        row_bytes = self.nbytes // max(self.rows, 1)
        data = self.handle.read(self.offset + start * row_bytes, (stop - start) * row_bytes)
        return data.view(dtype).reshape((stop - start, *self.shape[1:]))


@dataclass(frozen=True)
class WidenedTensor:
    """An F16 or BF16 tensor seen as F32, each value unchanged; a `SourceTensor`."""

    part: SourceTensor
    name: str
    shape: tuple[int, ...]
    dtype: str = "F32"

    @property
    def file(self) -> str:
        """Name of the file."""
        return self.part.file

    @property
    def rows(self) -> int:
        """Extent of axis 0; 1 for a scalar."""
        return self.part.rows

    @property
    def sources(self) -> tuple[SourceRef, ...]:
        """The stored tensor."""
        return self.part.sources

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read rows [start, stop) as float32."""
        return widen_to_f32(self.part.read(start, stop))


def widen_to_f32(values: Float[np.ndarray, "*shape"]) -> Float32[np.ndarray, "*shape"]:
    """Widen BF16 or F16 values to float32 exactly; BF16 words keep even their NaN payloads."""
    if values.dtype == ELEMENT_TYPES["BF16"].dtype:
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)
