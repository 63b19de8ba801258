"""A chain of small wgmma products with register operands, each with a scale of its own, kept one ahead of the adds.

    total += scale[i] * (operand[i] @ x[i].T)        for each i, in order

Product i runs while operand i + 1 is unpacked. The interpreter knows no register operands, so there the product is a
plain one of the same bfloat16 values. Leaves out where operands come from.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax


@dataclasses.dataclass(frozen=True)
class Sum:
    """One product.

    Attributes:
      make: gives the bfloat16 [64, 64] operand; sums that share one have the same `make`.
      column: first column of the operand that this product uses.
      x_smem: reference to bfloat16 [tokens, columns].
      scale: float32 [64] that multiplies the product, or None for 1.
    """

    make: Callable[[], jax.Array]
    column: int
    x_smem: Any
    scale: jax.Array | None


def add_sums(total: jax.Array, sums: Sequence[Sum], interpret: bool) -> jax.Array:
    """total + the scaled products, float32 [64, tokens]."""
    if interpret:
        for part, operand in zip(sums, _operands(sums), strict=True):
            product = jnp.dot(operand.astype(jnp.float32), part.x_smem[...].astype(jnp.float32).T)
            total = total + _scaled(product, part.scale)
        return total

    def chain(*accumulators: Any) -> jax.Array:
        result = total
        for i, (part, operand) in enumerate(zip(sums, _operands(sums), strict=True)):
            plgpu.wgmma(accumulators[i], operand, part.x_smem.T)
            if i:
                result = _add(result, sums[i - 1], accumulators[i - 1], in_flight=1)
        return _add(result, sums[-1], accumulators[-1], in_flight=0)

    return pl.run_scoped(chain, *[plgpu.WGMMAAccumulatorRef((total.shape[0], total.shape[1]))] * len(sums))


def _operands(sums: Sequence[Sum]) -> Any:
    """Each sum's operand, made when it is asked for and once for those that share it."""
    made, operand = None, None
    for part in sums:
        if part.make is not made:
            made, operand = part.make, part.make()
        columns = part.x_smem.shape[1]
        yield operand[:, part.column : part.column + columns]  # pyright: ignore[reportOptionalSubscript]


def _add(total: jax.Array, part: Sum, accumulator: Any, in_flight: int) -> jax.Array:
    product = plgpu.wgmma_accumulator_load(accumulator, wait_n=in_flight)
    return plgpu.layout_cast(total + _scaled(product, part.scale), plgpu.Layout.WGMMA)


def _scaled(product: jax.Array, scale: jax.Array | None) -> jax.Array:
    return product if scale is None else product * lax.broadcast_in_dim(scale, product.shape, (0,))
