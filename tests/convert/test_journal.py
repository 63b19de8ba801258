"""The journal: what it keeps, what a kill may do to it, what it refuses."""

from pathlib import Path

import pytest

from ninfer_jax.convert.blocks import Block
from ninfer_jax.convert.journal import (
    BlockRecord,
    Fingerprint,
    JournalWriter,
    find_journals,
    journal_path,
    read_journal,
)
from ninfer_jax.convert.resume import unfinished
from ninfer_jax.convert.totals import ErrorTotals
from ninfer_jax.errors import ConversionError

MINE = Fingerprint("p", "r", "s")
RECORDS = [BlockRecord(0, 0, 5, 123, ErrorTotals(1.0, 2.0, 0.5)), BlockRecord(1, 0, 7, 2**32 - 1)]


def write(path: Path, fingerprint: Fingerprint = MINE, records: list[BlockRecord] = RECORDS) -> JournalWriter:
    journal = JournalWriter(path, fingerprint, sync=lambda: None, flush_seconds=0.0)
    for record in records:
        journal.add(record)
    return journal


def test_records_come_back_with_their_errors(tmp_path: Path):
    journal = write(tmp_path / "j")
    journal.end({"read": 1.5})
    journal.close()
    contents = read_journal(tmp_path / "j")
    assert contents.fingerprint == MINE
    assert contents.records == RECORDS
    assert contents.ended == {"read": 1.5}
    assert contents.failed is None


def test_a_record_is_written_only_after_a_flush_of_the_data(tmp_path: Path):
    log: list[int] = []
    journal = JournalWriter(tmp_path / "j", MINE, sync=lambda: log.append(len(read_journal(tmp_path / "j").records)))
    journal.add(RECORDS[0])
    assert read_journal(tmp_path / "j").records == []
    journal.flush()
    journal.close()
    assert log == [0]
    assert read_journal(tmp_path / "j").records == RECORDS[:1]


def test_a_failing_flush_keeps_the_record_out(tmp_path: Path):
    def sync() -> None:
        raise OSError(28, "No space left on device")

    journal = JournalWriter(tmp_path / "j", MINE, sync, flush_seconds=0.0)
    with pytest.raises(OSError, match="No space"):
        journal.add(RECORDS[0])
    journal.fail("full")
    journal.close()
    contents = read_journal(tmp_path / "j")
    assert contents.records == []
    assert contents.failed == "full"


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_line_cut_short_by_a_kill_is_ignored_and_cut_off(tmp_path: Path, cut: int):
    path = tmp_path / "j"
    write(path).close()
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_journal(path).records == RECORDS[:1]
    write(path, records=RECORDS[1:]).close()
    assert read_journal(path).records == RECORDS


def test_a_new_run_clears_how_the_last_one_ended(tmp_path: Path):
    first = write(tmp_path / "j")
    first.fail("stopped")
    first.close()
    assert read_journal(tmp_path / "j").failed == "stopped"
    write(tmp_path / "j", records=[]).close()
    contents = read_journal(tmp_path / "j")
    assert contents.failed is None
    assert contents.records == RECORDS


def test_another_fingerprint_begins_anew(tmp_path: Path):
    write(tmp_path / "j").close()
    write(tmp_path / "j", Fingerprint("p", "other", "s"), records=[]).close()
    assert read_journal(tmp_path / "j").records == []


@pytest.mark.parametrize("data", [b"", b"{", b"[]\n", b'{"crc":1}\n', b'{"journal":99}\n', b'{"journal":1}\n'])
def test_what_is_no_journal_is_refused(tmp_path: Path, data: bytes):
    (tmp_path / "j").write_bytes(data)
    with pytest.raises(ConversionError, match="--force"):
        read_journal(tmp_path / "j")


def test_journals_are_found_by_process(tmp_path: Path):
    partial = tmp_path / "o.partial"
    for process in (10, 2, 0):
        journal_path(partial, process).touch()
    (tmp_path / "o.partial.journal-x").touch()
    assert [path.name[-2:] for path in find_journals(partial)] == ["-0", "-2", "10"]


def test_blocks_inside_finished_ranges_are_finished():
    records = [BlockRecord(0, 0, 10, 0), BlockRecord(0, 10, 30, 0), BlockRecord(2, 5, 9, 0)]
    blocks = [Block(0, 5, 25, 1), Block(0, 25, 35, 1), Block(1, 0, 5, 1), Block(2, 4, 9, 1), Block(2, 5, 9, 1)]
    assert unfinished(blocks, records) == [blocks[1], blocks[2], blocks[3]]
