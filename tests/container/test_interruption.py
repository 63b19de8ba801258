"""Kills, exceptions, resuming and several processes: the destination is a complete artifact or it is absent."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ninfer_jax.container import ArtifactWriter, ResourceEntry, open_artifact, plan_artifact
from ninfer_jax.container.framing import PARTIAL_MAGIC
from ninfer_jax.errors import ArtifactError, ConversionError
from tests.container.killed_runs import PIECE, PIECES, STAGES, piece, plan

ROOT = Path(__file__).parents[2]
PAYLOAD = b"".join(map(piece, range(PIECES)))
OTHER_PLAN = plan_artifact(("m", "x"), [ResourceEntry("r", PIECE * PIECES)])


def run_module(name: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "ignore", "-m", f"tests.container.{name}", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    status = json.loads(run_module("killed_runs", str(folder)).splitlines()[-1])
    return folder, status


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.ninfer"


@pytest.fixture
def partial(tmp_path):
    return tmp_path / "work.partial"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_run_leaves_nothing_at_the_destination(stage, killed):
    folder, status = killed
    out = folder / stage / "out.ninfer"
    left = out.with_name(".out.ninfer.partial")
    assert os.WTERMSIG(status[stage]) == signal.SIGKILL
    assert names(out.parent) == [left.name]
    if stage == "before the rename":
        assert left.read_bytes().startswith(b"NINFER\0\2")
    else:
        with pytest.raises(ArtifactError, match="unfinished conversion"):
            open_artifact(left)
    # The next run to the same destination writes that file anew: nothing of the killed run shows through.
    with ArtifactWriter(out, plan()) as writer:
        assert left.read_bytes()[4096:] == bytes(PIECE * PIECES)
        writer.write("r", 0, PAYLOAD)
        writer.publish()
    assert names(out.parent) == [out.name]
    with open_artifact(out) as artifact:
        assert artifact.payload("r").tobytes() == PAYLOAD


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_an_exception_leaves_nothing(error, out):
    with pytest.raises(error):
        write_and_raise(out, error)
    assert names(out.parent) == []


def write_and_raise(out, error):
    with ArtifactWriter(out, plan()) as writer:
        writer.write("r", 0, PAYLOAD)
        raise error


def test_leaving_without_publishing_leaves_nothing(out):
    with ArtifactWriter(out, plan()) as writer:
        writer.write("r", 0, PAYLOAD)
    assert names(out.parent) == []


def test_an_existing_destination_is_kept_until_publishing(out):
    out.write_bytes(b"old")
    with pytest.raises(ArtifactError, match="exists"):
        ArtifactWriter(out, plan())
    assert names(out.parent) == [out.name]
    with ArtifactWriter(out, plan(), overwrite=True) as writer:
        writer.write("r", 0, PAYLOAD)
    assert out.read_bytes() == b"old"
    with ArtifactWriter(out, plan(), overwrite=True) as writer:
        writer.write("r", 0, PAYLOAD)
        writer.publish()
        assert writer.published
        with pytest.raises(ArtifactError, match="published"):
            writer.abort()
    assert open_artifact(out).payload("r").tobytes() == PAYLOAD


def test_a_destination_that_comes_to_exist_is_kept(out):
    with ArtifactWriter(out, plan()) as writer:
        writer.write("r", 0, PAYLOAD)
        out.write_bytes(b"new")
        with pytest.raises(ArtifactError, match="exists"):
            writer.publish()
    assert out.read_bytes() == b"new"
    assert names(out.parent) == [out.name]


def test_destinations_that_cannot_be(tmp_path):
    with pytest.raises(ArtifactError, match="is a folder"):
        ArtifactWriter(tmp_path, plan())
    with pytest.raises(ArtifactError, match="does not exist"):
        ArtifactWriter(tmp_path / "no" / "out.ninfer", plan())
    (tmp_path / ".out.ninfer.partial").symlink_to(tmp_path / "precious")
    with pytest.raises(ConversionError, match="cannot create"):
        ArtifactWriter(tmp_path / "out.ninfer", plan())
    assert names(tmp_path) == [".out.ninfer.partial"]


def test_one_writer_at_a_time(out):
    with ArtifactWriter(out, plan()) as first:
        with pytest.raises(ArtifactError, match="another process is writing"):
            ArtifactWriter(out, plan())
        first.write("r", 0, PAYLOAD)
        first.publish()
    assert open_artifact(out).payload("r").tobytes() == PAYLOAD


def test_another_runs_file_is_never_published(out, partial):
    with ArtifactWriter.create(out, plan(), partial=partial) as first:
        first.write("r", 0, PAYLOAD)
        partial.unlink()
        with ArtifactWriter.create(out, plan(), partial=partial), pytest.raises(ConversionError, match="gone"):
            first.publish()
    assert names(out.parent) == [partial.name]


def test_resuming(out, partial):
    with ArtifactWriter.create(out, plan(), partial=partial) as writer:
        writer.write("r", 0, PAYLOAD[:PIECE])
    assert names(out.parent) == [partial.name]
    with pytest.raises(ArtifactError, match="resume that conversion"):
        ArtifactWriter.create(out, plan(), partial=partial)
    with pytest.raises(ArtifactError, match="another plan"):
        ArtifactWriter.resume(out, OTHER_PLAN, partial=partial)
    with ArtifactWriter.resume(out, plan(), partial=partial) as writer:
        with pytest.raises(ArtifactError, match="another process is writing"):
            ArtifactWriter.resume(out, plan(), partial=partial)
        assert writer.missing()[0].nbytes == PIECE * PIECES
        writer.mark_written("r", 0, PIECE)
        writer.write("r", PIECE, PAYLOAD[PIECE:])
        writer.publish()
    assert open_artifact(out).payload("r").tobytes() == PAYLOAD
    assert names(out.parent) == [out.name]


def test_resuming_a_run_killed_before_the_rename(out, partial):
    with ArtifactWriter.create(out, plan(), partial=partial) as writer:
        writer.write("r", 0, PAYLOAD)
        writer._file.finish(plan().header)
    with ArtifactWriter.resume(out, plan(), partial=partial) as writer:
        assert partial.read_bytes().startswith(PARTIAL_MAGIC)
        writer.mark_written("r", 0, PIECE * PIECES)
        writer.publish()
    assert open_artifact(out).payload("r").tobytes() == PAYLOAD


def test_starting_again(out, partial):
    with ArtifactWriter.create(out, plan(), partial=partial) as writer:
        writer.write("r", 0, PAYLOAD)
        with pytest.raises(ArtifactError, match="another process is writing"):
            ArtifactWriter.create(out, plan(), partial=partial, replace_partial=True)
    with ArtifactWriter.create(out, OTHER_PLAN, partial=partial, replace_partial=True, keep_partial=False):
        assert partial.read_bytes()[4096:] == bytes(PIECE * PIECES)
    assert names(out.parent) == []
    with pytest.raises(ArtifactError, match="no partial file"):
        ArtifactWriter.resume(out, plan(), partial=partial)


def test_aborting_removes_a_kept_file(out, partial):
    with ArtifactWriter.create(out, plan(), partial=partial) as writer:
        writer.abort()
    assert names(out.parent) == []


def test_two_processes_write_one_file(out, partial):
    with ArtifactWriter.create(out, plan(), partial=partial) as writer:
        run_module("contribute", str(partial), "1")
        assert names(out.parent) == [partial.name]
        for index in range(0, PIECES, 2):
            writer.write("r", index * PIECE, piece(index))
        assert [part.offset // PIECE for part in writer.missing()] == list(range(1, PIECES, 2))
        for part in writer.missing():
            writer.mark_written("r", part.offset, part.offset + part.nbytes)
        writer.publish()
    with ArtifactWriter(out.with_name("one.ninfer"), plan()) as writer:
        writer.write("r", 0, PAYLOAD)
        assert writer.publish().read_bytes() == out.read_bytes()


def test_an_attached_handle_neither_publishes_nor_removes(out, partial):
    with ArtifactWriter.create(out, plan(), partial=partial) as writer:
        with ArtifactWriter.attach(partial, plan()) as part:
            assert not hasattr(part, "publish")
            assert not hasattr(part, "abort")
        with pytest.raises(ArtifactError, match="another plan"):
            ArtifactWriter.attach(partial, OTHER_PLAN)
        assert partial.exists()
        writer.abort()
    with pytest.raises(ArtifactError, match="no partial file"):
        ArtifactWriter.attach(partial, plan())


def test_publishing_flushes_before_and_after_the_rename(out, monkeypatch):
    calls = []
    real_fsync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(os.readlink(f"/proc/self/fd/{fd}")), real_fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("rename"), real_replace(*paths)))
    with ArtifactWriter(out, plan()) as writer:
        writer.write("r", 0, PAYLOAD)
        writer.publish()
    assert calls == [str(out.with_name(".out.ninfer.partial")), "rename", str(out.parent)]


@pytest.mark.parametrize(("code", "message"), [(errno.ENOLCK, None), (errno.EIO, "cannot lock")])
def test_file_systems_without_locks(code, message, out, monkeypatch):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    if message:
        with pytest.raises(ConversionError, match=message):
            ArtifactWriter(out, plan())
        return
    with ArtifactWriter(out, plan()) as writer:
        writer.write("r", 0, PAYLOAD)
        writer.publish()
    assert open_artifact(out).payload("r").tobytes() == PAYLOAD


@pytest.mark.parametrize(("code", "message"), [(errno.EINVAL, None), (errno.EIO, "the file is published")])
def test_a_folder_that_cannot_be_flushed(code, message, out, monkeypatch):
    def refuse(fd):
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with ArtifactWriter(out, plan()) as writer:
        writer.write("r", 0, PAYLOAD)
        if message:
            with pytest.raises(ConversionError, match=message):
                writer.publish()
        else:
            writer.publish()
        assert writer.published
    assert open_artifact(out).payload("r").tobytes() == PAYLOAD
