"""The safetensors file format: header validation, and tensors as positioned reads (checkpoint-sources).

The `safetensors` package cannot hand out F8_E4M3, F8_E8M0 or F4 tensors without torch, and the format is small: a u64
LE length, that many bytes of JSON, then the data. Nothing is allocated that a header merely declares. Leaves out
shards and folders (`directory`).
"""

from typing import Any

from ninfer_jax.errors import SourceError
from ninfer_jax.sources.dtypes import ELEMENT_TYPES
from ninfer_jax.sources.json_file import parse_json_object
from ninfer_jax.sources.tensor import PositionedFile, StoredTensor

MAX_HEADER_BYTES = 100_000_000
"""Largest header of the format, bytes."""

_MEMBERS = {"dtype", "shape", "data_offsets"}
_MAX_BITS = 2**63
_LFS_POINTER = b"version https://git-lfs"


def read_tensors(handle: PositionedFile) -> dict[str, StoredTensor]:
    """Return the tensors of an open safetensors file in the order of their data.

    Raises:
        SourceError: a header that is truncated, malformed or at odds with the size of the file.
    """
    name = handle.name
    if handle.nbytes < 8:
        raise SourceError(f"{name} has {handle.nbytes} bytes; a safetensors file starts with an 8-byte header length")
    start = handle.read(0, min(handle.nbytes, len(_LFS_POINTER))).tobytes()
    if start == _LFS_POINTER:
        raise SourceError(f"{name} is a Git LFS pointer and not the weights; fetch them with git lfs pull")
    length = int.from_bytes(start[:8], "little")
    if length > MAX_HEADER_BYTES or length > handle.nbytes - 8:
        raise SourceError(
            f"{name} declares a header of {length} bytes, but the file has {handle.nbytes} bytes and a header at most "
            f"{MAX_HEADER_BYTES}: it is truncated or not a safetensors file"
        )
    header = parse_json_object(handle.read(8, length).tobytes(), f"the header of {name}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise SourceError(f"the header of {name} has a __metadata__ member that is not an object")
    data_start = 8 + length
    spans = [(_span(name, tensor, entry), tensor, entry) for tensor, entry in header.items()]
    spans.sort(key=lambda item: item[0])
    _check_coverage(name, [(span, tensor) for span, tensor, _ in spans], handle.nbytes - data_start)
    return {
        tensor: StoredTensor(tensor, tuple(entry["shape"]), entry["dtype"], handle, data_start + span[0])
        for span, tensor, entry in spans
    }


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_BITS


def _span(file: str, tensor: str, entry: Any) -> tuple[int, int]:
    """Validate one header entry and return its data offsets."""
    where = f"tensor {tensor!r} in the header of {file}"
    if not isinstance(entry, dict) or set(entry) != _MEMBERS:
        raise SourceError(f"{where} needs exactly the members dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ELEMENT_TYPES:
        raise SourceError(f"{where} has dtype {dtype!r}; known are {', '.join(ELEMENT_TYPES)}")
    if not isinstance(shape, list) or not all(map(_is_count, shape)):
        raise SourceError(f"{where} has shape {shape!r}; a list of integers >= 0 is needed")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise SourceError(f"{where} has data_offsets {offsets!r}; two integers >= 0 are needed")
    bits = ELEMENT_TYPES[dtype].bits
    for extent in shape:
        bits *= extent
        if bits >= _MAX_BITS:
            raise SourceError(f"{where} has shape {shape}, whose size does not fit in 63 bits")
    begin, end = offsets
    if begin > end or bits != 8 * (end - begin):
        raise SourceError(f"{where} has {bits} bits of {dtype} {shape}, but data_offsets span {end - begin} bytes")
    return begin, end


def _check_coverage(file: str, spans: list[tuple[tuple[int, int], str]], data_bytes: int) -> None:
    """The format wants the data covered exactly once: no gap, no overlap, nothing after the last tensor."""
    cursor = 0
    for (begin, end), tensor in spans:
        if begin != cursor:
            kind = "overlaps the tensor before it" if begin < cursor else "leaves a gap before it"
            raise SourceError(f"tensor {tensor!r} in {file} starts at data byte {begin}, which {kind} ({cursor})")
        cursor = end
    if cursor > data_bytes:
        raise SourceError(f"{file} is truncated: its header needs {cursor} data bytes, the file holds {data_bytes}")
    if cursor < data_bytes:
        raise SourceError(f"{file} has {data_bytes - cursor} bytes after its last tensor; the header covers {cursor}")
