"""The command group: which commands there are, and how errors become one line and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage. What a command does is in its own module.
"""

import os
import sys
from typing import Any

import click

from ninfer_jax.cli.convert import convert_command
from ninfer_jax.cli.demo import demo_command
from ninfer_jax.cli.diff import diff_command
from ninfer_jax.cli.export import export_command
from ninfer_jax.cli.failure import fail, print_failure
from ninfer_jax.cli.generate import from_gguf_command, generate_command
from ninfer_jax.cli.inspect import inspect_command
from ninfer_jax.cli.report import report_command
from ninfer_jax.cli.support import support_command
from ninfer_jax.cli.verify import verify_command
from ninfer_jax.errors import NinferError

TRACEBACK_VARIABLE = "NINFER_JAX_TRACEBACK"
"""Set in the environment, it lets unexpected errors through with their traceback."""


class Commands(click.Group):
    """A group whose commands never print a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the group; a closed stream swallows its output, and help that cannot be printed is one line too."""
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # closed by the shell, as in `command >&-`
                setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            print_failure(f"{error.filename or 'system'}: {error.strerror or error}")
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; errors become one line on standard error and exit code 1."""
        try:
            return super().invoke(ctx)
        except NinferError as error:
            fail(ctx, str(error))
        except KeyboardInterrupt:
            fail(ctx, "interrupted")
        except BrokenPipeError:
            # The reader of standard output is gone; without this the interpreter complains again while it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)
        except OSError as error:
            fail(ctx, f"{error.filename or 'system'}: {error.strerror or error}")
        except MemoryError:
            fail(ctx, "out of memory; give a smaller --memory-budget")
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if TRACEBACK_VARIABLE in os.environ:
                raise
            fail(ctx, f"unexpected {type(error).__name__}: {error}; set {TRACEBACK_VARIABLE}=1 for the traceback")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="ninfer-jax", prog_name="ninfer-jax")
def main() -> None:
    """Convert checkpoints to .ninfer artifacts, inspect, verify and export them."""


for _command in (
    convert_command,
    inspect_command,
    verify_command,
    export_command,
    diff_command,
    report_command,
    support_command,
    demo_command,
    from_gguf_command,
    generate_command,
):
    main.add_command(_command)
