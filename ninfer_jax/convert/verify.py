"""Verifying an artifact by itself: its structure, then every word of every tensor, and all padding in payloads.

Words that the formats do not allow are counted on the device and then named with their coordinate. Comparing with a
source is in `ninfer_jax.convert.compare`. Specification: tensor-formats §3, §5, §6; storage-layouts (padding);
container.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_jax.codecs import check_words
from ninfer_jax.container import Artifact, open_artifact
from ninfer_jax.convert.blocks import DEFAULT_BLOCK_BYTES
from ninfer_jax.convert.devices import DeviceMesh, Devices
from ninfer_jax.convert.programs import violations_program
from ninfer_jax.convert.progress import Progress, silent
from ninfer_jax.convert.settings import PathLike
from ninfer_jax.convert.stages import Pipeline
from ninfer_jax.convert.stored import StoredRows
from ninfer_jax.convert.tiles import TILE, map_planes, tiles_per_row
from ninfer_jax.errors import InvalidWordsError, VerifyError
from ninfer_jax.formats import GroupedFormat, get_format
from ninfer_jax.layouts import unpack
from ninfer_jax.planes import GroupedPlanes


@dataclass(frozen=True)
class Verified:
    """What was verified.

    Attributes:
        objects: objects in the artifact.
        blocks: row blocks looked at.
        nbytes: payload bytes looked at; source bytes where a source was compared.
        elapsed_seconds: wall time.
    """

    objects: int
    blocks: int
    nbytes: int
    elapsed_seconds: float


@dataclass(frozen=True)
class _Item:
    rows: StoredRows
    start: int
    stop: int


def verify_artifact(
    path: PathLike,
    *,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    devices: Devices | None = None,
    progress: Progress = silent,
) -> Verified:
    """Check the structure of an artifact and the validity of every stored word.

    Args:
        path: the artifact.
        block_bytes: payload bytes looked at together; memory is bounded by a multiple of it.
        devices: devices to use; all local ones where None.
        progress: called after every block.

    Returns:
        What was looked at.

    Raises:
        ArtifactError: the file is not a valid artifact.
        VerifyError: a word is outside its format's language; the message names tensor, rule and coordinate.
    """
    begun = time.perf_counter()
    mesh = DeviceMesh(devices)
    with open_artifact(Path(path)) as artifact:
        check_between_planes(artifact)
        total = sum(stored.nbytes for stored in artifact.tensors.values())
        counts = _Counts(total, progress)
        Pipeline(_read, _launch, _collect, counts.add).run(_items(artifact, mesh, block_bytes))
        return Verified(len(artifact.objects), counts.blocks, total, time.perf_counter() - begun)


def _items(artifact: Artifact, mesh: DeviceMesh, block_bytes: int) -> Iterator[_Item]:
    for stored in artifact.tensors.values():
        rows = StoredRows(artifact, stored, mesh, block_bytes)
        if not rows.direct:  # every direct word is legal
            for start, stop in rows.ranges():
                yield _Item(rows, start, stop)


def _read(item: _Item) -> Any:
    planes = item.rows.planes(item.start, item.stop)
    if isinstance(planes, GroupedPlanes):
        check_padding(planes, item.rows)
    return item.rows.padded(item.start, item.stop)


def _launch(item: _Item, planes: Any) -> Any:
    return violations_program(item.rows.mesh, item.rows.stored.format, item.rows.program_columns)(planes)


def _collect(item: _Item, counts: Any) -> int:
    if any(np.asarray(count).any() for count in counts.values()):
        _raise_invalid(item, {rule: int(np.asarray(count).sum()) for rule, count in counts.items()})
    return item.stop - item.start


def _raise_invalid(item: _Item, counts: dict[str, int]) -> None:
    stored = item.rows.stored
    words = unpack(item.rows.planes(item.start, item.stop), stored.format, item.rows.columns)
    try:
        check_words(words, stored.format, first_row=item.start)
    except InvalidWordsError as error:
        raise VerifyError(f"tensor {stored.name!r}: {error}") from error
    broken = ", ".join(f"{rule} {count}" for rule, count in counts.items() if count)
    raise VerifyError(f"tensor {stored.name!r}: words in the padding of rows from {item.start} break rules: {broken}")


def check_between_planes(artifact: Artifact) -> None:
    """Refuse bytes between the planes of a tensor that are not zero (storage-layouts).

    Raises:
        VerifyError: naming the tensor and the byte of its payload.
    """
    for stored in artifact.tensors.values():
        planes, payload = stored.geometry.planes, artifact.payload(stored.name)
        for one, following in pairwise(planes):
            end = one.offset + one.nbytes
            gap = np.flatnonzero(payload[end : following.offset])
            if gap.size:
                raise VerifyError(
                    f"tensor {stored.name!r}: byte {end + int(gap[0])} of its payload, between {one.name} and "
                    f"{following.name}, must be zero; its writer did not fill the layout as it asks"
                )
        artifact.release(stored.name)


def check_padding(planes: GroupedPlanes, rows: StoredRows) -> None:
    """Refuse padding that is not zero: codes past K, and scales of groups wholly past K.

    Raises:
        VerifyError: naming the tensor.
    """
    used = rows.columns % TILE
    if not used:
        return
    spec = get_format(rows.stored.format)
    if not isinstance(spec, GroupedFormat):
        return
    tiles = tiles_per_row(rows.columns)
    last = map_planes(planes, lambda plane: plane[:, -(plane.shape[1] // tiles) :])
    words = unpack(last, spec, TILE)
    if np.asarray(words.codes)[:, used:].any() or last.scales[:, spec.groups(used) :].any():  # type: ignore[union-attr]
        raise VerifyError(
            f"tensor {rows.stored.name!r}: columns past {rows.columns} must hold zero codes and zero scales; "
            "its writer did not pad rows as the layout asks"
        )


class _Counts:
    """Counts blocks and bytes and tells the progress."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.blocks = 0
        self._done = 0
        self._total = total
        self._progress = progress

    def add(self, item: _Item, rows: int) -> None:
        self.blocks += 1
        self._done += rows * item.rows.stored.nbytes // item.rows.rows
        self._progress(self._done, self._total, item.rows.stored.name)
