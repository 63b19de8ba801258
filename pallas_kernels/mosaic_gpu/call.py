"""What a kernel is called for, and the equations that XLA finishes its sums with.

    y = act(s0 * a0 + b0) * (s1 * a1 + b1) + r      a gated product: gate rows, up rows
    y = s * a + b + r                               a plain one

a are float32 sums, s what scales whole rows or the whole weight (FP8's row scales, one over NVFP4's divisor), b a bias
a row, r a residual. Decode kernels leave all of it to XLA, prefill kernels what they cannot do themselves. Leaves out
the part inside a kernel (_epilogue). Source: ops-and-criteria.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.hardware import Hardware
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.planes import WeightPlanes


def _silu(x: jax.Array) -> jax.Array:
    return x * lax.logistic(x)


def _gelu_tanh(x: jax.Array) -> jax.Array:
    # tanh(u) = 2 * logistic(2u) - 1: one exponential, which Mosaic lowers.
    return x * lax.logistic(1.5957691216057308 * (x + 0.044715 * x * x * x))


#: Activations of a gated product, float32 to float32.
ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = MappingProxyType(
    {"silu": _silu, "gelu_tanh": _gelu_tanh, "identity": lambda x: x}
)


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """What every kernel's `run(x, planes, config, call)` is asked for.

    `run` takes x, bfloat16 [m, k], the raw planes of the [n, k] weight and a configuration of the kernel's own; it
    returns out_dtype [m, n], or [m, n / 2] for a gated product, and raises `KernelConfigError` where the kernel cannot
    run that configuration.

    Attributes:
      kind: a name of `WEIGHT_KINDS`.
      n: rows of the weight; with an activation they are [gate; up], n / 2 each.
      k: columns of the weight.
      out_dtype: bfloat16 or float32.
      hardware: the device, for its multiprocessors and shared memory.
      bias: [n] added to each row's product, or None.
      residual: [m, n or n / 2] added to the result, or None.
      activation: a name of `ACTIVATIONS` for a gated product, or None.
      interpret: False, or the parameters of Pallas' GPU interpreter.
    """

    kind: str
    n: int
    k: int
    out_dtype: Any
    hardware: Hardware
    bias: jax.Array | None = None
    residual: jax.Array | None = None
    activation: str | None = None
    interpret: Any = False

    @property
    def gated(self) -> bool:
        """Whether the product is a gated one."""
        return self.activation is not None

    @property
    def interpreted(self) -> bool:
        """Whether the kernel is interpreted."""
        return self.interpret is not None and self.interpret is not False

    def product(self, m: int) -> Product:
        """The product of m tokens, as launches are planned for it."""
        out_bytes = jnp.dtype(self.out_dtype).itemsize
        return Product(self.kind, m, self.n, self.k, self.hardware, self.gated, out_bytes)

    def without_affine(self) -> "Call":
        """The call that is left when the kernel has added the bias and applied the activation."""
        return dataclasses.replace(self, bias=None, activation=None)

    def scale_rows(self, sums: jax.Array, planes: WeightPlanes, factor: float = 1.0) -> jax.Array:
        """float32 [m, n] sums of exact products, times `factor` and what scales whole rows or the whole weight."""
        if self.kind == "fp8":
            return sums * lax.bitcast_convert_type(jnp.asarray(planes.scales), jnp.bfloat16).astype(jnp.float32)
        if self.kind == "nvfp4":
            # A division: the reciprocal of a small divisor may overflow where the quotient does not.
            sums = sums if factor == 1.0 else sums * factor
            return sums / lax.bitcast_convert_type(jnp.asarray(planes.divisor), jnp.float32)
        return sums

    def finish(self, sums: jax.Array) -> jax.Array:
        """out_dtype [m, n or n / 2]: the equations in XLA, for float32 [m, n] that already hold s * a."""
        if self.bias is not None:
            sums = sums + self.bias.astype(jnp.float32)
        if self.activation is not None:
            half = sums.shape[1] // 2
            sums = ACTIVATIONS[self.activation](sums[:, :half]) * sums[:, half:]
        if self.residual is not None:
            sums = sums + self.residual.astype(jnp.float32)
        return sums.astype(self.out_dtype)
