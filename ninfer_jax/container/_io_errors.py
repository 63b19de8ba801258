"""Operating system errors of the writer as one clear `ConversionError` each."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ninfer_jax.errors import ConversionError

_ADVICE = {
    errno.ENOSPC: "the disk is full; free space or choose another destination",
    errno.EDQUOT: "the disk quota is used up; free space or choose another destination",
    errno.EFBIG: "the file would exceed the largest size allowed here (file system or process limit)",
    errno.EROFS: "the file system is read-only; choose another destination",
    errno.EACCES: "permission denied; choose a destination you may write to",
    errno.EPERM: "permission denied; choose a destination you may write to",
    errno.ENOENT: "the file or its folder is gone",
}


@contextmanager
def writing(path: Path, action: str, outcome: str = "nothing was published") -> Iterator[None]:
    """Turn an OSError of the block into a ConversionError that says what failed, why and what to do.

    Args:
        path: the file being written.
        action: what was attempted, to follow "cannot", such as "reserve 4096 bytes for".
        outcome: where that leaves the user.
    """
    try:
        yield
    except OSError as error:
        reason = _ADVICE.get(error.errno or 0, error.strerror or str(error))
        if error.errno == errno.ENOSPC:
            reason += f" ({free_nbytes(path.parent)} bytes free)"
        raise ConversionError(f"cannot {action} {path}: {reason}; {outcome}") from error


def free_nbytes(folder: Path) -> int:
    """Bytes that a file in `folder` may still take, as the file system reports them."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
