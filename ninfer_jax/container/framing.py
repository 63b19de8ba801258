"""The prefix of an artifact and what other files start with (container, "Revisions 1 and 2: framing").

`magic (8) | u64 json_bytes (8) | JSON | zeros to a multiple of 4096 | payloads`. This module leaves out the directory
inside the JSON and does no input or output.
"""

import struct

from ninfer_jax.errors import ArtifactError

MAGIC = b"NINFER\x00"
PREFIX_NBYTES = 16
REVISIONS = (1, 2)
WRITTEN_REVISION = 2
MAX_JSON_NBYTES = 32 << 20
"""Directories above this are refused: about 160,000 objects, far beyond any checkpoint, yet cheap to parse."""

PARTIAL_MAGIC = b"NINFPART"
"""What a file holds in place of the magic until every payload is written; see `ninfer_jax.container.partial_file`."""

_PAYLOAD_ALIGNMENT = 4096
_LFS_POINTER = b"version https://git-lfs"
_OTHER_KINDS = (
    (PARTIAL_MAGIC, "the partial file of an unfinished conversion; resume that conversion, or delete the file"),
    (b"GGUF", "a GGUF file; convert it with `ninfer-jax convert`"),
    (b"PK\x03\x04", "a zip archive (NumPy .npz files and PyTorch checkpoints are such)"),
    (b"\x93NUMPY", "a NumPy .npy file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip file; decompress it first"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file; decompress it first"),
    (b"\x80\x02", "a Python pickle (old PyTorch checkpoints are such)"),
    (b"\x7fELF", "an ELF executable"),
    (b"%PDF", "a PDF document"),
    (_LFS_POINTER, "a Git LFS pointer; fetch the real file with `git lfs pull`"),
    (b"<!DOCTYPE", "an HTML page; the download went wrong"),
    (b"<html", "an HTML page; the download went wrong"),
)


def payload_offset(json_nbytes: int) -> int:
    """`up(16 + json_nbytes, 4096)`: where the payload of a file with a directory of `json_nbytes` bytes starts."""
    return -(-(PREFIX_NBYTES + json_nbytes) // _PAYLOAD_ALIGNMENT) * _PAYLOAD_ALIGNMENT


def prefix(json_nbytes: int) -> bytes:
    """The 16 bytes in front of the directory, of the revision that is written."""
    return MAGIC + bytes([WRITTEN_REVISION]) + struct.pack("<Q", json_nbytes)


def parse_prefix(start: bytes, file_nbytes: int) -> tuple[int, int]:
    """Check the start of a file against its size.

    Args:
        start: the first bytes of the file, at least 64 where it has that many.
        file_nbytes: size of the file in bytes.

    Returns:
        Revision (1 or 2) and json_bytes; that many bytes exist in the file behind the prefix.

    Raises:
        ArtifactError: another kind of file, another revision, or a file that cannot hold what its prefix declares.
    """
    if not start.startswith(MAGIC) or len(start) < PREFIX_NBYTES:
        raise ArtifactError(
            f"this is {describe_kind(start, file_nbytes)}; a .ninfer artifact of revision 1 or 2 is needed"
        )
    revision = start[len(MAGIC)]
    if revision not in REVISIONS:
        known = "whose schema is a later and larger one" if revision == 3 else "which is not known here"
        raise ArtifactError(
            f"this is a .ninfer artifact of revision {revision}, {known}; revisions 1 and 2 can be read, "
            "so convert the checkpoint again or use a reader of that revision"
        )
    (json_nbytes,) = struct.unpack_from("<Q", start, len(MAGIC) + 1)
    _check_sizes(json_nbytes, file_nbytes)
    return revision, json_nbytes


def _check_sizes(json_nbytes: int, file_nbytes: int) -> None:
    if json_nbytes == 0:
        raise ArtifactError("the prefix declares a JSON directory of 0 bytes; a directory is needed")
    if PREFIX_NBYTES + json_nbytes > file_nbytes:
        raise ArtifactError(
            f"the prefix declares a JSON directory of {json_nbytes} bytes, but the file has only {file_nbytes}; "
            "it is truncated or damaged"
        )
    if json_nbytes > MAX_JSON_NBYTES:
        raise ArtifactError(f"the JSON directory has {json_nbytes} bytes; at most {MAX_JSON_NBYTES} are read")
    start = payload_offset(json_nbytes)
    if start > file_nbytes:
        raise ArtifactError(f"the file is truncated: it ends at byte {file_nbytes}, before its payload offset {start}")


def describe_kind(start: bytes, file_nbytes: int) -> str:
    """What a file that is no artifact appears to be, by its first bytes, as a phrase that follows "this is"."""
    if file_nbytes == 0:
        return "an empty file"
    if start.startswith(MAGIC) or MAGIC.startswith(start):
        return f"the first {file_nbytes} bytes of a truncated artifact"
    for signature, kind in _OTHER_KINDS:
        if start.startswith(signature):
            return kind
    if start[8:10] in (b'{"', b"{}") and int.from_bytes(start[:8], "little") < file_nbytes:
        return "a safetensors file; convert it with `ninfer-jax convert`"
    if start.lstrip()[:1] in (b"{", b"["):
        return "a JSON text without the artifact's prefix"
    if not any(start):
        return "a file that starts with zeros (a preallocated or damaged one)"
    return f"not a file of a known kind (it starts with bytes {start[:8].hex(' ')})"
