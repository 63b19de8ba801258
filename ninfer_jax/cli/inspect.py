"""`ninfer-jax inspect`: what an artifact holds, from its directory alone."""

import json
from pathlib import Path
from typing import Any

import click

from ninfer_jax.cli.options import FILE
from ninfer_jax.cli.plan import print_totals
from ninfer_jax.cli.sizes import human
from ninfer_jax.cli.tables import print_table
from ninfer_jax.cli.text import printable
from ninfer_jax.container import Artifact, TensorObject, open_artifact
from ninfer_jax.convert import totals_by_format


@click.command("inspect", short_help="Show identity, totals and objects of the artifact FILE.")
@click.argument("file", type=FILE)
@click.option("--objects", is_flag=True, help="List every object.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect_command(file: Path, objects: bool, as_json: bool) -> None:
    """Show the identity, totals and objects of the artifact FILE; no payload is read."""
    with open_artifact(file) as artifact:
        if as_json:
            click.echo(json.dumps(_as_json(artifact, objects), indent=1, ensure_ascii=False))
            return
        click.echo(printable(f"{file.name}: {'/'.join(part for part in artifact.identity if part)}"))
        click.echo(
            f"revision {artifact.revision}, {len(artifact.tensors)} tensors, {len(artifact.resources)} resources, "
            f"{human(artifact.file_size)}, payload offset {artifact.payload_offset}"
        )
        print_totals(_totals(artifact))
        if objects:
            _print_objects(artifact)


def _totals(artifact: Artifact) -> dict[str, Any]:
    return totals_by_format((stored.format, stored.shape, stored.nbytes) for stored in artifact.tensors.values())


def _print_objects(artifact: Artifact) -> None:
    rows = []
    for position, stored in enumerate(artifact):
        if isinstance(stored, TensorObject):
            shape, kind = str(list(stored.shape)), stored.format
        else:
            shape, kind = "-", stored.encoding
        rows.append((position, stored.name, shape, kind, stored.offset, stored.nbytes))
    print_table("objects", ("#", "name", "shape", "format", "offset", "bytes"), rows)


def _as_json(artifact: Artifact, objects: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "revision": artifact.revision,
        "identity": {"model_id": artifact.identity.model_id, "weights_id": artifact.identity.weights_id},
        "file_size": artifact.file_size,
        "payload_offset": artifact.payload_offset,
        "tensors": len(artifact.tensors),
        "resources": len(artifact.resources),
        "totals": {name: vars(totals) for name, totals in _totals(artifact).items()},
    }
    if objects:
        body["objects"] = [stored.entry() for stored in artifact]
    return body
