"""An implementation that runs anywhere and is like a kernel in all that the operators have to know: it has every
epilogue, and it cannot be mapped or differentiated.

Its product decodes the weight and is one dense product; the epilogue is written here once more, so that what the
operators do around a kernel is tested against something of another origin.
"""

import sys
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.ops import _linear, dequantize
from ninfer_jax.ops.registry import Device, Implementation, Problem

matmul_module = sys.modules["ninfer_jax.ops.matmul"]  # the attribute of that name is the function


class StandIn(Implementation):
    """Remembers every problem that it was asked to compute, in `seen`."""

    name: ClassVar[str] = "stand_in"
    by_name_only: ClassVar[bool] = True

    def __init__(self) -> None:
        self.seen: list[Problem] = []

    def supports(self, problem: Problem, device: Device) -> str | None:
        return None

    def describe(self, problem: Problem, device: Device) -> str:
        return "decoded, then one product"

    def cannot_fuse(self, problem: Problem, device: Device) -> str | None:
        return None

    def product(
        self, x: jax.Array, planes: Any, problem: Problem, platform: str, operands: tuple[jax.Array, ...] = ()
    ) -> jax.Array:
        self.seen.append(problem)
        # A partitioned function may have no constants, which a program of its own keeps to itself.
        return jax.jit(_opaque(problem))(x[:, : problem.k], planes, operands)


def _opaque(problem: Problem) -> Any:
    @custom_vmap
    def compute(x: jax.Array, planes: Any, operands: tuple[jax.Array, ...]) -> jax.Array:
        values = dequantize(QuantizedTensor(planes, problem.format, problem.k))
        y = jnp.matmul(x.astype(jnp.float32), values.T, precision="highest")
        e, rest = problem.epilogue, list(operands)
        if e.bias:
            y = y + rest.pop(0).astype(jnp.float32)
        if e.activation:
            y = _ACTIVATIONS[e.activation](y[:, : problem.n // 2]) * y[:, problem.n // 2 :]
        if e.residual:
            y = y + rest.pop(0).astype(jnp.float32)
        return y.astype(problem.out_dtype)

    @compute.def_vmap
    def mapped(size: int, in_batched: Any, *arguments: Any) -> Any:
        raise AssertionError("a kernel was mapped")

    return compute


_ACTIVATIONS = {
    "silu": lambda x: x / (1 + jnp.exp(-x)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + jnp.tanh(0.7978845608028654 * (x + 0.044715 * x**3))),
    "identity": lambda x: x,
}


def register(monkeypatch: Any) -> StandIn:
    """Register a fresh one, for as long as the fixture lasts."""
    found = StandIn()
    for cached in (_linear._whole, _linear._shard):
        cached.cache_clear()
    jax.clear_caches()
    both = {**_linear.IMPLEMENTATIONS, found.name: found}
    monkeypatch.setattr(_linear, "IMPLEMENTATIONS", both)
    monkeypatch.setattr(matmul_module, "IMPLEMENTATIONS", both)
    return found
