"""SIGTERM and SIGHUP as interruptions, so that a batch system's kill or a lost terminal ends a command in order.

Ctrl-C is Python's own already. A signal that the caller ignores, as under `nohup`, or handles itself stays so.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end."""


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Raise KeyboardInterrupt for `ENDING`, in the main thread and where they would end the process at once."""
    changed = []
    if threading.current_thread() is threading.main_thread():
        changed = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in changed:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)
