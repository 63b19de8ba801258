"""`ninfer-jax support`: which implementation multiplies which format, and why another cannot.

Prints what `ninfer_jax.ops.support_table` answers for the devices that jax sees here.
"""

import dataclasses
import json

import click

from ninfer_jax.cli.tables import print_table


@click.command("support", short_help="Print which implementation multiplies what, and where.")
@click.option(
    "--gpu", metavar="NAME", help="For a GPU that need not be here: h100, h200, b200, a100, rtx4090, rtx5090."
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def support_command(gpu: str | None, as_json: bool) -> None:
    """Print the support matrix of matmul: format, rows of x, device, implementation, and how or why not."""
    # Not at the top: the other commands do not need the ops, and importing them takes a second.
    from ninfer_jax.ops import support_table

    rows = [dataclasses.asdict(row) for row in support_table(gpu)]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    headers = ("format", "rows of x", "device", "implementation", "runs", "how, or why not")
    cells = [[*list(row.values())[:4], "yes" if row["supported"] else "no", row["detail"]] for row in rows]
    print_table("matmul of packed weights", headers, cells)
