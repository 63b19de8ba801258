"""What a file about to be written may replace: a regular file, when asked; never a folder, a device or its own input.

Leaves out free disk and what earlier runs left (`ninfer_jax.convert.preflight`). Specification: container, conversion
report.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from ninfer_jax.errors import ConversionError


def check_output(target: Path, what: str, *, overwrite: bool, inputs: Iterable[Path] = ()) -> None:
    """Check that a file may be written, before the work that fills it.

    Args:
        target: the file.
        what: how to call it in an error, such as `destination`.
        overwrite: a regular file there may be replaced.
        inputs: files that are read to make it, or written beside it.

    Raises:
        ConversionError: it is a folder, a device or an input, its folder is missing or read-only, or it exists.
    """
    if target.is_dir():
        raise ConversionError(f"the {what} {target} is a folder; name a file in it")
    check_folder(target, what)
    for path in inputs:
        if same_file(target, path):
            raise ConversionError(f"the {what} {target.name} is a file that this command reads or writes; name another")
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise ConversionError(f"the {what} {target.name} exists; remove it, or replace it with --force")
    if target.exists() and not target.is_file():
        raise ConversionError(f"the {what} {target} is a device or a pipe, which cannot be replaced; name a file")


def check_folder(target: Path, what: str) -> None:
    """Check the folder of a file to be written.

    Raises:
        ConversionError: it does not exist or cannot be written.
    """
    folder = target.parent
    if not folder.is_dir():
        raise ConversionError(f"the folder {folder} of the {what} does not exist; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConversionError(f"the folder {folder} of the {what} cannot be written: permission denied")


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths are one file, by name, link or hard link; neither needs to exist."""
    try:
        return one.samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def write_text(target: Path, text: str, what: str) -> None:
    """Write a text file that appears complete or not at all; a link, a device or a pipe is written through.

    Args:
        target: the file; one that exists is replaced.
        text: its content, stored as UTF-8.
        what: how to call it in an error.

    Raises:
        ConversionError: it cannot be written.
    """
    special = target.is_symlink() or (target.exists() and not target.is_file())
    temporary = target if special else target.with_name(f".{target.name}.partial")
    try:
        try:
            temporary.write_text(text, encoding="utf-8")
            if not special:
                os.replace(temporary, target)
        except BaseException:
            if not special:
                temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConversionError(f"the {what} {target} cannot be written: {error.strerror}") from error
