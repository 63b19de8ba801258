"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ninfer_jax.cli.sizes import ByteSize
from ninfer_jax.convert import DEFAULT_BLOCK_BYTES
from ninfer_jax.recipes import BUILTIN_RECIPES, Recipe, load_recipe
from ninfer_jax.sources import DIALECTS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class _File(click.Path):
    """A path; an empty one, as of a shell variable that is not set, would mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("the name of a file or a folder is empty", param, ctx)
        return super().convert(value, param, ctx)


FILE = _File(path_type=Path, readable=False)  # what cannot be read is no wrong usage: commands say so

_RECIPE_HELP = f"Built-in recipe or TOML file. Built in: {', '.join(BUILTIN_RECIPES)}."

set_option = click.option(
    "--set", "recipe_options", metavar="NAME=VALUE", multiple=True, help="Value of a recipe's option; repeatable."
)
dialect_option = click.option(
    "--dialect", type=click.Choice(sorted(DIALECTS)), help="Dialect of a quantized checkpoint; found out by default."
)
block_option = click.option(
    "--block-size",
    type=ByteSize(),
    help=f"Source bytes handled together; memory grows with it. Default {DEFAULT_BLOCK_BYTES >> 20}MiB.",
)
budget_option = click.option(
    "--memory-budget", type=ByteSize(), help="Resident memory to stay within, such as 2GiB; chooses the block size."
)
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
force_option = click.option("--force", is_flag=True, help="Replace existing files.")


def recipe_option(*, required: bool) -> Decorator:
    """`--recipe NAME|FILE`."""
    return click.option("--recipe", "recipe_name", metavar="RECIPE", required=required, help=_RECIPE_HELP)


def chosen_recipe(name: str, options: tuple[str, ...]) -> Recipe:
    """Load the recipe that the options name.

    Args:
        name: built-in name or file.
        options: `NAME=VALUE` texts.
    """
    values = {}
    for text in options:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise click.UsageError(f"--set {text!r}: write NAME=VALUE")
        values[key] = value
    return load_recipe(name, values)
