"""`matmul` and what is built on it: products of activations with one packed weight, and the explanation of the choice.

Expert banks are in `grouped`, rows of embeddings in `take_rows`. Accumulation is in float32 (ops-and-criteria).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ninfer_jax._typing import AnyArray
from ninfer_jax.arrays import QuantizedTensor, validate
from ninfer_jax.errors import LayoutError, UnsupportedError
from ninfer_jax.ops import _linear, _partition
from ninfer_jax.ops._linear import IMPLEMENTATIONS
from ninfer_jax.ops.devices import resolve_device
from ninfer_jax.ops.registry import Choice, Device, Explanation, Problem, choose, hashable
from ninfer_jax.ops.xla import Xla


class _Plan(NamedTuple):
    """A checked product."""

    problem: Problem
    explanation: Explanation
    platform: str


def matmul(
    x: Float[AnyArray, "*batch k"],
    w: QuantizedTensor,
    *,
    preferred_element_type: Any = None,
    implementation: Choice = None,
) -> Float[Array, "*batch n"]:
    """`y[..., n] = sum_k x[..., k] * w[n, k]`, accumulated in float32.

    Differentiable in x, to any order of reverse mode; the gradient is a product with the same packed weight. The words
    of w are integers: `jax.grad` asked for their gradient raises TypeError. Under jit with sharded arguments a weight
    split along N gives outputs split along N with no communication, and one split along K a psum. Inside `shard_map` a
    shard of K gives a partial sum; add it with `jax.lax.psum`. Batches of weights go through `jax.vmap`.

    Args:
        x: float32, bfloat16 or float16, [..., K].
        w: a packed weight [N, K].
        preferred_element_type: float type of y; None takes the type of x.
        implementation: a name, names in order of preference, or None for the first that supports the case.

    Raises:
        LayoutError: for shapes that do not fit, or a weight split so that a group or block is cut.
        UnsupportedError: where no implementation asked for can run; the message gives the reasons.
    """
    plan = _plan(x, w, preferred_element_type, implementation, None)
    p = plan.problem
    names = (implementation,) if isinstance(implementation, str) else implementation
    named = names is not None and Xla.name not in names
    call = _partition.Call(p.format, p.k, False, plan.explanation.implementation, plan.platform, p.out_dtype, named)
    y = _linear.apply(call, jnp.asarray(x).reshape(p.m, p.k), w.planes)
    return y.reshape(*x.shape[:-1], p.n)


def linear(
    x: Float[AnyArray, "*batch k"],
    w: QuantizedTensor,
    bias: Float[AnyArray, " n"] | None = None,
    *,
    preferred_element_type: Any = None,
    implementation: Choice = None,
) -> Float[Array, "*batch n"]:
    """`y[..., n] = sum_k x[..., k] * w[n, k] + bias[n]`, with the bias added in float32 before the one rounding.

    Args:
        x: [..., K].
        w: a packed weight [N, K].
        bias: [N] of any float type, or None.
        preferred_element_type, implementation: as in `matmul`.

    Raises:
        LayoutError, UnsupportedError: as `matmul`.
    """
    if bias is None:
        return matmul(x, w, preferred_element_type=preferred_element_type, implementation=implementation)
    y = matmul(x, w, preferred_element_type=jnp.float32, implementation=implementation)
    return (y + jnp.asarray(bias).astype(jnp.float32)).astype(preferred_element_type or x.dtype)


def gated_linear(
    x: Float[AnyArray, "*batch k"],
    gate_up: QuantizedTensor,
    activation: Callable[[Array], Array] = jax.nn.silu,
    *,
    preferred_element_type: Any = None,
    implementation: Choice = None,
) -> Float[Array, "*batch half_n"]:
    """`y = activation(x @ gate.T) * (x @ up.T)`; gate is the first half of the rows of one parent, up the rest.

    Args:
        x: [..., K].
        gate_up: a packed weight [2 * N, K], gate rows first.
        activation: applied to the gate in float32.
        preferred_element_type, implementation: as in `matmul`.

    Raises:
        LayoutError: where the rows are odd; else as `matmul`.
        UnsupportedError: as `matmul`.
    """
    if gate_up.shape[-2] % 2:
        raise LayoutError(f"{gate_up!r} has an odd number of rows; a [gate; up] parent has as many of each")
    both = matmul(x, gate_up, preferred_element_type=jnp.float32, implementation=implementation)
    gate, up = jnp.split(both, 2, axis=-1)
    return (activation(gate) * up).astype(preferred_element_type or x.dtype)


def explain_matmul(
    x: Any,
    w: QuantizedTensor,
    *,
    preferred_element_type: Any = None,
    implementation: Choice = None,
    device: Device | str | None = None,
) -> Explanation:
    """Which implementation `matmul` takes for these arguments, how it runs, and why those before it cannot.

    Args:
        x: an array or `jax.ShapeDtypeStruct`, [..., K].
        w: a packed weight; its leaves may be abstract.
        preferred_element_type, implementation: as in `matmul`.
        device: where it would run: a `jax.Device`, or the name of a GPU that need not be here ("h100", "h200", "b200",
            "a100", "rtx4090", "rtx5090"); None takes the device of x, or the default one.

    Raises:
        LayoutError, UnsupportedError: as `matmul`.
    """
    return _plan(x, w, preferred_element_type, implementation, device).explanation


def _plan(x: Any, w: QuantizedTensor, out_dtype: Any, implementation: Choice, device: Device | str | None) -> _Plan:
    validate(w)
    if len(w.shape) != 2:
        raise LayoutError(
            f"matmul takes one weight [N, K], not {w!r}; map leading axes with jax.vmap or jax.lax.scan, or index them"
        )
    n, k = w.shape
    if not x.ndim or x.shape[-1] != k:
        raise LayoutError(f"x of shape {list(x.shape)} does not fit {w!r}; its last axis must be {k}")
    out = jnp.dtype(x.dtype if out_dtype is None else out_dtype)
    if not jnp.issubdtype(out, jnp.floating):
        raise UnsupportedError(f"preferred_element_type {out}: a float type is needed, such as float32 or bfloat16")
    device = resolve_device(device, x)
    problem = Problem(w.format, math.prod(x.shape[:-1]), n, k, jnp.dtype(x.dtype).name, out.name)
    chosen = choose(IMPLEMENTATIONS, problem, device, hashable(implementation))
    return _Plan(problem, chosen, cast(Any, device).platform)
