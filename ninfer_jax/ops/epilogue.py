"""What follows the float32 sums of a product before the one rounding: bias, gate and residual.

    y = act(gate + b_gate) * (up + b_up) + r      with an activation, where sums = [gate, up]
    y = sums + b + r                              without

`Epilogue` is the static description that implementations are asked about; `finish` is the equations in plain JAX, for
every product whose kernel does not have them. Nothing here multiplies by a weight.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32

from ninfer_jax.errors import UnsupportedError
from ninfer_jax.ops._arguments import float_type

Activation = Callable[[Array], Array]

ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {"silu": jax.nn.silu, "gelu_tanh": jax.nn.gelu, "identity": jax.nn.identity}
)
"""The activations that kernels know, by the kernels' names."""


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """Which terms there are; false where there is none.

    Attributes:
        activation: a name of `ACTIVATIONS` where the rows of the weight are [gate; up], else None.
        bias: whether there is a bias.
        residual: dtype name of the residual, or None.

    Raises:
        UnsupportedError: for another activation, or a residual that is not the name of a float dtype.
    """

    activation: str | None = None
    bias: bool = False
    residual: str | None = None

    def __post_init__(self) -> None:
        if self.activation is not None and self.activation not in ACTIVATIONS:
            raise UnsupportedError(
                f"activation {self.activation!r}: the kernels know {', '.join(ACTIVATIONS)}; any other function is"
                " applied after the product, which has no epilogue then"
            )
        if self.residual is not None and not isinstance(self.residual, str):
            raise UnsupportedError(f"residual {self.residual!r}: give the name of its dtype, such as 'bfloat16'")
        if self.residual is not None:
            float_type("residual", self.residual)

    def __bool__(self) -> bool:
        return self != Epilogue()

    def __str__(self) -> str:
        gate = f"{self.activation} gate" if self.activation else ""
        residual = f"{self.residual} residual" if self.residual else ""
        return ", ".join(filter(None, (gate, "bias" if self.bias else "", residual)))

    def width(self, n: int) -> int:
        """Columns of the result for n rows of the weight."""
        return n // 2 if self.activation else n

    def terms(self, operands: tuple[Any, ...]) -> tuple[Any, Any]:
        """Bias and residual out of the flat operands, None where absent."""
        rest = iter(operands)
        return next(rest) if self.bias else None, next(rest) if self.residual else None

    def finish(self, sums: Float32[Array, "m n"], operands: tuple[Array, ...], out_dtype: Any) -> Array:
        """The result of float32 sums [M, N], rounded once."""
        activation = ACTIVATIONS[self.activation] if self.activation else None
        return finish(sums, activation, *self.terms(operands), out_dtype)


def finish(
    sums: Float32[Array, "*batch n"],
    activation: Activation | None,
    bias: Float[Array, " n"] | None,
    residual: Float[Array, "*batch width"] | None,
    out_dtype: Any,
) -> Float[Array, "*batch width"]:
    """`act(gate + b_gate) * (up + b_up) + r`, or `sums + b + r`, in float32 and rounded once to `out_dtype`."""
    y = sums if bias is None else sums + lax.expand_dims(bias.astype(jnp.float32), range(sums.ndim - 1))
    if activation is not None:
        gate, up = jnp.split(y, 2, axis=-1)
        y = activation(gate) * up
    y = y if residual is None else y + residual.astype(jnp.float32)
    return y.astype(out_dtype)


def activation_name(activation: Activation) -> str | None:
    """The name in `ACTIVATIONS` of a function, or None for any other."""
    if isinstance(activation, functools.partial):
        tanh = activation.func is jax.nn.gelu and not activation.args and activation.keywords == {"approximate": True}
        return "gelu_tanh" if tanh else None
    return next((name for name, known in ACTIVATIONS.items() if known is activation), None)
