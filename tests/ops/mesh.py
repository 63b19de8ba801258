"""Meshes of the eight virtual devices, weights placed on them, and what compiled programs communicate."""

import re

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ninfer_jax.arrays import QuantizedTensor, shardings

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


def mesh_of(kind: AxisType = AxisType.Auto, **sizes: int) -> Mesh:
    """A mesh of named axes, or eight devices along one."""
    sizes = sizes or {"model": 8}
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))


def put(w: QuantizedTensor, mesh: Mesh, spec: PartitionSpec) -> QuantizedTensor:
    """The weight with its logical axes placed as in `spec`."""
    return jax.device_put(w, shardings(w, NamedSharding(mesh, spec)))


def collectives(text: str | None) -> dict[str, int]:
    """How many of each collective a compiled program starts."""
    return {name: len(re.findall(rf" {name}(?:-start)?\(", str(text))) for name in COLLECTIVES}


def started(text: str | None) -> set[str]:
    """Collectives that a compiled program starts at all."""
    return {name for name, count in collectives(text).items() if count}
