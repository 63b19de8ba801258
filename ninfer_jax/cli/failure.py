"""A failure as one line on standard error."""

from typing import NoReturn

import click


def print_failure(message: str) -> None:
    """Print an error on one line.

    Args:
        message: what went wrong and what to do.
    """
    click.echo(f"error: {' '.join(message.split())}", err=True)


def fail(ctx: click.Context, message: str) -> NoReturn:
    """Print an error and end the command with exit code 1."""
    print_failure(message)
    ctx.exit(1)
