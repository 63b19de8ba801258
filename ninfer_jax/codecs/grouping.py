"""Logical groups along the last axis: reshape with zero extension, and back.

The zero extension exists only inside a codec: it changes no maximum and is cut off again; physical padding belongs to
the layouts (tensor-formats §4).
"""

import jax
import jax.numpy as jnp


def split_groups(x: jax.Array, group_size: int) -> jax.Array:
    """`[..., k] -> [..., ceil(k / group_size), group_size]`, a partial last group extended by zeros."""
    *lead, k = x.shape
    groups = -(-k // group_size)
    extra = groups * group_size - k
    if extra:
        x = jnp.pad(x, [(0, 0)] * len(lead) + [(0, extra)])
    return x.reshape(*lead, groups, group_size)


def join_groups(x: jax.Array, k: int) -> jax.Array:
    """`[..., groups, group_size] -> [..., k]`: the inverse of `split_groups`."""
    *lead, groups, group_size = x.shape
    return x.reshape(*lead, groups * group_size)[..., :k]
