"""GGUF files, through the `gguf` package (extra `gguf`): plain tensors, Q8_0 word for word, the other types decoded.

The package reads the metadata; data is read with positioned reads as everywhere. Tensor names stay GGUF's own, and so
do the row orders that its converters choose (llama query and key rows are permuted there). Leaves out model metadata.
Specification: checkpoint-sources.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from ninfer_jax.errors import SourceError, UnsupportedError
from ninfer_jax.sources.dialects.decoded import DecodedTensor
from ninfer_jax.sources.dialects.words import BlockQ8Tensor
from ninfer_jax.sources.gguf_header import check_gguf_header
from ninfer_jax.sources.tensor import PositionedFile, SourceRef, SourceTensor, StoredTensor, check_row_range, row_count

DIALECT = "gguf"
_PLAIN = {
    "F32": "F32",
    "F16": "F16",
    "BF16": "BF16",
    "F64": "F64",
    "I8": "I8",
    "I16": "I16",
    "I32": "I32",
    "I64": "I64",
}


@dataclass(frozen=True)
class BlockBytes:
    """Rows of quantized blocks as bytes, uint8 [rows, row_bytes]; a `SourceTensor`."""

    name: str
    shape: tuple[int, ...]
    handle: PositionedFile = field(repr=False)
    offset: int

    @property
    def dtype(self) -> str:
        """Bytes."""
        return "U8"

    @property
    def file(self) -> str:
        """Name of the file."""
        return self.handle.name

    @property
    def rows(self) -> int:
        """Number of rows."""
        return row_count(self.shape)

    @property
    def sources(self) -> tuple[SourceRef, ...]:
        """Itself."""
        return (SourceRef(self.name, self.file),)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Bytes of rows [start, stop)."""
        check_row_range(f"tensor {self.name!r}", self.rows, start, stop)
        row_bytes = int(np.prod(self.shape[1:]))
        data = self.handle.read(self.offset + start * row_bytes, (stop - start) * row_bytes)
        return data.reshape(stop - start, *self.shape[1:])


def read_tensors(handle: PositionedFile) -> dict[str, SourceTensor]:
    """Return the tensors of an open GGUF file in file order.

    Raises:
        UnsupportedError: the `gguf` package is not installed.
        SourceError: the file is not valid GGUF, or a tensor lies outside it.
    """
    gguf = _package()
    check_gguf_header(handle.path)
    try:
        reader = gguf.GGUFReader(handle.path, "r")
        split = reader.get_field("split.count")
        shards = int(split.parts[split.data[0]][0]) if split is not None else 1
        found = [(str(t.name), t.tensor_type, tuple(map(int, t.shape)), int(t.data_offset)) for t in reader.tensors]
    except Exception as error:
        # The package lets whatever a broken file provokes escape: IndexError, KeyError, UnicodeDecodeError, ...
        raise SourceError(
            f"{handle.name} is truncated or no valid GGUF file: {error or type(error).__name__}"
        ) from None
    if shards > 1:
        raise SourceError(f"{handle.name} is one of {shards} split GGUF files; merge them first (gguf-split --merge)")
    tensors: dict[str, SourceTensor] = {}
    for name, kind, extents, offset in found:
        if name in tensors:
            raise SourceError(f"{handle.name} holds tensor {name!r} twice")
        tensors[name] = _tensor(gguf, handle, name, kind, extents[::-1], offset)
    return tensors


def _package() -> ModuleType:
    try:
        return importlib.import_module("gguf")
    except ImportError:
        raise UnsupportedError(
            "reading a .gguf file needs the gguf package; install ninfer-jax with the extra gguf"
        ) from None


def _tensor(
    gguf: Any, handle: PositionedFile, name: str, kind: Any, shape: tuple[int, ...], offset: int
) -> SourceTensor:
    """One tensor; GGUF lists extents fastest first, `shape` is the usual order."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if not shape or shape[-1] % block:
        raise SourceError(f"{DIALECT}: tensor {name!r} {kind.name} {list(shape)} needs rows of whole {block}-blocks")
    row_bytes = shape[-1] // block * block_bytes
    rows = int(np.prod(shape[:-1], dtype=object))
    if offset + rows * row_bytes > handle.nbytes:
        raise SourceError(f"{handle.name} is truncated: tensor {name!r} ends at byte {offset + rows * row_bytes}")
    if kind.name in _PLAIN:
        return StoredTensor(name, shape, _PLAIN[kind.name], handle, offset)
    parts = (BlockBytes(name, (*shape[:-1], row_bytes), handle, offset),)
    if kind.name == "Q8_0" and len(shape) == 2:
        return BlockQ8Tensor(name, shape, parts)
    reason, decode = f"{kind.name} blocks are no registered format", _decoder(gguf, parts[0], kind, shape)
    if kind.name == "Q8_0":
        reason = f"W8G32_F16S stores rank 2, this Q8_0 tensor has rank {len(shape)}"
    if decode is None:
        reason += ", and the gguf package cannot decode them"
    return DecodedTensor(name, shape, parts, dialect=DIALECT, reason=reason, decode=decode)


def _decoder(gguf: Any, data: BlockBytes, kind: Any, shape: tuple[int, ...]) -> Callable[[int, int], np.ndarray] | None:
    """Decoder of row ranges; None for a kind that the package only names."""
    try:
        gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return None

    def decode(start: int, stop: int) -> np.ndarray:
        values = gguf.quants.dequantize(data.read(start, stop), kind)
        return np.asarray(values, np.float32).reshape(stop - start, *shape[1:])

    return decode
