"""A step in a child process, so that a runtime that ends the process does not end the command.

JAX's runtime ends a process with a stack trace when another one of its group dies. Here that happens to a child: what
it prints below Python is kept aside, its own messages and results go where the command's go, and the command learns how
the child ended. The child ends when the command does. This module leaves out what is done in the child.
"""

import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, TextIO

from ninfer_jax.cli.failure import exit_code_of
from ninfer_jax.cli.signals import ENDING

_READY = b"r"


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes:
        code: the exit code that it chose; None where something ended it before it could.
        ready: whether it had called `ready`.
        signal: the signal that ended it, or 0.
        output: what was printed below Python.
    """

    code: int | None
    ready: bool
    signal: int
    output: str


def run_in_child(
    step: Callable[[Callable[[], None]], object], after: Callable[[], None], silent: type[Exception]
) -> Ended:
    """Run a step in a child process; nothing of JAX may run before.

    Args:
        step: what to do in the child; it may call its argument, `ready`, once.
        after: called in the child once its success cannot be lost any more.
        silent: an error of the step that the child leaves to the command to explain.

    Returns:
        How the child ended.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as output, ours:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forking beside threads: no thread of JAX has been started yet
            pid = os.fork()
        if pid == 0:
            ours.close()
            _run(step, after, silent, theirs, output.fileno())
        theirs.close()
        told, status = _watch(pid, ours)
        output.seek(0)
        text = output.read().decode(errors="replace")
    code = told.removeprefix(_READY)
    return Ended(
        code[0] if code else None,
        told.startswith(_READY),
        os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        text,
    )


def _watch(pid: int, child: socket.socket) -> tuple[bytes, int]:
    """Wait for the end of the child; what it told, and its wait status. What asks to end is passed on to it."""

    def interrupt(*_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)

    heeded = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, *heeded)}
    try:
        told = b""
        while part := child.recv(16):
            told += part
        return told, os.waitpid(pid, 0)[1]
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _run(
    step: Callable[[Callable[[], None]], object],
    after: Callable[[], None],
    silent: type[Exception],
    command: socket.socket,
    output: int,
) -> NoReturn:
    """Be the child."""
    os.setpgid(0, 0)  # Ctrl-C reaches the command alone, which passes it on, once
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits an ignored one
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    sys.stdout, sys.stderr = (_moved(stream, output) for stream in (sys.stdout, sys.stderr))
    threading.Thread(target=_end_with, args=(command,), name="ends with the command", daemon=True).start()

    def finish() -> None:
        try:
            step(lambda: command.sendall(_READY))
        except silent:
            os._exit(1)
        sys.stdout.flush()

    code = 1
    try:
        code = exit_code_of(finish)
        command.sendall(bytes((code,)))
        if code == 0:
            after()
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)  # leaving in order would wait for processes that may be gone


def _moved(stream: TextIO, output: int) -> TextIO:
    """The stream on a descriptor of its own; what is not Python's goes to `output` instead."""
    own = os.dup(stream.fileno())
    os.dup2(output, stream.fileno())
    return open(own, "w", buffering=1, encoding=stream.encoding, errors=stream.errors)


def _end_with(command: socket.socket) -> NoReturn:
    """Wait for the end of the command, which closes its socket, however it ends."""
    while command.recv(1):
        pass
    os._exit(1)
