"""SHA-256 of the source files, computed beside a conversion for its report.

Hashing releases the interpreter lock, so it overlaps with the other stages; it reads the files once more.
"""

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path

_READ_BYTES = 1 << 22


class SourceHasher(threading.Thread):
    """Hashes files in the background; `digests` waits for them and `cancel` stops early.

    Args:
        paths: the files.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(name="hasher", daemon=True)
        self._paths = tuple(paths)
        self._cancelled = threading.Event()
        self._digests: dict[Path, str] = {}
        self._error: OSError | None = None

    def run(self) -> None:
        """Hash every file in turn."""
        try:
            for path in self._paths:
                digest = hashlib.sha256()
                with open(path, "rb") as file:
                    while (chunk := file.read(_READ_BYTES)) and not self._cancelled.is_set():
                        digest.update(chunk)
                self._digests[path] = digest.hexdigest()
        except OSError as error:
            self._error = error

    def cancel(self) -> None:
        """Stop hashing and wait for the thread."""
        self._cancelled.set()
        self.join()

    def digests(self) -> dict[Path, str]:
        """Wait, then return the digest of every file.

        Raises:
            OSError: a file could not be read.
        """
        self.join()
        if self._error is not None:
            raise self._error
        return dict(self._digests)
