"""The `xla` implementation: the reference, in plain JAX, on every device and for every format.

Chooses between the two routes of `_blocks`; it is not naive (no float copy of a whole weight for few rows of x).
"""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from ninfer_jax.arrays import quantized_format
from ninfer_jax.ops import _blocks
from ninfer_jax.ops._arguments import FLOAT_TYPES
from ninfer_jax.ops.registry import Device, Implementation, Problem


class Xla(Implementation):
    """Lanes for one row of x on a CPU; else decoded row blocks, or the weight decoded once on an accelerator."""

    name: ClassVar[str] = "xla"

    def supports(self, problem: Problem, device: Device) -> str | None:
        """Every format, shape and device; x in the three float types."""
        if problem.x_dtype not in FLOAT_TYPES:
            return f"x is {problem.x_dtype}; allowed: {', '.join(FLOAT_TYPES)}"
        return None

    def describe(self, problem: Problem, device: Device) -> str:
        """The route that `_blocks.product` takes."""
        return _blocks.route(problem.m, problem.x_dtype, device.platform)

    def product(
        self, x: Array, planes: Any, problem: Problem, platform: str, operands: tuple[Array, ...] = ()
    ) -> Array:
        """`y[m, n] = sum_k x[m, k] * w[n, k]`, accumulated in float32 and rounded once."""
        y = _blocks.product(x, planes, quantized_format(problem.format), platform)
        return y.astype(jnp.dtype(problem.out_dtype))
