"""`matmul` and what is built on it: products of activations with one packed weight, and the explanation of the choice.

Expert banks are in `grouped`, rows of embeddings in `take_rows`. Accumulation is in float32 (ops-and-criteria).
"""

import math
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ninfer_jax._typing import AnyArray
from ninfer_jax.arrays import QuantizedTensor, validate
from ninfer_jax.errors import LayoutError, UnsupportedError
from ninfer_jax.ops import _linear
from ninfer_jax.ops._arguments import activation_type, activations, float_type
from ninfer_jax.ops._call import Call
from ninfer_jax.ops._linear import IMPLEMENTATIONS
from ninfer_jax.ops.devices import resolve_device
from ninfer_jax.ops.epilogue import Activation, Epilogue, activation_name, finish
from ninfer_jax.ops.registry import Choice, Device, Explanation, Problem, choose


def matmul(
    x: Float[AnyArray, "*batch k"],
    w: QuantizedTensor,
    *,
    preferred_element_type: Any = None,
    implementation: Choice = None,
) -> Float[Array, "*batch n"]:
    """`y[..., n] = sum_k x[..., k] * w[n, k]`, accumulated in float32.

    Differentiable in x, to any order of reverse mode; the gradient is a product with the same packed weight. Forward
    mode (`jax.jvp`, `jax.hessian`) raises TypeError: a Hessian is `jax.jacrev(jax.grad(f))`. So does `jax.grad` asked
    for a gradient of the words of w, which are integers: keep w out of what is trained.

    Under jit with sharded arguments a weight split along N gives outputs split along N with no communication, and one
    split along K a psum. Inside `shard_map` a shard of K gives a partial sum; add it with `jax.lax.psum`. Batches of
    weights go through `jax.vmap`.

    Args:
        x: float32, bfloat16 or float16, [..., K].
        w: a packed weight [N, K].
        preferred_element_type: float type of y; None takes the type of x.
        implementation: a name, names in order of preference, or None for the first that supports the case.

    Returns:
        y [..., N], of the type of x unless another is preferred.

    Raises:
        LayoutError: for shapes that do not fit, or a weight split so that a group or block is cut.
        UnsupportedError: where no implementation asked for can run; the message gives the reasons.

    Source: ops-and-criteria (criterion: relL2 <= 1/256, float32 within 1e-5).
    """
    return _multiply(x, w, Epilogue(), (), preferred_element_type, implementation)


def linear(
    x: Float[AnyArray, "*batch k"],
    w: QuantizedTensor,
    bias: Float[AnyArray, " n"] | None = None,
    *,
    residual: Float[AnyArray, "*batch n"] | None = None,
    preferred_element_type: Any = None,
    implementation: Choice = None,
) -> Float[Array, "*batch n"]:
    """`y[..., n] = sum_k x[..., k] * w[n, k] + bias[n] + residual[..., n]`, in float32 before the one rounding.

    Differentiable in x, bias and residual. A kernel that can adds them itself.

    Args:
        x: [..., K].
        w: a packed weight [N, K].
        bias: [N] of any float type, or None.
        residual: [..., N] of any float type, or None.
        preferred_element_type, implementation: as in `matmul`.

    Returns:
        y [..., N], of the type of x unless another is preferred.

    Raises:
        LayoutError: for a bias or residual of another shape; else as `matmul`.
        UnsupportedError: as `matmul`.

    Source: ops-and-criteria.
    """
    return _with_epilogue(x, w, None, bias, residual, preferred_element_type, implementation)


def gated_linear(
    x: Float[AnyArray, "*batch k"],
    gate_up: QuantizedTensor,
    activation: Activation = jax.nn.silu,
    bias: Float[AnyArray, " n"] | None = None,
    *,
    residual: Float[AnyArray, "*batch half_n"] | None = None,
    preferred_element_type: Any = None,
    implementation: Choice = None,
) -> Float[Array, "*batch half_n"]:
    """`y = activation(x @ gate.T + b_gate) * (x @ up.T + b_up) + residual`, in float32 before the one rounding.

    gate is the first half of the rows of one parent, up the rest. `jax.nn.silu`, `jax.nn.gelu` (its tanh form) and
    `jax.nn.identity` are part of kernels that have them; any other function follows the product. With rows split over
    a mesh axis under jit, gate and up of an output lie on different devices, and float32 sums are exchanged. Inside
    `shard_map` a shard is taken for a parent of its own: interleave gate and up rows by shard before it is split there.

    Args:
        x: [..., K].
        gate_up: a packed weight [2 * N, K], gate rows first.
        activation: applied to the gate in float32.
        bias: [2 * N] of any float type, or None.
        residual: [..., N] of any float type, or None.
        preferred_element_type, implementation: as in `matmul`.

    Returns:
        y [..., N], of the type of x unless another is preferred.

    Raises:
        LayoutError: where the rows are odd, or for a bias or residual of another shape; else as `matmul`.
        UnsupportedError: for an activation that is no function; else as `matmul`.

    Source: ops-and-criteria.
    """
    validate(gate_up)
    if not callable(activation):
        raise UnsupportedError(
            f"activation {activation!r} is no function; give one, such as jax.nn.silu, or jax.nn.identity for none"
        )
    if gate_up.shape[-2] % 2:
        raise LayoutError(f"{gate_up!r} has an odd number of rows; a [gate; up] parent has as many of each")
    return _with_epilogue(x, gate_up, activation, bias, residual, preferred_element_type, implementation)


def explain_matmul(
    x: Any,
    w: QuantizedTensor,
    *,
    epilogue: Epilogue = Epilogue(),  # noqa: B008, frozen
    preferred_element_type: Any = None,
    implementation: Choice = None,
    device: Device | str | None = None,
) -> Explanation:
    """Which implementation `matmul` takes for these arguments, how it runs, and why those before it cannot.

    Args:
        x: an array or `jax.ShapeDtypeStruct`, [..., K].
        w: a packed weight; its leaves may be abstract.
        epilogue: what `linear` or `gated_linear` adds, such as `Epilogue("silu", bias=True, residual="bfloat16")`; the
            answer says whether it is part of the kernel. Gradients, weights mapped by vmap together with their
            epilogue, and explicitly typed shardings take product and epilogue apart whatever it says.
        preferred_element_type, implementation: as in `matmul`.
        device: where it would run: a `jax.Device`, or the name of a GPU that need not be here ("h100", "h200", "b200",
            "a100", "rtx4090", "rtx5090"); None takes the device of x, or the default one.

    Returns:
        The choice, with the reasons; printing it says them in words.

    Raises:
        LayoutError, UnsupportedError: as `matmul`.
    """
    if not isinstance(epilogue, Epilogue):
        raise UnsupportedError(f"epilogue {epilogue!r}: give an Epilogue, such as Epilogue('silu', bias=True)")
    return _plan(x, w, epilogue, preferred_element_type, implementation, device)[0]


def _with_epilogue(
    x: Any, w: QuantizedTensor, activation: Activation | None, bias: Any, residual: Any, out: Any, choice: Choice
) -> Array:
    validate(w)
    x = activations(x)
    width = w.shape[-2] // (1 if activation is None else 2)
    bias = _term("bias", bias, w.shape[-2:-1])
    residual = _term("residual", residual, (*x.shape[:-1], width))
    name = None if activation is None else activation_name(activation)
    if activation is not None and name is None:  # a function of the caller's, which no kernel has
        sums = _multiply(x, w, Epilogue(), (), jnp.float32, choice)
        return finish(sums, activation, bias, residual, out or x.dtype)
    epilogue = Epilogue(name, bias is not None, None if residual is None else residual.dtype.name)
    residual = None if residual is None else residual.reshape(math.prod(x.shape[:-1]), width)
    return _multiply(x, w, epilogue, tuple(term for term in (bias, residual) if term is not None), out, choice)


def _term(name: str, term: Any, shape: tuple[int, ...]) -> Array | None:
    if term is None:
        return None
    term = jnp.asarray(term)
    if term.shape != shape:
        raise LayoutError(f"the {name} has shape {list(term.shape)}; this product needs {list(shape)}")
    if not jnp.issubdtype(term.dtype, jnp.floating):
        raise UnsupportedError(f"the {name} is {term.dtype}; a float type is needed, such as float32 or bfloat16")
    return term


def _multiply(
    x: Any, w: QuantizedTensor, epilogue: Epilogue, operands: tuple[Array, ...], out: Any, choice: Choice
) -> Array:
    validate(w)
    x = activations(x)
    found, platform = _plan(x, w, epilogue, out, choice, None)
    p, width = found.problem, epilogue.width(w.shape[-2])
    call = Call(p.format, p.k, False, found.implementation, platform, p.out_dtype, epilogue)
    y = _linear.apply(call, x.reshape(p.m, p.k), w.planes, operands, fused=found.apart is None)
    return y.reshape(*x.shape[:-1], width)


def _plan(
    x: Any, w: QuantizedTensor, epilogue: Epilogue, out_dtype: Any, implementation: Choice, device: Device | str | None
) -> tuple[Explanation, str]:
    """The choice for a checked product, and the platform it runs on."""
    validate(w)
    if len(w.shape) != 2:
        raise LayoutError(
            f"matmul takes one weight [N, K], not {w!r}; map leading axes with jax.vmap or jax.lax.scan, or index them"
        )
    n, k = w.shape
    x_type = activation_type(x)
    if not len(x.shape) or x.shape[-1] != k:
        raise LayoutError(f"x of shape {list(x.shape)} does not fit {w!r}; its last axis must be {k}")
    out = float_type("preferred_element_type", x_type if out_dtype is None else out_dtype)
    device = resolve_device(device, x)
    problem = Problem(w.format, math.prod(x.shape[:-1]), n, k, x_type.name, out.name, epilogue)
    chosen = choose(IMPLEMENTATIONS, problem, device, implementation)
    return chosen, cast(Any, device).platform
