"""How one K step of a packed weight gets from its planes to registers in the prefill kernel.

For every weight kind: the views of the planes the copy engine reads (bit casts, no copy), the shared memory of a stage,
the scale words a warpgroup fetches ahead, and the bfloat16 tile handed to the tensor cores:

    tile[r, p] = bfloat16(code[r, c] * scale[r, c // group] / factor), c = column_order[p] of each 64 columns

(fp8: code alone, its row scale is an epilogue.) Codes and products of E2M1 and E4M3FN values are exact in bfloat16; a
product with a binary16 scale is rounded. Columns are in the order of _unpack, and so is the kernel's x. Leaves out the
unpacking (_unpack_tile), the pipeline (prefill_sm90) and everything after the accumulator (_epilogue). Source:
storage-layouts, gpu-kernels.
"""

import dataclasses
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.mosaic_gpu import _unpack, _unpack_tile
from pallas_kernels.mosaic_gpu.planning import swizzled
from pallas_kernels.planes import WeightPlanes
from pallas_kernels.tiling import weight_kind

# The type checker sees jax 0.10.2, whose plgpu.load wants an index.
# pyright: reportCallIssue=false

#: Rows of W one warpgroup holds: the row side of a wgmma.
ROWS = 64
#: Columns of one register operand: what a 128 byte swizzled bfloat16 x tile holds.
CHUNK = 64


def row_vector_layout() -> Any:
    """Layout of a vector with one value a row of a wgmma accumulator."""
    return plgpu.Layout.WGMMA.reduce(1)


def pad_rows(plane: jax.Array, rows: int) -> jax.Array:
    """The plane with zero rows appended up to that many; the plane itself where it has them."""
    missing = rows - plane.shape[0]
    return plane if missing <= 0 else jnp.pad(plane, ((0, missing), *(((0, 0),) * (plane.ndim - 1))))


@dataclasses.dataclass(frozen=True)
class WeightTiles:
    """Static description of the tiles of one weight.

    Attributes:
      kind: a name of `WEIGHT_KINDS`.
      n: rows of the weight.
      block_k: columns of a K step, 64 or 128.
      rows: rows of W a stage holds.
      parts_of_scale: parts a binary16 scale is taken in.
    """

    kind: str
    n: int
    block_k: int
    rows: int
    parts_of_scale: int

    @property
    def code_bits(self) -> int:
        return weight_kind(self.kind).code_plane_bits

    @property
    def code_bytes(self) -> int:
        """Bytes of codes in a K step of a row."""
        return self.block_k * self.code_bits // 8

    @property
    def high_bytes(self) -> int:
        """Bytes of the high plane in a K step of a row."""
        kind = weight_kind(self.kind)
        return self.block_k // kind.group_size * kind.high_bytes if kind.high_bytes else 0

    @property
    def copies(self) -> int:
        """Copies a stage takes for each block of `ROWS`-row parts."""
        return 2 if self.high_bytes else 1

    def views(self, planes: WeightPlanes, padded_rows: int) -> dict[str, jax.Array]:
        """The planes as the kernel's operands.

        Args:
          planes: the raw planes.
          padded_rows: where the last `ROWS` rows that count end; only scales, which are loaded and not copied by the
            copy engine (whose reads past the end give zeros), need rows there.
        """
        # The copy engine moves whole tiles of 8 rows and a swizzle's bytes. Only a weight that has no whole number of
        # these (rows, or an FP8 weight's columns) is copied.
        n = -(-self.n // 8) * 8
        codes = pad_rows(jnp.asarray(planes.codes), n)
        if self.kind == "fp8" and codes.shape[1] % self.code_bytes:
            codes = jnp.pad(codes, ((0, 0), (0, -codes.shape[1] % self.code_bytes)))
        views = {"codes": codes}
        if self.high_bytes:
            views["high"] = pad_rows(jnp.asarray(planes.high), n)
        if self.kind == "nvfp4":
            views["scales"] = lax.bitcast_convert_type(jnp.asarray(planes.scales), jnp.uint32)
        elif self.kind != "fp8":
            views["scales"] = pad_rows(jnp.asarray(planes.scales), padded_rows)
        return views

    def scratch(self, stages: int) -> dict[str, Any]:
        """Shared memory of the ring."""
        shape = (stages, self.rows, self.code_bytes)
        out = {"codes": plgpu.SMEM(shape, jnp.uint8, transforms=swizzled(self.code_bytes, 8))}
        if self.high_bytes:
            out["high"] = plgpu.SMEM((stages, self.rows, self.high_bytes), jnp.uint8)
        return out

    def copy(
        self,
        gmem: dict[str, Any],
        smem: dict[str, Any],
        row: Any,
        step: Any,
        slot: Any,
        dst: int,
        count: int,
        barrier: Any,
    ) -> None:
        """Start the copies of `count` rows from `row` on, K step `step`, to rows `dst` on of the stage `slot`."""
        for name in ("codes", "high")[: self.copies]:
            width = self.code_bytes if name == "codes" else self.high_bytes
            plgpu.copy_gmem_to_smem(
                gmem[name].at[pl.ds(row, count), pl.ds(step * width, width)],
                smem[name].at[slot, pl.ds(dst, count)],
                barrier,
            )

    def fetch_scales(self, gmem: dict[str, Any], row: Any, step: Any, interpret: bool) -> tuple[jax.Array, ...]:
        """Scale words of `ROWS` rows from `row` on for K step `step`: a vector a group, of nvfp4 one for 4 groups."""
        # Rows past the end are computed and thrown away; their scales are those of the last rows.
        if self.kind == "fp8":
            return ()
        if self.kind == "nvfp4":
            blocks = gmem["scales"].shape[0]
            tile = jnp.minimum(row // 128, blocks - 1)
            return tuple(
                _unpack_tile.load_scale_words(
                    gmem["scales"].at[tile, step * (self.block_k // 64) + j, :, pl.ds(row % 128 // 32, 2)], interpret
                )
                for j in range(self.block_k // 64)
            )
        groups = self.block_k // weight_kind(self.kind).group_size
        row = jnp.minimum(row, gmem["scales"].shape[0] - ROWS)
        return tuple(
            plgpu.load(
                gmem["scales"].at[pl.ds(row, ROWS), step * groups + g], layout=row_vector_layout(), optimized=False
            )
            for g in range(groups)
        )

    def read(
        self, smem: dict[str, Any], slot: Any, row: Any, scales: tuple[jax.Array, ...], interpret: bool
    ) -> list[jax.Array]:
        """The tile of `ROWS` rows from `row` on of the stage, as register operands of `CHUNK` columns each.

        Args:
          smem: the ring.
          slot: the stage.
          row: first row in the stage.
          scales: what `fetch_scales` gave for this step.
          interpret: whether the kernel is interpreted, so that inlined code is replaced by its twin.

        Returns:
          block_k / CHUNK arrays bfloat16 [ROWS, CHUNK].
        """
        codes = plgpu.load(smem["codes"].at[slot, pl.ds(row, ROWS)], layout=_unpack.codes_layout())
        high = None
        if self.high_bytes:
            high = plgpu.load(
                smem["high"].at[slot, pl.ds(row, ROWS)], layout=_unpack.high_layout(self.kind), optimized=False
            )
        count = self.block_k // CHUNK
        of = lambda array, i: array[:, i * array.shape[1] // count : (i + 1) * array.shape[1] // count]
        each = len(scales) // count
        return [
            _unpack_tile.unpack_tile(
                self.kind,
                of(codes, i),
                None if high is None else of(high, i),
                scales[i * each : (i + 1) * each],
                interpret,
                self.parts_of_scale,
            )
            for i in range(count)
        ]
