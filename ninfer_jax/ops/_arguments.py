"""Checks of the arguments that the ops share, and what they say of wrong ones. Nothing computes."""

from typing import Any

import jax
import jax.numpy as jnp

from ninfer_jax.errors import LayoutError, UnsupportedError

FLOAT_TYPES = ("float32", "bfloat16", "float16")
"""Types of activations."""


def activations(x: Any) -> jax.Array:
    """x as a JAX array of one of the float types; a float64 NumPy array becomes float32 where jax has no float64.

    Raises:
        LayoutError: for something that is no array.
        UnsupportedError: for another type.
    """
    activation_type(x)
    return jnp.asarray(x)


def activation_type(x: Any) -> jnp.dtype:
    """The dtype of x, concrete or abstract, as a JAX array.

    Raises:
        LayoutError: for something that is no array.
        UnsupportedError: for another type.
    """
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise LayoutError(f"x is a {type(x).__name__}; give a NumPy or JAX array")
    dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    if dtype.name not in FLOAT_TYPES:
        raise UnsupportedError(f"x is {dtype}; allowed: {', '.join(FLOAT_TYPES)}; convert it with x.astype")
    return dtype


def float_type(name: str, dtype: Any) -> jnp.dtype:
    """The dtype, where it is a float one.

    Args:
        name: of the argument, for the message.
        dtype: anything that names a dtype.

    Raises:
        UnsupportedError: for a type that is not a float one.
    """
    dtype = jnp.dtype(dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise UnsupportedError(f"{name} {dtype}: a float type is needed, such as float32 or bfloat16")
    return dtype
