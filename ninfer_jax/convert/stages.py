"""A three-stage pipeline with bounded queues: read, compute, write, each on its own thread.

The caller's thread computes; a reader runs ahead of it and a writer behind it, so that host reads, device work and
writes overlap. Queues are bounded, so memory is. This module leaves out what the stages do.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from typing import Any

_POLL_SECONDS = 0.1
_END = object()


@dataclass
class StageTimes:
    """Busy seconds of each stage; they overlap, so their sum may exceed the wall time.

    Attributes:
        read: seconds in reading and copying source rows.
        compute: seconds in device work, transfers included.
        write: seconds in writing planes and the journal.
        wall: seconds from the first read to the last write.
    """

    read: float = 0.0
    compute: float = 0.0
    write: float = 0.0
    wall: float = 0.0

    def add(self, other: "StageTimes") -> None:
        """Add another process's or another pass's times; the wall time of the slowest stands."""
        self.read += other.read
        self.compute += other.compute
        self.write += other.write
        self.wall = max(self.wall, other.wall)


@dataclass
class Pipeline:
    """Run every item through read, compute and write.

    Attributes:
        read: item to host data; runs on the reader thread.
        launch: item and host data to something pending; starts device work on the calling thread.
        collect: item and what is pending to a result; waits, one item behind `launch`.
        write: item and result to nothing; runs on the writer thread, in order.
        depth: items that may wait between two stages.
    """

    read: Callable[[Any], Any]
    launch: Callable[[Any, Any], Any]
    collect: Callable[[Any, Any], Any]
    write: Callable[[Any, Any], None]
    depth: int = 2
    times: StageTimes = field(default_factory=StageTimes)

    def run(self, items: Iterable[Any]) -> StageTimes:
        """Process all items and return the stage times.

        Raises:
            Exception: the first exception of any stage, after both threads ended.
        """
        state = _State(self.depth)
        reader = threading.Thread(target=self._guard, args=(state, self._read_all, items), name="reader")
        writer = threading.Thread(target=self._guard, args=(state, self._write_all), name="writer")
        begun = time.perf_counter()
        threads = (reader, writer)
        try:
            for thread in threads:
                thread.start()
            self._compute_all(state)
            for thread in threads:
                thread.join()
        except BaseException as error:  # an interrupt may come at any of these lines
            state.fail(error)
            raise
        finally:
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            self.times.wall += time.perf_counter() - begun
        if state.error is not None:
            raise state.error
        return self.times

    def _guard(self, state: "_State", stage: Callable[..., None], *args: Any) -> None:
        try:
            stage(state, *args)
        except BaseException as error:
            state.fail(error)

    def _read_all(self, state: "_State", items: Iterable[Any]) -> None:
        for item in items:
            begun = time.perf_counter()
            data = self.read(item)
            self.times.read += time.perf_counter() - begun
            if not state.put(state.ready, (item, data)):
                return
            del data
        state.put(state.ready, _END)

    def _compute_all(self, state: "_State") -> None:
        pending: tuple[Any, Any] | None = None
        while (entry := state.get(state.ready)) is not _END:
            begun = time.perf_counter()
            launched = (entry[0], self.launch(*entry))
            entry = None
            finished = None if pending is None else (pending[0], self.collect(*pending))
            pending = launched
            self.times.compute += time.perf_counter() - begun
            if finished is not None and not state.put(state.done, finished):
                return
        if pending is not None and not state.stop.is_set():
            begun = time.perf_counter()
            finished = (pending[0], self.collect(*pending))
            self.times.compute += time.perf_counter() - begun
            state.put(state.done, finished)
        state.put(state.done, _END)

    def _write_all(self, state: "_State") -> None:
        while (entry := state.get(state.done)) is not _END:
            begun = time.perf_counter()
            self.write(*entry)
            self.times.write += time.perf_counter() - begun
            del entry


class _State:
    """Queues between the stages, and the first failure of any of them."""

    def __init__(self, depth: int) -> None:
        self.ready: Queue[Any] = Queue(depth)
        self.done: Queue[Any] = Queue(depth)
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._lock = threading.Lock()

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is None:
                self.error = error
        self.stop.set()

    def put(self, queue: "Queue[Any]", entry: Any) -> bool:
        """Put an entry; False once the run has stopped."""
        while not self.stop.is_set():
            try:
                queue.put(entry, timeout=_POLL_SECONDS)
                return True
            except Full:
                continue
        return False

    def get(self, queue: "Queue[Any]") -> Any:
        """Take an entry; the end mark once the run has stopped."""
        while not self.stop.is_set():
            try:
                return queue.get(timeout=_POLL_SECONDS)
            except Empty:
                continue
        return _END
