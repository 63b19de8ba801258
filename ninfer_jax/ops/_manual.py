"""Manual mesh axes: which of them a value varies over inside `shard_map`, and values made to vary like others.

Outside `shard_map` nothing varies and every function here is the identity.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32


def varying_axes(*trees: Any) -> frozenset[str]:
    """Manual axes that any array of the trees varies over."""
    axes: frozenset[str] = frozenset()
    for leaf in jax.tree.leaves(trees):
        axes |= _axes_of(jax.typeof(leaf))
    return axes


def vary_like(x: Array, *trees: Any) -> Array:
    """x, made to vary over every manual axis that the trees vary over; its derivative then adds over those axes."""
    missing = varying_axes(*trees) - varying_axes(x)
    return lax.pcast(x, tuple(missing), to="varying") if missing else x


def varying_zeros(shape: tuple[int, ...], *trees: Any) -> Float32[Array, "..."]:
    """float32 zeros that vary like the trees, as the carry of a loop must from the start."""
    return vary_like(jnp.zeros(shape, jnp.float32), *trees)


def _axes_of(aval: Any) -> frozenset[str]:
    # The record of manual axes has had two spellings in the supported range of jax.
    record = getattr(aval, "manual_axis_type", None)
    return frozenset(getattr(aval, "vma", ()) if record is None else record.varying)
