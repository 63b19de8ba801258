"""Taking up an interrupted conversion: what its journals say is finished, checked against plan, sources and bytes.

A resumed run refuses another recipe or changed sources, and reads back the last blocks of every journal, because those
are the ones that a failing machine may have lost. This module leaves out writing (`ninfer_jax.convert.workspace`).
"""

import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ninfer_jax.container import ArtifactPlan, TensorObject
from ninfer_jax.convert.blocks import Block
from ninfer_jax.convert.journal import BlockRecord, Fingerprint, JournalContents, find_journals, read_journal
from ninfer_jax.errors import ConversionError

CHECKED_BLOCKS = 8
"""Blocks at the end of every journal that are read back and compared."""


def partial_path(destination: Path) -> Path:
    """Where the unfinished artifact lies: beside the destination, so that it can be renamed in one step."""
    return destination.with_name(f"{destination.name}.partial")


def bytes_crc(parts: Iterable[Any]) -> int:
    """CRC-32 of byte buffers, one after another."""
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


def restore(partial: Path, plan: ArtifactPlan, expected: Fingerprint) -> list[BlockRecord]:
    """Finished blocks of an interrupted conversion.

    Args:
        partial: the unfinished artifact.
        plan: the plan of this run.
        expected: the fingerprint of this run.

    Returns:
        Records of blocks whose bytes are in the file, without duplicates.

    Raises:
        ConversionError: nothing to resume, or the recipe or a source file changed.
    """
    journals = find_journals(partial) if partial.parent.is_dir() else ()
    if not journals or not partial.exists():
        raise ConversionError(f"there is no interrupted conversion at {partial.name}; run without --resume")
    records: dict[tuple[int, int, int], BlockRecord] = {}
    for path in journals:
        contents = read_journal(path)
        _check_fingerprint(contents, expected)
        kept = _without_damage(partial, plan, contents.records)
        records.update({(record.position, record.start, record.stop): record for record in kept})
    return list(records.values())


def _check_fingerprint(contents: JournalContents, expected: Fingerprint) -> None:
    found = contents.fingerprint
    if found == expected:
        return
    changed = [
        what
        for what, old, new in (
            ("the recipe", found.recipe, expected.recipe),
            ("a source file (name, size, time of change or contents)", found.sources, expected.sources),
            ("the plan of the artifact", found.plan, expected.plan),
        )
        if old != new
    ]
    raise ConversionError(
        f"cannot resume: {' and '.join(changed)} changed since the conversion began; "
        "restore it, or start again with --force"
    )


def _without_damage(partial: Path, plan: ArtifactPlan, records: Sequence[BlockRecord]) -> list[BlockRecord]:
    """Drop those of the last records whose bytes in the file are not those that were written."""
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        last = [record for record in records[-CHECKED_BLOCKS:] if stored_crc(descriptor, plan, record) == record.crc]
    finally:
        os.close(descriptor)
    return [*records[:-CHECKED_BLOCKS], *last]


def stored_crc(descriptor: int, plan: ArtifactPlan, record: BlockRecord) -> int:
    """CRC-32 of the bytes of a block as they are in the partial file."""
    stored = plan.objects[record.position]
    if isinstance(stored, TensorObject):
        spans = [(span.offset, span.nbytes) for span in stored.geometry.row_spans(record.start, record.stop)]
    else:
        spans = [(record.start, record.stop - record.start)]
    base = plan.payload_offset + stored.offset
    return bytes_crc(os.pread(descriptor, nbytes, base + offset) for offset, nbytes in spans)


def unfinished(blocks: Iterable[Block], records: Iterable[BlockRecord]) -> list[Block]:
    """Blocks that no finished range covers; ranges may come from a run with another block size."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for record in records:
        ranges.setdefault(record.position, []).append((record.start, record.stop))
    merged = {position: _merge(parts) for position, parts in ranges.items()}
    return [
        block
        for block in blocks
        if not any(start <= block.start and block.stop <= stop for start, stop in merged.get(block.position, ()))
    ]


def _merge(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(parts):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged
