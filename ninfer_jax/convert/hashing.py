"""SHA-256 of the source files, computed beside a conversion for its report.

Hashing releases the interpreter lock, so it overlaps with the other stages; it reads the files once more.
"""

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path

from ninfer_jax.errors import SourceError
from ninfer_jax.sources import PositionedFile

_READ_BYTES = 1 << 22


class SourceHasher(threading.Thread):
    """Hashes files in the background; `digests` waits for them and `cancel` stops early.

    The files are opened at once, so that one that is replaced or removed later still gets the digest of what was read.

    Args:
        paths: the files.

    Raises:
        SourceError: a file cannot be opened.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(name="hasher", daemon=True)
        self._files: list[PositionedFile] = []
        self._cancelled = threading.Event()
        self._digests: dict[Path, str] = {}
        self._error: SourceError | None = None
        try:
            self._files.extend(map(PositionedFile, paths))
        except SourceError:
            self._close()
            raise

    def run(self) -> None:
        """Hash every file in turn."""
        try:
            for file in self._files:
                digest = hashlib.sha256()
                for start in range(0, file.nbytes, _READ_BYTES):
                    if self._cancelled.is_set():
                        return
                    digest.update(file.read(start, min(_READ_BYTES, file.nbytes - start)).data)
                self._digests[file.path] = digest.hexdigest()
        except SourceError as error:
            self._error = error
        finally:
            self._close()

    def cancel(self) -> None:
        """Stop hashing and wait for the thread."""
        self._cancelled.set()
        self.join()

    def digests(self) -> dict[Path, str]:
        """Wait, then return the digest of every file.

        Raises:
            SourceError: a file could not be read, or was written to.
        """
        self.join()
        if self._error is not None:
            raise self._error
        return dict(self._digests)

    def _close(self) -> None:
        for file in self._files:
            file.close()
