"""What happens to a prefill accumulator between the last multiply and device memory.

    y = act(s0 * a0 + b0) * (s1 * a1 + b1) + r      a gated product: parts gate, up
    y = s * a + b + r                               a plain one, each part

a are float32 accumulators [rows of W, tokens], s the factors that could not go into the bfloat16 weights (FP8's row
scales, one over NVFP4's divisor), b a bias a row, r a residual, which the kernel adds. What is left to XLA where K was
split over blocks is `Call`'s. Leaves out group scales (_weight_tiles).
"""

import dataclasses
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.mosaic_gpu._weight_tiles import ROWS, pad_rows, row_vector_layout
from pallas_kernels.mosaic_gpu.call import ACTIVATIONS
from pallas_kernels.planes import WeightPlanes

# The type checker sees jax 0.10.2, whose plgpu.load wants an index.
# pyright: reportCallIssue=false


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """Static description of an epilogue.

    Attributes:
      kind: a name of `WEIGHT_KINDS`.
      bias: whether there is a bias.
      residual: whether there is a residual.
      activation: a name of `ACTIVATIONS` for a gated product, else None.
      rows: rows of an accumulator.
      row_layout: layout of a vector with one value a row of it.
      factor: what accumulators are short of, a power of two.
    """

    kind: str
    bias: bool = False
    residual: bool = False
    activation: str | None = None
    rows: int = ROWS
    row_layout: Any = dataclasses.field(default_factory=row_vector_layout)
    factor: float = 1.0

    def operands(self, planes: WeightPlanes, bias: jax.Array | None, padded_rows: int) -> dict[str, jax.Array]:
        """Row vectors and scalars the epilogue loads, padded to where the last block of rows that counts ends."""
        out = {}
        if self.kind == "fp8":
            out["row_scales"] = pad_rows(jnp.asarray(planes.scales), padded_rows)
        if self.kind == "nvfp4":
            out["divisor"] = lax.bitcast_convert_type(jnp.asarray(planes.divisor), jnp.float32).reshape(1)
        if self.bias and bias is not None:
            out["bias"] = pad_rows(bias.astype(jnp.float32), padded_rows)
        return out

    def finish(self, accumulators: list[jax.Array], gmem: dict[str, Any], rows: list[Any]) -> list[jax.Array]:
        """Blocks of the output but for the residual: one for a gated product, else one a part.

        Args:
          accumulators: float32 [rows, tokens], one a part.
          gmem: references to what `operands` gave.
          rows: the first row of W of each part.

        Returns:
          float32 [rows, tokens] each.
        """
        parts = [self._affine(a, gmem, row) for a, row in zip(accumulators, rows, strict=True)]
        return parts if self.activation is None else [ACTIVATIONS[self.activation](parts[0]) * parts[1]]

    def _affine(self, accumulator: jax.Array, gmem: dict[str, Any], row: Any) -> jax.Array:
        spread = lambda vector: lax.broadcast_in_dim(vector, accumulator.shape, (0,))
        if self.factor != 1.0:
            accumulator = accumulator * self.factor
        if self.kind == "fp8":
            scales = lax.bitcast_convert_type(self._load_rows(gmem["row_scales"], row), jnp.bfloat16)
            accumulator = accumulator * spread(scales.astype(jnp.float32))
        if self.kind == "nvfp4":
            # A division: the reciprocal of a small divisor may overflow where the quotient does not.
            accumulator = accumulator / gmem["divisor"][0]
        if self.bias:
            accumulator = accumulator + spread(self._load_rows(gmem["bias"], row))
        return accumulator

    def _load_rows(self, vector: Any, row: Any) -> jax.Array:
        row = jnp.minimum(row, vector.shape[0] - self.rows)  # rows past the end are thrown away
        return plgpu.load(vector.at[pl.ds(row, self.rows)], layout=self.row_layout, optimized=False)
