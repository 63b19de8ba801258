"""The file that becomes an artifact: preallocated, written at positions by many threads, renamed when complete.

Between creation and `finish` its first eight bytes are `NINFPART`, not the artifact's magic, so an unfinished file is
never taken for an artifact. The owner holds an advisory lock: a file whose lock is free was left by a killed run and is
written anew. Which bytes are still missing is not known here (see `ninfer_jax.container.part_writer`). POSIX only.
"""

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ninfer_jax.container._io_errors import free_nbytes, writing
from ninfer_jax.container.framing import PARTIAL_MAGIC
from ninfer_jax.errors import ArtifactError, ConversionError

_CHUNK_NBYTES = 64 << 20  # one call never blocks for long, and stays below the 2 GiB limit of pwrite
_NO_FALLOCATE = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP}
_NO_LOCKS = {errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL}
_OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class PartialFile:
    """An open partial file; every method may be called from any thread.

    Attributes:
        path: where it is until it is published or removed.
        nbytes: its final size.
    """

    def __init__(self, path: Path, fd: int, nbytes: int):
        self.path = path
        self.nbytes = nbytes
        self._fd = fd
        self._users = 0
        self._closing = False
        self._idle = threading.Condition()

    @classmethod
    def create(cls, path: Path, header: bytes, nbytes: int, *, replace: bool) -> "PartialFile":
        """Create and lock the file, reserve all its bytes, and write the header without its magic.

        Args:
            path: the partial file.
            header: prefix and directory.
            nbytes: final size; reserved on disk at once where the file system can, so that a full disk shows now.
            replace: whether a file left by an interrupted run is written anew.

        Raises:
            ArtifactError: another process is writing it, or it exists and may not be replaced.
            ConversionError: it cannot be created or the disk is too full; nothing is left behind.
        """
        fd = _open_locked(path, os.O_CREAT, replace=replace)
        file = cls(path, fd, nbytes)
        try:
            with writing(path, f"reserve {nbytes} bytes for"):
                os.ftruncate(fd, 0)
                _reserve(fd, path.parent, nbytes)
            file.write(0, np.frombuffer(PARTIAL_MAGIC + header[len(PARTIAL_MAGIC) :], np.uint8))
        except BaseException:
            file.remove()
            raise
        return file

    @classmethod
    def open(cls, path: Path, header: bytes, nbytes: int, *, own: bool) -> "PartialFile":
        """Open an existing partial file without changing its payloads.

        Args:
            path: the partial file.
            header: prefix and directory that it must hold.
            nbytes: size that it must have.
            own: take the owner's lock.

        Raises:
            ArtifactError: there is none, it belongs to another plan, or (own) another process is writing it.
        """
        if not path.exists():
            raise ArtifactError(f"there is no partial file {path}; start the conversion without resuming")
        if own:
            fd = _open_locked(path, 0, replace=True)
        else:
            with writing(path, "open"):
                fd = os.open(path, _OPEN_FLAGS)
        file = cls(path, fd, nbytes)
        try:
            file._check_identity(header)
            if own:
                file.write(0, np.frombuffer(PARTIAL_MAGIC, np.uint8))
        except BaseException:
            file.close()
            raise
        return file

    def write(self, offset: int, data: np.ndarray) -> None:
        """Write flat uint8 `data` at a byte offset of the file, all of it."""
        with self._in_use() as fd, writing(self.path, f"write {data.nbytes} bytes to"):
            view = data.data
            done = 0
            while done < len(view):
                done += os.pwrite(fd, view[done : done + _CHUNK_NBYTES], offset + done)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read bytes back; shorter only at the end of the file."""
        with self._in_use() as fd, writing(self.path, "read back"):
            return os.pread(fd, nbytes, offset)

    def sync(self) -> None:
        """Wait until everything written through this handle is on the disk."""
        with self._in_use() as fd, writing(self.path, "flush"):
            os.fsync(fd)

    def finish(self, header: bytes) -> None:
        """Put the artifact's magic in place, after which the file is an artifact, and flush it."""
        self.write(0, np.frombuffer(header, np.uint8, len(PARTIAL_MAGIC)))
        self.sync()

    def rename(self, destination: Path) -> None:
        """Give the file its final name in one step; `flush_folder` makes that last."""
        with self._in_use() as fd, writing(destination, "publish"):
            if not _is_still(self.path, fd):  # renaming by path would publish what another run has put there
                raise FileNotFoundError(errno.ENOENT, "the partial file was removed or replaced")
            os.replace(self.path, destination)

    def remove(self) -> None:
        """Delete the file and close it."""
        try:
            with writing(self.path, "remove"):
                self.path.unlink(missing_ok=True)
        finally:
            self.close()

    def close(self) -> None:
        """Close the handle once no thread uses it; closing twice is fine."""
        with self._idle:
            self._closing = True
            self._idle.wait_for(lambda: self._users == 0)
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    @contextmanager
    def _in_use(self) -> Iterator[int]:
        # A number closed under a thread that still writes could by then name another file.
        with self._idle:
            if self._closing:
                raise ArtifactError(f"the writer of {self.path} is closed; nothing more can be written through it")
            self._users += 1
        try:
            yield self._fd
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()

    def _check_identity(self, header: bytes) -> None:
        size = os.fstat(self._fd).st_size
        skip = len(PARTIAL_MAGIC)
        held = self.read(0, len(header))
        # Both magics: a run may have been killed between finishing the file and renaming it.
        if size != self.nbytes or held[:skip] not in (PARTIAL_MAGIC, header[:skip]) or held[skip:] != header[skip:]:
            raise ArtifactError(
                f"the partial file {self.path} belongs to another plan ({size} bytes, this plan needs {self.nbytes}); "
                "resume with the source and recipe it was started with, or delete it"
            )


def _open_locked(path: Path, create: int, *, replace: bool) -> int:
    """Open the file and take its lock; loops where another process renames or removes it in between."""
    while True:
        with writing(path, "create" if create else "open"):
            flags = _OPEN_FLAGS | create | (0 if replace else os.O_EXCL)
            try:
                fd = os.open(path, flags, 0o666)
            except FileExistsError:
                raise ArtifactError(
                    f"the partial file {path} exists; resume that conversion, or replace the file to start again"
                ) from None
        try:
            _lock(fd, path)
            if _is_still(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _lock(fd: int, path: Path) -> None:
    try:
        with writing(path, "lock"):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ConversionError as error:
        reason = error.__cause__
        if isinstance(reason, BlockingIOError):
            message = f"another process is writing {path}; wait for it, or choose another destination"
            raise ArtifactError(message) from None
        # Some network file systems have no locks; the file is then used without one.
        if not isinstance(reason, OSError) or reason.errno not in _NO_LOCKS:
            raise


def _is_still(path: Path, fd: int) -> bool:
    held = os.fstat(fd)
    if not stat.S_ISREG(held.st_mode):
        raise ArtifactError(f"{path} is not a regular file; remove it or choose another destination")
    try:
        return os.path.samestat(held, os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _reserve(fd: int, folder: Path, nbytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, nbytes)
            return
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                raise
    if free_nbytes(folder) < nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(fd, nbytes)


def flush_folder(path: Path) -> None:
    """Wait until the name of a file that was just renamed is on the disk.

    Raises:
        ConversionError: the disk reports an error.
    """
    with writing(path, "flush the folder of", "the file is published, but may not survive a power failure"):
        fd = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:  # some network file systems cannot flush a folder
                raise
        finally:
            os.close(fd)
