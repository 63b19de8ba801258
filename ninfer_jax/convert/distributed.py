"""Several processes of `jax.distributed` on a shared file system that write one artifact together.

They stay in `jax.distributed` from the beginning to the end, and meet in JAX's barriers only: before files are opened,
when all blocks are finished, and when process 0 has published. JAX's runtime watches over them, with a heartbeat for
the whole time and connections in a barrier. A process that dies in a barrier is an error here; at any other time the
runtime ends the others itself, which `ninfer_jax.cli.child` turns into a line and an exit code. This module leaves out
who owns which block (`ninfer_jax.convert.blocks`).
"""

import socket
import threading
from collections.abc import Callable

import jax
from jax.experimental import multihost_utils

from ninfer_jax.convert.group import Group
from ninfer_jax.errors import ConversionError, LostProcessError

ASSEMBLY_SECONDS = 120
"""Processes that are started by hand on several hosts meet within this time."""


def join(coordinator: str, index: int, count: int, *, peer_timeout: int) -> None:
    """Join a group of processes before any other use of JAX.

    JAX's runtime ends this process, with a stack trace, where the others do not come within `ASSEMBLY_SECONDS`, or one
    of them dies later; `ninfer-jax convert` runs in a child process for that reason.

    Args:
        coordinator: `host:port` of process 0, with a number for the port.
        index: index of this process.
        count: number of processes.
        peer_timeout: seconds without a heartbeat after which a process counts as dead.

    Raises:
        ConversionError: process 0 cannot listen on its port, or the others cannot be reached.
    """
    if index == 0:
        _check_port(int(coordinator.rpartition(":")[2]))

    def initialize() -> None:
        jax.distributed.initialize(
            coordinator,
            count,
            index,
            initialization_timeout=ASSEMBLY_SECONDS,
            heartbeat_timeout_seconds=peer_timeout,
            shutdown_timeout_seconds=peer_timeout,
        )

    try:
        _interruptible(initialize)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConversionError(f"process {index} of {count} cannot join at {coordinator}: {reason}") from error


def leave() -> None:
    """Leave the group once all others do, so that nobody misses process 0 before its own end."""
    jax.distributed.shutdown()


def current_group() -> Group:
    """The group of this process: alone, or all processes of `jax.distributed`."""
    return DistributedGroup() if jax.process_count() > 1 else Group()


class DistributedGroup(Group):
    """The processes of `jax.distributed`."""

    def __init__(self) -> None:
        self.index = jax.process_index()
        self.count = jax.process_count()

    def barrier(self, name: str, same: str = "") -> None:
        """Wait until every process is here; see `Group.barrier`."""
        try:
            _interruptible(lambda: multihost_utils.sync_global_devices(f"{name} {same}"))
        except AssertionError as error:  # JAX compares what the processes wait for
            raise ConversionError(
                "the processes have different sources, recipes or options; start the same command on every host"
            ) from error
        except (RuntimeError, ValueError) as error:
            raise LostProcessError(f"process {self.index}: another process stopped before {name}") from error


def _interruptible(step: Callable[[], None]) -> None:
    """Run a step that waits inside the runtime, so that Ctrl-C ends the wait."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            step()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="waits for other processes", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _check_port(port: int) -> None:
    """Open the port and close it again: JAX's runtime crashes where it cannot."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise ConversionError(
            f"process 0 cannot listen on port {port}: {error.strerror}; choose another port for --coordinator"
        ) from error
