"""Several processes of `jax.distributed` on a shared file system that write one artifact together.

They assemble through JAX's barriers; after that their journals beside the partial file tell everything. Every process
touches its own about twice a second and writes there when it has finished its blocks, or why it stops. Process 0
publishes once all have finished; where one stops or dies, the others stop within seconds with a clear error instead of
waiting in a collective. This module leaves out who owns which block (`ninfer_jax.convert.blocks`).
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import jax
from jax.experimental import multihost_utils

from ninfer_jax.convert.group import Group
from ninfer_jax.convert.journal import JournalContents, journal_path, read_journal
from ninfer_jax.errors import ConversionError

_BEAT_SECONDS = 0.5


def join(coordinator: str, index: int, count: int, *, peer_timeout: float) -> None:
    """Join a group of processes before any other use of JAX.

    Args:
        coordinator: `host:port` of process 0.
        index: index of this process.
        count: number of processes.
        peer_timeout: seconds without a sign of life after which a process counts as dead.

    Raises:
        ConversionError: the others cannot be reached.
    """
    # The runtime ends all processes, with a stack trace, when one misses heartbeats; the journals must show it first.
    heartbeat = max(100, round(3 * peer_timeout))
    try:
        jax.distributed.initialize(
            coordinator,
            count,
            index,
            initialization_timeout=120,
            heartbeat_timeout_seconds=heartbeat,
            shutdown_timeout_seconds=60,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConversionError(f"process {index} of {count} cannot join at {coordinator}: {reason}") from error


def abandon() -> NoReturn:
    """End this process at once with exit code 1: leaving in order would wait for a process that is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def leave() -> None:
    """Leave the group of `jax.distributed`: from here on a process that dies cannot end this one."""
    jax.distributed.shutdown()


def current_group(peer_timeout: float, assembled: Callable[[], None]) -> Group:
    """The group of this process: alone, or all processes of `jax.distributed`.

    Args:
        peer_timeout: seconds without a sign of life after which a process counts as dead.
        assembled: called once every process has begun.
    """
    return DistributedGroup(peer_timeout, assembled) if jax.process_count() > 1 else Group()


class DistributedGroup(Group):
    """The processes of `jax.distributed`.

    Args:
        timeout: seconds without a sign of life after which a process counts as dead.
        assembled: called once every process has begun; no barrier of JAX follows.
    """

    def __init__(self, timeout: float, assembled: Callable[[], None]) -> None:
        self.index = jax.process_index()
        self.count = jax.process_count()
        self._timeout = timeout
        self._assembled = assembled
        self._partial: Path | None = None
        self._peers: list[_Peer] = []
        self._closed = threading.Event()
        self._beat: threading.Thread | None = None
        self._checked = 0.0

    def barrier(self, name: str) -> None:
        """Wait until every process is here.

        Raises:
            ConversionError: a process is gone.
        """
        try:
            multihost_utils.sync_global_devices(name)
        except (RuntimeError, ValueError) as error:
            raise ConversionError(f"process {self.index}: another process stopped before {name!r}") from error

    def watch(self, partial: Path, touch: Callable[[], None]) -> None:
        """Begin to show that this process is alive and to watch the others' journals."""
        self.barrier("journals open")  # until then a peer's journal may still tell of an earlier run
        self._assembled()
        now = time.monotonic()
        self._partial = partial
        self._peers = [_Peer(i, journal_path(partial, i), now) for i in range(self.count) if i != self.index]
        self._beat = threading.Thread(target=self._touch_until_closed, args=(touch,), name="heartbeat", daemon=True)
        self._beat.start()

    def check(self) -> None:
        """Raise ConversionError where another process stopped or gives no sign of life."""
        now = time.monotonic()
        if now - self._checked < _BEAT_SECONDS:
            return
        self._checked = now
        for peer in self._peers:
            contents = peer.look(now)
            if contents is not None and contents.failed is not None:
                raise ConversionError(f"process {peer.index} stopped: {contents.failed}")
            # Whoever has finished may leave, but process 0 is needed until it has published.
            needed = peer.index == 0 or not peer.ended
            if needed and now - peer.seen > self._timeout and not self._published():
                raise ConversionError(
                    f"process {peer.index} has given no sign of life for {self._timeout:g} seconds; it probably died"
                )

    def wait_for_all(self) -> None:
        """In process 0: wait until every process has finished its blocks.

        Raises:
            ConversionError: one of them stopped instead.
        """
        while not all(peer.ended for peer in self._peers):
            time.sleep(_BEAT_SECONDS / 2)
            self.check()

    def wait_for_publication(self) -> None:
        """In the other processes: wait until process 0 has published.

        Raises:
            ConversionError: a process stopped instead.
        """
        while not self._published():
            time.sleep(_BEAT_SECONDS / 2)
            self.check()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self._beat is not None:
            self._beat.join()

    def _published(self) -> bool:
        """True once the partial file has been renamed; no process of a group removes it."""
        return self._partial is not None and not self._partial.exists()

    def _touch_until_closed(self, touch: Callable[[], None]) -> None:
        while not self._closed.wait(_BEAT_SECONDS):
            with suppress(OSError):  # the journal is gone once process 0 has published
                touch()


class _Peer:
    """What is known of another process from its journal."""

    def __init__(self, index: int, path: Path, now: float) -> None:
        self.index = index
        self.path = path
        self.seen = now
        self.contents: JournalContents | None = None
        self._mark: tuple[int, int] | None = None
        self._size = -1

    @property
    def ended(self) -> bool:
        """True where it has finished its blocks."""
        return self.contents is not None and self.contents.ended is not None

    def look(self, now: float) -> JournalContents | None:
        """Look at the journal; its contents where they changed."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        mark = (status.st_mtime_ns, status.st_size)
        if mark != self._mark:
            self._mark, self.seen = mark, now
        if status.st_size == self._size:
            return self.contents
        self._size = status.st_size
        with suppress(ConversionError):
            self.contents = read_journal(self.path)
        return self.contents
