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
from ninfer_jax.cli.failure import exit_code_of, print_failure
from ninfer_jax.cli.generate import from_gguf_command, generate_command
from ninfer_jax.cli.inspect import inspect_command
from ninfer_jax.cli.report import report_command
from ninfer_jax.cli.signals import ending_in_order
from ninfer_jax.cli.support import support_command
from ninfer_jax.cli.verify import verify_command


class Commands(click.Group):
    """A group whose commands never print a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the group; a closed stream swallows its output, and help that cannot be printed is one line too."""
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # closed by the shell, as in `command >&-`
                setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
        try:
            with ending_in_order():
                return super().main(*args, **kwargs)
        except OSError as error:
            print_failure(f"{error.filename or 'system'}: {error.strerror or error}")
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> None:
        """Run a command; errors become one line on standard error and exit code 1."""
        code = exit_code_of(lambda: super(Commands, self).invoke(ctx))
        if code:
            ctx.exit(code)


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
