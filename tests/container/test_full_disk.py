"""A full, limited or read-only disk: one clear error, nothing at the destination, nothing left behind.

The disks are real: a small tmpfs where the tests may mount one, a process file size limit everywhere.
"""

import errno
import os
import resource
import subprocess

import pytest

from ninfer_jax.container import ArtifactWriter, ResourceEntry, open_artifact, plan_artifact
from ninfer_jax.errors import ConversionError

MIB = 1 << 20
LARGE = plan_artifact(("m", "w"), [ResourceEntry("r", 2 * MIB)])
SMALL = plan_artifact(("m", "w"), [ResourceEntry("r", MIB // 2)])


@pytest.fixture
def disk(tmp_path):
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a small file system is not allowed here: {error}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=60)


@pytest.fixture
def no_fallocate(monkeypatch):
    """A file system that cannot reserve space, such as NFS before version 4.2."""

    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)


def test_a_full_disk_shows_before_anything_is_written(disk):
    with pytest.raises(ConversionError, match=r"cannot reserve \d+ bytes .* disk is full.*nothing was published"):
        ArtifactWriter(disk / "out.ninfer", LARGE)
    assert list(disk.iterdir()) == []
    with ArtifactWriter(disk / "out.ninfer", SMALL) as writer:
        writer.write("r", 0, bytes(MIB // 2))
        open_artifact(writer.publish()).close()


def test_a_full_disk_shows_without_reserving(disk, no_fallocate):
    with pytest.raises(ConversionError, match="disk is full"):
        ArtifactWriter(disk / "out.ninfer", LARGE)
    assert list(disk.iterdir()) == []


def test_a_disk_that_fills_up_while_writing(disk, no_fallocate):
    with ArtifactWriter(disk / "out.ninfer", SMALL) as writer:
        writer.write("r", 0, bytes(MIB // 4))
        fill(disk)
        with pytest.raises(ConversionError, match=r"cannot write \d+ bytes .* disk is full"):
            writer.write("r", MIB // 4, bytes(MIB // 4))
    assert [path.name for path in disk.iterdir()] == ["other"]


def test_a_resumable_run_continues_after_the_disk_was_full(disk, no_fallocate):
    out, partial, payload = disk / "out.ninfer", disk / "work.partial", os.urandom(MIB // 2)
    with ArtifactWriter.create(out, SMALL, partial=partial) as writer:
        writer.write("r", 0, payload[: MIB // 4])
        fill(disk)
        with pytest.raises(ConversionError, match="disk is full"):
            writer.write("r", MIB // 4, payload[MIB // 4 :])
    assert not out.exists()
    (disk / "other").unlink()
    with ArtifactWriter.resume(out, SMALL, partial=partial) as writer:
        writer.mark_written("r", 0, MIB // 4)
        writer.write("r", MIB // 4, payload[MIB // 4 :])
        writer.publish()
    assert open_artifact(out).payload("r").tobytes() == payload


def fill(disk):
    (disk / "other").write_bytes(bytes(MIB - MIB // 4 - 8192))


def test_a_read_only_disk(disk):
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=60)
    with pytest.raises(ConversionError, match="read-only"):
        ArtifactWriter(disk / "out.ninfer", SMALL)


@pytest.mark.parametrize("reserve", [True, False])
def test_a_file_size_limit(reserve, tmp_path, request):
    if not reserve:
        request.getfixturevalue("no_fallocate")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        with pytest.raises(ConversionError, match="largest size allowed"):
            ArtifactWriter(tmp_path / "out.ninfer", LARGE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
