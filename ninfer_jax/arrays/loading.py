"""Tensors of an artifact as JAX values, placed from the memory map without repacking (container, storage-layouts).

Quantized tensors arrive as `QuantizedTensor`, direct ones as `jax.Array` of the type they mean. Resources stay in the
artifact; no word is decoded or checked.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding

from ninfer_jax.arrays.quantized_tensor import QuantizedTensor
from ninfer_jax.arrays.sharding import shardings as plane_shardings
from ninfer_jax.container import Artifact, open_artifact
from ninfer_jax.errors import ArtifactError, LayoutError, UnsupportedError
from ninfer_jax.formats import DirectFormat, get_format

Placement: TypeAlias = Any
"""A `Sharding`, a `jax.Device`, which type checkers take for a variable, or None."""
Weight = QuantizedTensor | jax.Array


def load(
    path: str | os.PathLike[str],
    names: Iterable[str] | None = None,
    shardings: Placement | Mapping[str, Placement] | Callable[[str, tuple[int, ...]], Placement] = None,
) -> dict[str, Weight]:
    """`{name: tensor}` in stored order; each plane goes from the mapped file to its device in one step.

    Args:
        path: a `.ninfer` artifact. On a CPU the tensors may be views of it: replace the file by renaming another
            over it, as conversion does, and do not write into it or shorten it while they are used.
        names: tensors to load; None loads all.
        shardings: where tensors go, of their logical shape: one sharding or device for all, a mapping by name (names
            left out go to the default device), or a function of name and shape. A NamedSharding may split N, and K
            where no group or block is cut.

    Returns:
        A flat dict; `nest` makes it a tree.

    Raises:
        ArtifactError: for a file that is no artifact, or a name, also one in `shardings`, that is no tensor of it.
        LayoutError: for a sharding that would cut a group, a block or a tile, or has more axes than the tensor.
        UnsupportedError: for a placement that is no sharding, device or None, or splits a packed tensor another way.

    Source: container; storage-layouts.
    """
    if isinstance(names, str):
        raise ArtifactError(f"names = {names!r} is one string; give a list of names")
    with open_artifact(path) as artifact:
        wanted = list(artifact.tensors) if names is None else list(names)
        for name in [*wanted, *(shardings if isinstance(shardings, Mapping) else ())]:
            if name not in artifact.tensors:
                raise ArtifactError(f"{artifact.path} has no tensor {name!r}; it has {_some(artifact.tensors)}")
        return {name: _load_one(artifact, name, _placement(shardings, artifact, name)) for name in wanted}


def nest(weights: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """A nested dict: `{"a.b": x}` becomes `{"a": {"b": x}}`.

    Raises:
        ArtifactError: where one name is a prefix of another, so that a value would be a branch too.
    """
    tree: dict[str, Any] = {}
    for name, value in weights.items():
        *branches, leaf = name.split(separator)
        node = tree
        for branch in branches:
            node = node.setdefault(branch, {})
            if not isinstance(node, dict):
                raise ArtifactError(f"{name!r} cannot be nested: {branch!r} is a tensor already; keep the flat dict")
        if leaf in node:
            raise ArtifactError(f"{name!r} cannot be nested: other names begin with it; keep the flat dict")
        node[leaf] = value
    return tree


def _load_one(artifact: Artifact, name: str, placement: Placement) -> Weight:
    stored = artifact.tensors[name]
    spec = get_format(stored.format)
    _check_placement(placement, name, stored.shape)
    planes = artifact.planes(name)
    if isinstance(spec, DirectFormat):
        values = np.asarray(planes).view(np.dtype(spec.value_dtype))
        return jax.device_put(values, placement)
    w = QuantizedTensor(planes, spec.name, stored.shape[-1])
    if isinstance(placement, NamedSharding):
        return jax.device_put(w, plane_shardings(w, placement))
    if placement is not None and len(getattr(placement, "device_set", ())) > 1:
        raise UnsupportedError(f"{name}: a packed tensor is split by a NamedSharding of [N, K], not by {placement}")
    return jax.device_put(w, placement)


def _check_placement(placement: Any, name: str, shape: tuple[int, ...]) -> None:
    if not isinstance(placement, Sharding | jax.Device | None):
        raise UnsupportedError(
            f"{name}: it cannot be placed by {placement!r}; give a sharding such as NamedSharding(mesh, spec), or None"
        )
    if isinstance(placement, NamedSharding) and len(placement.spec) > len(shape):
        raise LayoutError(
            f"{name} {list(shape)}: {placement.spec} is of more axes; a function of name and shape gives each its own"
        )


def _placement(shardings: Any, artifact: Artifact, name: str) -> Placement:
    if isinstance(shardings, Mapping):
        return shardings.get(name)
    if callable(shardings):
        return shardings(name, artifact.tensors[name].shape)
    return shardings


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
