"""How a long run tells its user how far it is; what is drawn is the caller's matter."""

from typing import Protocol


class Progress(Protocol):
    """Called from a worker thread after every block."""

    def __call__(self, done: int, total: int, name: str) -> None:
        """Tell that `done` of `total` source bytes are finished, the last of them in object `name`."""
        ...


def silent(done: int, total: int, name: str) -> None:
    """Tell nothing."""
