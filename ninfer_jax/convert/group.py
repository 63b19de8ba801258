"""The processes that convert together: who this one is, barriers, and noticing that another one stopped.

`Group` is one process alone. Several processes of `jax.distributed` on a shared file system are in
`ninfer_jax.convert.distributed`.
"""

from collections.abc import Callable
from pathlib import Path


class Group:
    """One process, alone.

    Attributes:
        index: index of this process.
        count: number of processes.
    """

    index: int = 0
    count: int = 1

    def barrier(self, name: str) -> None:
        """Wait until every process is here."""

    def watch(self, partial: Path, touch: Callable[[], None]) -> None:
        """Begin to show that this process is alive and to watch the others' journals beside `partial`."""

    def check(self) -> None:
        """Raise ConversionError where another process stopped."""

    def wait_for_all(self) -> None:
        """In process 0: wait until every process has finished its blocks."""

    def wait_for_publication(self) -> None:
        """In the other processes: wait until process 0 has published."""

    def close(self) -> None:
        """Stop watching."""
