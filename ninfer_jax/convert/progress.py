"""How a long run tells its user how far it is; what is drawn is the caller's matter."""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called from a worker thread after every block: source bytes finished, source bytes in all, name of the object."""


def silent(done: int, total: int, name: str) -> None:
    """Tell nothing."""
