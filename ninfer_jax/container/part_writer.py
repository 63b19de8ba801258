"""Writing payloads, and row blocks of payloads, at their planned places (container; storage-layouts, row views).

`file[payload_offset + offset(object) + offset(span)] = bytes(plane rows)`. Keeps account of the bytes written, object
by object. Whether and how the file is published is not decided here (see `ninfer_jax.container.writer`), so a process
that only contributes rows can hold a `PartWriter` and no more.
"""

import threading
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from ninfer_jax._typing import AnyArray
from ninfer_jax.container._intervals import Intervals
from ninfer_jax.container.partial_file import PartialFile
from ninfer_jax.container.plan import ArtifactPlan
from ninfer_jax.container.schema import StoredObject, TensorObject
from ninfer_jax.errors import ArtifactError
from ninfer_jax.layouts import Geometry, PlaneSpan, Span, plane_row_bytes
from ninfer_jax.planes import Planes


class MissingRange(NamedTuple):
    """Payload bytes that have not been written: `[offset, offset + nbytes)` of the object's payload."""

    name: str
    offset: int
    nbytes: int


class _Account:
    """The bytes of one payload that must be written, and those that have been."""

    def __init__(self, stored: StoredObject):
        self.geometry: Geometry | None = stored.geometry if isinstance(stored, TensorObject) else None
        if self.geometry is None:
            self.required = [(0, stored.nbytes)]
        else:
            self.required = [(plane.offset, plane.offset + plane.nbytes) for plane in self.geometry.planes]
        self.padding = [(stop, start) for (_, stop), (start, _) in pairwise(self.required) if stop < start]
        self.written = Intervals()

    def missing(self) -> list[tuple[int, int]]:
        return [gap for start, stop in self.required for gap in self.written.gaps(start, stop)]


class PartWriter:
    """Writes objects or row ranges into a partial file, in any order, from any thread.

    Writing the same bytes twice is fine, so interrupted work can simply be repeated. Use as a context manager or call
    `close`. Made by `ArtifactWriter.attach`.

    Attributes:
        plan: the plan of the artifact.
        partial: the file being written.
    """

    def __init__(self, plan: ArtifactPlan, file: PartialFile):
        self.plan = plan
        self._file = file
        self._lock = threading.Lock()
        self._accounts = {stored.name: _Account(stored) for stored in plan.objects}

    @property
    def partial(self) -> Path:
        """The file being written."""
        return self._file.path

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def write(self, name: str, offset: int, data: bytes | bytearray | memoryview | UInt8[np.ndarray, "_"]) -> None:
        """Write payload bytes of an object.

        Args:
            name: a planned object.
            offset: first byte, from the start of its payload.
            data: the bytes; where they cover the padding between planes, that padding is zero.

        Raises:
            ArtifactError: no such object, bytes outside its payload, or nonzero padding.
            ConversionError: the operating system refuses, for instance because the disk is full.
        """
        stored, account = self._lookup(name)
        flat = np.frombuffer(data, np.uint8)
        stop = offset + flat.nbytes
        if not 0 <= offset <= stop <= stored.nbytes:
            raise ArtifactError(
                f"object {name!r} has {stored.nbytes} payload bytes; bytes [{offset}, {stop}) are not all inside"
            )
        for start, end in account.padding:
            if flat[max(start - offset, 0) : max(end - offset, 0)].any():
                raise ArtifactError(f"object {name!r}: padding bytes [{start}, {end}) of its payload must be zero")
        self._put(stored, offset, flat)
        with self._lock:
            account.written.add(offset, stop)

    def write_rows(self, name: str, start: int, planes: Planes) -> None:
        """Write consecutive rows of a tensor: one contiguous write a plane.

        Args:
            name: a planned tensor.
            start: first row, a multiple of the geometry's `row_block`.
            planes: planes of the rows, NumPy or JAX; for a direct tensor the words [rows, ...], for a scalar [] or [1].

        Raises:
            ArtifactError: planes of another format, width or dtype, or an NVFP4 divisor other than the one written.
            LayoutError: rows that do not exist, or that cut a row block.
            ConversionError: the operating system refuses, for instance because the disk is full.
        """
        stored, account = self._lookup(name)
        geometry = _rows_of(account, name)
        _check_planes(name, geometry, planes)
        parts = plane_row_bytes(planes)
        first = geometry.planes[0]
        rows = parts[0].nbytes // first.block_nbytes * geometry.row_block
        spans = geometry.row_spans(start, start + rows)
        if [span.nbytes for span in spans] != [part.nbytes for part in parts]:
            sizes = ", ".join(
                f"{span.plane} {part.nbytes} of {span.nbytes}" for span, part in zip(spans, parts, strict=True)
            )
            raise ArtifactError(
                f"object {name!r}, rows [{start}, {start + rows}): the planes differ in rows (bytes: {sizes})"
            )
        for plane, span, part in zip(geometry.planes, spans, parts, strict=True):
            self._put_plane(stored, plane, span, part)
        with self._lock:
            for span in spans:
                account.written.add(span.offset, span.offset + span.nbytes)

    def mark_written(self, name: str, start: int, stop: int) -> None:
        """Count rows [start, stop) as written: by an earlier run whose journal says so, or by another process.

        Args:
            name: a planned object; the rows of a resource are its bytes.
            start: first row.
            stop: row behind the last one.

        Raises:
            ArtifactError: no such object, or bytes outside a resource.
            LayoutError: rows that do not exist, or that cut a row block.
        """
        stored, account = self._lookup(name)
        if account.geometry is not None:
            ranges = [(span.offset, span.offset + span.nbytes) for span in account.geometry.row_spans(start, stop)]
        elif 0 <= start < stop <= stored.nbytes:
            ranges = [(start, stop)]
        else:
            raise ArtifactError(f"resource {name!r} has {stored.nbytes} bytes; [{start}, {stop}) is no range of them")
        with self._lock:
            for first, last in ranges:
                account.written.add(first, last)

    def missing(self) -> tuple[MissingRange, ...]:
        """Payload bytes not yet written or marked, in stored order; empty when the artifact is complete."""
        with self._lock:
            return tuple(
                MissingRange(name, start, stop - start)
                for name, account in self._accounts.items()
                for start, stop in account.missing()
            )

    def sync(self) -> None:
        """Wait until all bytes written so far are on the disk; a journal records rows only after this.

        Raises:
            ConversionError: the disk reports an error.
        """
        self._file.sync()

    def close(self) -> None:
        """Close this handle; the partial file stays as it is. Waits for writes in other threads."""
        self._file.close()

    def _lookup(self, name: str) -> tuple[StoredObject, _Account]:
        return self.plan[name], self._accounts[name]

    def _put(self, stored: StoredObject, offset: int, data: np.ndarray) -> None:
        self._file.write(self.plan.payload_offset + stored.offset + offset, data)

    def _put_plane(self, stored: StoredObject, plane: PlaneSpan, span: Span, part: np.ndarray) -> None:
        if plane.block_nbytes:
            self._put(stored, span.offset, part)
            return
        # A plane shared by all rows (the NVFP4 divisor, never zero): every block must bring the same bytes. They are
        # compared in the file, so that other processes and earlier runs count.
        with self._lock:
            held = self._file.read(self.plan.payload_offset + stored.offset + span.offset, span.nbytes)
            if any(held) and held != part.tobytes():
                raise ArtifactError(
                    f"object {stored.name!r}: {plane.name} bytes {part.tobytes().hex()} differ from {held.hex()}, "
                    "written with other rows; all rows of one tensor share it"
                )
            self._put(stored, span.offset, part)


def _rows_of(account: _Account, name: str) -> Geometry:
    if account.geometry is None:
        raise ArtifactError(f"object {name!r} is a resource and has no rows; write its bytes with write()")
    return account.geometry


def _check_planes(name: str, geometry: Geometry, planes: Planes) -> None:
    given = (
        {"words": planes}
        if not isinstance(planes, tuple)
        else {field: plane for field, plane in planes._asdict().items() if plane is not None}
    )
    expected = {plane.name: plane for plane in geometry.planes}
    if list(given) != list(expected):
        raise ArtifactError(
            f"object {name!r} is {geometry.format} with planes {', '.join(expected)}; given {', '.join(given)}"
        )
    for field, plane in expected.items():
        _check_plane(name, geometry, plane, given[field])


def _check_plane(name: str, geometry: Geometry, plane: PlaneSpan, given: AnyArray) -> None:
    if np.dtype(given.dtype) != np.dtype(plane.dtype) or tuple(given.shape[1:]) != plane.shape[1:]:
        columns = ", ".join(map(str, ("rows", *plane.shape[1:])))
        raise ArtifactError(
            f"object {name!r} ({geometry.format} {list(geometry.shape)}): plane {plane.name} is {given.dtype} "
            f"{list(given.shape)}; needed {np.dtype(plane.dtype).name} [{columns}]"
        )
