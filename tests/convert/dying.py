"""Groups of two processes of which one dies: `python -m tests.convert.dying FOLDER SCENARIO...`.

A program of its own, so that it can fork every process of a group before JAX starts in any. FOLDER holds `checkpoint`
and `recipe.toml`. One line of JSON is printed for each scenario: exit codes (negative for a signal) and output.
"""

import json
import multiprocessing
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
from jax.experimental import multihost_utils

from ninfer_jax.cli import main
from ninfer_jax.convert import distributed, engine
from ninfer_jax.convert.group import Group

BLOCK = "64KiB"
PEER_TIMEOUT = 5
"""Long enough that a process that lives on a busy machine is never taken for dead."""
SHORT_ASSEMBLY, ASSEMBLY = 4, 60
"""Seconds to wait for a process that never comes, and for one that does."""
AT_ONCE = 3
DEADLINE = 90
"""Seconds after which a scenario has hung."""

Die = Callable[[], None]


other_is_there = Path()
"""Appears when the process that is to live has joined; each process sets where."""


class Scenario(NamedTuple):
    """Who dies, when and how.

    Attributes:
        victim: index of the process.
        arm: prepares the process to call its argument at some moment.
        die: what happens then.
    """

    victim: int
    arm: Callable[[Die], None]
    die: Die


def before_assembly(die: Die) -> None:
    """Before it has joined the others."""
    jax.distributed.initialize = lambda *_, **__: die()


def at_assembly(die: Die) -> None:
    """As soon as both have joined: one alone would only find that it cannot join."""
    initialize = jax.distributed.initialize

    def then_die(*arguments, **options) -> None:
        initialize(*arguments, **options)
        while not other_is_there.exists():
            time.sleep(0.02)
        die()

    jax.distributed.initialize = then_die


def be_there() -> None:
    """Let the victim know when this process has joined too, and has told its command."""
    current_group = engine.current_group

    def tell() -> Group:
        other_is_there.touch()
        return current_group()

    engine.current_group = tell


def at_work(die: Die) -> None:
    """After some writes."""
    write, count = os.pwrite, 0

    def pwrite(*arguments) -> int:
        nonlocal count
        count += 1
        if count == 20:
            die()
        return write(*arguments)

    os.pwrite = pwrite


def at_barrier(name: str) -> Callable[[Die], None]:
    """Before it enters a barrier."""

    def arm(die: Die) -> None:
        wait = multihost_utils.sync_global_devices

        def die_or_wait(text: str) -> None:
            if text.startswith(name):
                die()
            wait(text)

        multihost_utils.sync_global_devices = die_or_wait

    return arm


def be_killed() -> None:
    """The process that converts is killed; its command lives."""
    os.kill(os.getpid(), signal.SIGKILL)


def be_killed_with_command() -> None:
    """The command is killed; its child must follow."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(DEADLINE)


def hang() -> None:
    """The process that converts stops; it goes on once the others have ended."""
    os.kill(os.getpid(), signal.SIGSTOP)


def be_sent(number: signal.Signals) -> Die:
    """The command gets a signal that asks it to end."""

    def die() -> None:
        os.kill(os.getppid(), number)
        write = os.pwrite

        def pwrite(*arguments) -> int:
            time.sleep(0.1)  # the conversion must not end before the command has passed the signal on
            return write(*arguments)

        os.pwrite = pwrite

    return die


FINISHED, PUBLISHED = at_barrier("all blocks are written"), at_barrier("the artifact is published")
SCENARIOS = {
    "0 before assembly": Scenario(0, before_assembly, be_killed),
    "1 before assembly": Scenario(1, before_assembly, be_killed),
    "0 at assembly": Scenario(0, at_assembly, be_killed),
    "1 at assembly": Scenario(1, at_assembly, be_killed_with_command),
    "0 at work": Scenario(0, at_work, be_killed),
    "1 at work": Scenario(1, at_work, be_killed_with_command),
    "0 hangs": Scenario(0, at_work, hang),
    "1 hangs": Scenario(1, at_work, hang),
    "1 interrupted": Scenario(1, at_work, be_sent(signal.SIGINT)),
    "1 terminated": Scenario(1, at_work, be_sent(signal.SIGTERM)),
    "0 finished": Scenario(0, FINISHED, be_killed_with_command),
    "1 finished": Scenario(1, FINISHED, be_killed),
    "0 published": Scenario(0, PUBLISHED, be_killed),
    "1 published": Scenario(1, PUBLISHED, be_killed),
}


def command(folder: Path, out: Path, index: int, scenario: Scenario) -> None:
    """Be one process of the group."""
    global other_is_there
    other_is_there = out.with_suffix(".there")
    distributed.ASSEMBLY_SECONDS = SHORT_ASSEMBLY if scenario.arm is before_assembly else ASSEMBLY
    if index == scenario.victim:
        scenario.arm(scenario.die)
    elif scenario.arm is at_assembly:
        be_there()
    elif scenario.arm is at_work:
        at_work(lambda: time.sleep(2 * PEER_TIMEOUT))  # it must not finish before it misses the other
    port = out.with_suffix(".port").read_text()
    main(
        [
            *("convert", str(folder / "checkpoint"), str(out), "--recipe", str(folder / "recipe.toml")),
            *("--block-size", BLOCK, "--quiet", "--coordinator", f"localhost:{port}", "--processes", "2"),
            *("--process-id", str(index), "--peer-timeout", str(PEER_TIMEOUT)),
        ]
    )


def start(folder: Path, out: Path, index: int, scenario: Scenario) -> int:
    """Fork one process of the group; its id."""
    pid = os.fork()
    if pid:
        return pid
    printed = os.open(out.with_suffix(f".{index}"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    code = 1
    with suppress(SystemExit):
        try:
            command(folder, out, index, scenario)
        except SystemExit as end:
            code = int(end.code or 0)
    sys.stderr.flush()
    os._exit(code)


def wait(pids: Iterable[int], seconds: float) -> dict[int, int]:
    """Exit codes of those processes that end in time."""
    codes: dict[int, int] = {}
    end = time.monotonic() + seconds
    left = set(pids)
    while left and time.monotonic() < end:
        for pid in tuple(left):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                codes[pid] = os.waitstatus_to_exitcode(status)
                left.discard(pid)
        time.sleep(0.02)
    return codes


def go_on(command: int) -> None:
    """Continue the stopped child of a command."""
    for child in Path(f"/proc/{command}/task/{command}/children").read_text().split():
        os.kill(int(child), signal.SIGCONT)


def play(folder: Path, name: str) -> dict[str, object]:
    """Play one scenario; what is to be printed of it."""
    scenario, out = SCENARIOS[name], folder / f"{name.replace(' ', '-')}.ninfer"
    with socket.create_server(("", 0)) as probe:
        out.with_suffix(".port").write_text(str(probe.getsockname()[1]))
    pids = [start(folder, out, index, scenario) for index in range(2)]
    survivor = pids[1 - scenario.victim]
    codes = wait([survivor], DEADLINE)
    if scenario.die is hang:
        go_on(pids[scenario.victim])
    codes |= wait([pid for pid in pids if pid not in codes], DEADLINE if survivor in codes else 0)
    for pid in pids:
        if pid not in codes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return {
        "name": name,
        "codes": [codes.get(pid) for pid in pids],
        "printed": [out.with_suffix(f".{index}").read_text() for index in range(2)],
    }


def play_all(folder: Path, names: Sequence[str]) -> None:
    """Play scenarios side by side: they mostly wait."""
    with multiprocessing.get_context("fork").Pool(AT_ONCE) as pool:
        for result in pool.imap(partial(play, folder), names, chunksize=1):
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # JAX warns of forks; nothing of it runs here yet
    play_all(Path(sys.argv[1]), sys.argv[2:])
