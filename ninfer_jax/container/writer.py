"""Writing an artifact of revision 2: everything planned, written in any order, published in one step when complete.

Until `publish` renames the file, nothing exists at the destination: not after an exception, a full disk, Ctrl-C or a
kill. What a killed run leaves is its partial file, which the next run to the same destination writes anew, or which a
resumable run continues. Which rows an earlier run had finished is for a journal to say (`mark_written`); it is
kept elsewhere.
"""

import contextlib
import os
from pathlib import Path

from ninfer_jax.container.part_writer import PartWriter
from ninfer_jax.container.partial_file import PartialFile, flush_folder
from ninfer_jax.container.plan import ArtifactPlan
from ninfer_jax.errors import ArtifactError, ConversionError

_PathLike = str | os.PathLike[str]


class ArtifactWriter(PartWriter):
    """The owner of a partial file: writes it like any `PartWriter` and publishes it, or removes it.

    ```python
    plan = plan_artifact(("demo-model", "groupwise-int"), [TensorEntry("w", (4, 128), "Q4G64_F16S")])
    with ArtifactWriter("demo.ninfer", plan) as writer:
        writer.write_rows("w", 0, planes)
        writer.publish()
    ```

    Leaving the context without `publish` removes the partial file, or keeps it where the writer was made resumable.

    Attributes:
        destination: where the artifact appears.
        published: whether it has.
    """

    def __init__(self, destination: _PathLike, plan: ArtifactPlan, *, overwrite: bool = False):
        """Check the destination, create the partial file `.NAME.partial` beside it and reserve its whole size.

        Args:
            destination: path of the artifact.
            plan: what will be stored.
            overwrite: whether a file at the destination may be replaced, when and only when publishing.

        Raises:
            ArtifactError: the destination exists, or another process is writing to it. Nothing has been written.
            ConversionError: the file cannot be created or the disk is too full. Nothing is left behind.
        """
        target = _check_destination(destination, overwrite)
        partial = target.with_name(f".{target.name}.partial")
        self._start(target, plan, _create(partial, plan, replace=True), overwrite=overwrite, keep_partial=False)

    @classmethod
    def create(
        cls,
        destination: _PathLike,
        plan: ArtifactPlan,
        *,
        partial: _PathLike,
        keep_partial: bool = True,
        replace_partial: bool = False,
        overwrite: bool = False,
    ) -> "ArtifactWriter":
        """Begin with a named partial file, which by default outlives an interruption.

        Args:
            destination: path of the artifact.
            plan: what will be stored.
            partial: the partial file, on the file system of the destination.
            keep_partial: leave it where it is when the context ends without `publish`.
            replace_partial: write anew what an interrupted run has left there, unless a process is still writing it;
                otherwise a file there is an error, because it can be resumed.
            overwrite: as for the constructor.

        Raises:
            ArtifactError: also where the partial file exists or lies on another file system.
            ConversionError: as for the constructor.
        """
        target, path = _check_destination(destination, overwrite), Path(partial)
        _check_same_device(target, path)
        file = _create(path, plan, replace=replace_partial)
        return cls._own(target, plan, file, overwrite=overwrite, keep_partial=keep_partial)

    @classmethod
    def resume(
        cls, destination: _PathLike, plan: ArtifactPlan, *, partial: _PathLike, overwrite: bool = False
    ) -> "ArtifactWriter":
        """Take over the partial file of an interrupted run; nothing counts as written until `mark_written` says so.

        Raises:
            ArtifactError: no such file, a file of another plan, or another process is writing it.
        """
        target, path = _check_destination(destination, overwrite), Path(partial)
        _check_same_device(target, path)
        file = PartialFile.open(path, plan.header, plan.file_size, own=True)
        return cls._own(target, plan, file, overwrite=overwrite, keep_partial=True)

    @staticmethod
    def attach(partial: _PathLike, plan: ArtifactPlan) -> PartWriter:
        """Join a partial file that another process owns; the handle writes rows and can neither publish nor remove.

        Raises:
            ArtifactError: no such file, or a file of another plan.
        """
        return PartWriter(plan, PartialFile.open(Path(partial), plan.header, plan.file_size, own=False))

    @classmethod
    def _own(
        cls, destination: Path, plan: ArtifactPlan, file: PartialFile, *, overwrite: bool, keep_partial: bool
    ) -> "ArtifactWriter":
        writer = cls.__new__(cls)
        writer._start(destination, plan, file, overwrite=overwrite, keep_partial=keep_partial)
        return writer

    def _start(
        self, destination: Path, plan: ArtifactPlan, file: PartialFile, *, overwrite: bool, keep_partial: bool
    ) -> None:
        super().__init__(plan, file)
        self.destination = destination
        self.published = False
        self._overwrite = overwrite
        self._keep_partial = keep_partial

    def __enter__(self) -> "ArtifactWriter":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        if self.published or self._keep_partial:
            self.close()
            return
        # The error that ended the block is the one to report, not that of tidying up behind it.
        with contextlib.suppress(ConversionError) if exc_type else contextlib.nullcontext():
            self.abort()

    def publish(self) -> Path:
        """Flush the file and rename it to the destination in one step.

        Returns:
            The destination, where a complete artifact now is, also after a power failure.

        Raises:
            ArtifactError: bytes are missing (the message names the first), or the destination has come to exist.
            ConversionError: the operating system refuses.
        """
        missing = self.missing()
        if missing:
            first = missing[0]
            raise ArtifactError(
                f"{self.destination} is not complete: {sum(part.nbytes for part in missing)} payload bytes of "
                f"{len({part.name for part in missing})} objects are missing, first [{first.offset}, "
                f"{first.offset + first.nbytes}) of {first.name!r}; write them before publishing"
            )
        self._file.finish(self.plan.header)
        _check_destination(self.destination, self._overwrite)
        self._file.rename(self.destination)
        self.published = True
        self.close()
        flush_folder(self.destination)
        return self.destination

    def abort(self) -> None:
        """Remove the partial file, also a resumable one; nothing appears at the destination.

        Raises:
            ArtifactError: the artifact is published already.
            ConversionError: the file cannot be removed.
        """
        if self.published:
            raise ArtifactError(f"{self.destination} is published; delete it yourself if it is not wanted")
        self._file.remove()


def _create(path: Path, plan: ArtifactPlan, *, replace: bool) -> PartialFile:
    return PartialFile.create(path, plan.header, plan.file_size, replace=replace)


def _check_destination(destination: _PathLike, overwrite: bool) -> Path:
    path = Path(destination)
    if path.is_dir():
        raise ArtifactError(f"the destination {path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ArtifactError(f"the folder {path.parent} of the destination does not exist; create it first")
    if not overwrite and os.path.lexists(path):
        raise ArtifactError(f"the destination {path} exists; remove it, or allow it to be overwritten")
    if path.exists() and not path.is_file():
        raise ArtifactError(f"the destination {path} is a device or a pipe, which cannot be replaced; name a file")
    return path


def _check_same_device(destination: Path, partial: Path) -> None:
    if not partial.parent.is_dir():
        raise ArtifactError(f"the folder {partial.parent} of the partial file does not exist; create it first")
    if partial.parent.stat().st_dev != destination.parent.stat().st_dev:
        raise ArtifactError(
            f"the partial file {partial} and the destination {destination} are on different file systems; "
            "put the partial file beside the destination, so that it can be renamed in one step"
        )
