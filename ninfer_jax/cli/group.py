"""One process of a group that converts together, kept in a child: what to say when it or another one dies.

Within `--peer-timeout` seconds of a death JAX's runtime ends every other process of the group, in any of several ways.
Here all of them become one line that says which process stopped and why, as far as that is known, and what to do.
"""

import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from ninfer_jax.cli.child import Ended, run_in_child
from ninfer_jax.cli.failure import TRACEBACK_VARIABLE, print_failure
from ninfer_jax.convert import ASSEMBLY_SECONDS, Remains, join, leave
from ninfer_jax.errors import LostProcessError

_UNHEALTHY = re.compile(r"stopped sending heartbeats\):\s*\n?([\d,\s]+)\n")


@dataclass(frozen=True)
class Place:
    """Where a process stands in its group.

    Attributes:
        coordinator: `host:port` of process 0.
        index: index of this process.
        count: number of processes.
        peer_timeout: seconds without a heartbeat after which a process counts as dead.
    """

    coordinator: str
    index: int
    count: int
    peer_timeout: int


def convert_in_group(place: Place, destination: Path, convert: Callable[[], None]) -> int:
    """Convert as one process of a group; the exit code.

    Args:
        place: this process.
        destination: where the artifact is to appear.
        convert: the conversion.
    """
    remains = Remains(destination)

    def step(ready: Callable[[], None]) -> None:
        join(place.coordinator, place.index, place.count, peer_timeout=place.peer_timeout)
        ready()
        convert()

    ended = run_in_child(step, leave, LostProcessError)
    if TRACEBACK_VARIABLE in os.environ:
        click.echo(ended.output, err=True, nl=False)
    if ended.code is not None:
        return ended.code
    Console(stderr=True).show_cursor()  # the progress bar had no chance to
    print_failure(_explain(place, ended, remains))
    return 1


def _explain(place: Place, ended: Ended, remains: Remains) -> str:
    """What happened to a child that could not say so itself, and what to do."""
    if ended.signal not in (0, signal.SIGABRT):
        name = signal.Signals(ended.signal).name
        memory = "; there may have been too little memory" if ended.signal == signal.SIGKILL else ""
        what = f"process {place.index} was ended by {name}{memory}"
    elif not ended.ready:
        return (
            f"process {place.index} of {place.count} cannot join at {place.coordinator}: a process did not come within "
            f"{ASSEMBLY_SECONDS} seconds, or died; start the same command on every host, each with its --process-id"
        )
    else:
        told = remains.reason(place.index)
        if told is not None:
            return told
        what = f"{_lost(place, ended.output)} died, or gave no sign of life for {place.peer_timeout} seconds"
    advice = remains.advice()
    return what if advice is None else f"{what}; {advice}"


def _lost(place: Place, output: str) -> str:
    """The processes that JAX's runtime misses, as far as it names them."""
    found = _UNHEALTHY.search(output)
    indices = re.findall(r"\d+", found.group(1)) if found else []
    if place.count == 2:
        indices = [str(1 - place.index)]
    if not indices:
        return "another process"
    return f"process{'es' if len(indices) > 1 else ''} {', '.join(indices)}"
