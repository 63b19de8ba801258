"""A failure as one line on standard error and an exit code."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress

import click

from ninfer_jax.cli.text import printable
from ninfer_jax.errors import NinferError

TRACEBACK_VARIABLE = "NINFER_JAX_TRACEBACK"
"""Set in the environment, it lets unexpected errors through with their traceback."""


def print_failure(message: str) -> None:
    """Print an error on one line.

    Args:
        message: what went wrong and what to do.
    """
    with suppress(OSError):  # nobody can be told that standard error fails
        click.echo(f"error: {printable(' '.join(message.split()))}", err=True)


def exit_code_of(step: Callable[[], object]) -> int:
    """Run a step; 0 when it is done, 1 after its error was printed on one line.

    Args:
        step: what to do; usage errors and exits of click pass through.
    """
    try:
        step()
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except BrokenPipeError:
        # The reader of standard output is gone; without this the interpreter complains again while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print_failure("interrupted")
    except Exception as error:
        print_failure(_line(error))
    else:
        return 0
    return 1


def _line(error: Exception) -> str:
    if isinstance(error, NinferError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'system'}: {error.strerror or error}"
    if isinstance(error, MemoryError):
        return "out of memory; give a smaller --memory-budget"
    if TRACEBACK_VARIABLE in os.environ:
        raise error
    return f"unexpected {type(error).__name__}: {error}; set {TRACEBACK_VARIABLE}=1 for the traceback"
