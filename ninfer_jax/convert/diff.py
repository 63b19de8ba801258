"""Comparing two artifacts: identity, objects, and the first differing word of every tensor that both hold.

Nothing is decoded; payloads are compared as bytes by row block, and only a block that differs is unpacked.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ninfer_jax.container import Artifact, StoredObject, TensorObject, open_artifact
from ninfer_jax.convert.blocks import DEFAULT_BLOCK_BYTES
from ninfer_jax.convert.devices import DeviceMesh
from ninfer_jax.convert.differences import first_difference, same_bytes
from ninfer_jax.convert.settings import PathLike
from ninfer_jax.convert.stored import StoredRows


@dataclass(frozen=True)
class Difference:
    """One difference: the object's name, empty for the identity, and what differs."""

    name: str
    what: str


def diff_artifacts(
    first: PathLike, second: PathLike, *, block_bytes: int = DEFAULT_BLOCK_BYTES
) -> tuple[Difference, ...]:
    """Differences of the second artifact from the first, empty where both hold the same.

    Where objects lie in the file, and what the padding between them holds, is not compared.

    Args:
        first: an artifact.
        second: another one.
        block_bytes: payload bytes compared together.

    Raises:
        ArtifactError: one of them is not a valid artifact.
    """
    with open_artifact(Path(first)) as left, open_artifact(Path(second)) as right:
        found = []
        if left.identity != right.identity:
            found.append(Difference("", f"identity {_identity(right)}, first has {_identity(left)}"))
        found += [Difference(one.name, "only in the first") for one in left if one.name not in right]
        found += [Difference(one.name, "only in the second") for one in right if one.name not in left]
        common = [one.name for one in left if one.name in right]
        if common != [one.name for one in right if one.name in left]:
            found.append(Difference("", "common objects are in another order"))
        for name in common:
            what = _object_difference(left, right, name, block_bytes)
            if what:
                found.append(Difference(name, what))
        return tuple(found)


def _identity(artifact: Artifact) -> str:
    return "/".join(part for part in artifact.identity if part)


def _object_difference(left: Artifact, right: Artifact, name: str, block_bytes: int) -> str | None:
    one, other = left[name], right[name]
    if isinstance(one, TensorObject) and isinstance(other, TensorObject):
        if (one.shape, one.format) != (other.shape, other.format):
            return f"{other.format} {list(other.shape)}, first has {one.format} {list(one.shape)}"
        return _word_difference(left, right, one, block_bytes)
    if type(one) is not type(other):
        return f"is a {other.kind}, first has a {one.kind}"
    return _byte_difference(left, right, one, other, block_bytes)


def _word_difference(left: Artifact, right: Artifact, stored: TensorObject, block_bytes: int) -> str | None:
    rows = StoredRows(left, stored, DeviceMesh(), block_bytes)
    for start, stop in rows.ranges():
        expected, found = (side.row_planes(stored.name, start, stop) for side in (left, right))
        if not same_bytes(expected, found):
            return first_difference(expected, found, stored.format, rows.columns, start)
        left.release(stored.name)
        right.release(stored.name)
    return None


def _byte_difference(
    left: Artifact, right: Artifact, one: StoredObject, other: StoredObject, block_bytes: int
) -> str | None:
    if one.nbytes != other.nbytes:
        return f"{other.nbytes} bytes, first has {one.nbytes}"
    expected, found = left.payload(one.name), right.payload(one.name)
    for start in range(0, one.nbytes, block_bytes):
        part = slice(start, start + block_bytes)
        if not np.array_equal(expected[part], found[part]):
            return f"differs from byte {start + int(np.flatnonzero(expected[part] != found[part])[0])}"
    return None
