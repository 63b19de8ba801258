"""How one K step of a packed weight gets from its planes to tensor memory in the Blackwell kernels.

A tile is 128 rows of W, one a lane of tensor memory, and `block_k` columns. The copy engine brings codes, high bits and
NVFP4's block scales to shared memory; a warpgroup, a thread a row, unpacks 64 columns at a time and stores them to
tensor memory as the left operand of tcgen05. Group scales are loaded from device memory, since their rows seldom start
on the 16 bytes the copy engine wants. Leaves out the pipelines (prefill_sm100, decode_sm100). Source: storage-layouts.
"""

import dataclasses
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from pallas_kernels.mosaic_gpu._row_unpack import (
    COLUMNS,
    LANES,
    block_scales_layout,
    code_words,
    high_words,
    unpack_rows,
    words_layout,
)
from pallas_kernels.mosaic_gpu._weight_tiles import pad_rows
from pallas_kernels.mosaic_gpu.planning import swizzled
from pallas_kernels.planes import WeightPlanes
from pallas_kernels.tiling import weight_kind

# Newer jax makes the index of plgpu.load optional.
# pyright: reportCallIssue=false


@dataclasses.dataclass(frozen=True)
class RowTiles:
    """Static description of the tiles of one weight.

    Attributes:
      kind: a name of `WEIGHT_KINDS`.
      k: columns of the weight.
      block_k: columns of a K step, a multiple of 64.
    """

    kind: str
    k: int
    block_k: int

    @property
    def units(self) -> int:
        """Times 64 columns of a K step."""
        return self.block_k // COLUMNS

    @property
    def grouped(self) -> bool:
        """Whether scales are those of groups, loaded from device memory."""
        return self.kind not in ("fp8", "nvfp4")

    @property
    def group_size(self) -> int:
        """Columns a group scale serves."""
        return weight_kind(self.kind).group_size

    @property
    def k_steps(self) -> int:
        """K steps of the whole weight."""
        return -(-weight_kind(self.kind).k_padded(self.k) // self.block_k)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage, bytes."""
        words = code_words(self.kind) + high_words(self.kind) + (self.kind == "nvfp4")
        return LANES * self.units * words * 4

    def views(self, planes: WeightPlanes, padded_rows: int) -> dict[str, jax.Array]:
        """The planes as the kernel's operands: bit casts of them.

        Two things are copied: group scales where there are fewer rows than the last tile ends at (`padded_rows`),
        because they are loaded without the copy engine's bounds, and FP8 codes whose rows do not start on 16 bytes.
        """
        codes = jnp.asarray(planes.codes)
        if self.kind == "fp8" and codes.shape[1] % 16:
            codes = jnp.pad(codes, ((0, 0), (0, -codes.shape[1] % 16)))
        views = {"codes": _words(codes)}
        if planes.high is not None:
            views["high"] = _words(jnp.asarray(planes.high))
        if self.kind == "nvfp4":
            views["scales"] = lax.bitcast_convert_type(jnp.asarray(planes.scales), jnp.uint32)
        elif self.grouped:
            views["scales"] = pad_rows(jnp.asarray(planes.scales), padded_rows)
        return views

    def scratch(self, slots: int) -> dict[str, Any]:
        """Shared memory of a ring of that many stages."""
        width = self.units * code_words(self.kind)
        out = {"codes": plgpu.SMEM((slots, LANES, width), jnp.uint32, transforms=swizzled(width * 4, 32))}
        if high_words(self.kind):
            width = self.units * high_words(self.kind)
            out["high"] = plgpu.SMEM((slots, LANES, width), jnp.uint32, transforms=swizzled(width * 4, 32))
        if self.kind == "nvfp4":
            out["scales"] = plgpu.SMEM((slots, self.units, 32, 4), jnp.uint32)
        return out

    @property
    def copies(self) -> int:
        """Copies a stage takes."""
        return 1 + bool(high_words(self.kind)) + (self.kind == "nvfp4")

    def copy(self, gmem: dict[str, Any], ring: dict[str, Any], row: Any, step: Any, slot: Any, barrier: Any) -> None:
        """Start the copies of K step `step` of the 128 rows from `row` on into the stage `slot`."""
        for name, words in (("codes", code_words(self.kind)), ("high", high_words(self.kind))):
            if words:
                width = self.units * words
                source = gmem[name].at[pl.ds(row, LANES), pl.ds(step * width, width)]
                plgpu.copy_gmem_to_smem(source, ring[name].at[slot], barrier)
        if self.kind == "nvfp4":
            source = gmem["scales"].at[row // LANES, pl.ds(step * self.units, self.units)]
            plgpu.copy_gmem_to_smem(source, ring["scales"].at[slot], barrier)

    def fetch_scales(self, gmem: dict[str, Any], row: Any, step: Any) -> jax.Array | None:
        """Group scale words of K step `step` of the 128 rows from `row` on; None where there are none.

        A step past the last gets the last's, so that a pipeline may fetch ahead.

        Returns:
          uint16 [128, groups of a K step] in `words_layout(groups)`.
        """
        if not self.grouped:
            return None
        groups = self.block_k // self.group_size
        first = jnp.minimum(step, self.k_steps - 1) * groups
        words_gmem = gmem["scales"].at[pl.ds(row, LANES), pl.ds(first, groups)]
        return plgpu.load(words_gmem, layout=words_layout(groups), optimized=False)

    def store_operand(
        self,
        ring: dict[str, Any],
        slot: Any,
        scales: jax.Array | None,
        operand_tmem: Any,
        column: Any,
        interpret: bool,
    ) -> None:
        """Unpack the stage `slot` into tensor memory, columns `column` on; `commit_tmem` is the caller's.

        Args:
          ring: shared memory, as `scratch` gives.
          slot: the stage.
          scales: what `fetch_scales` gave, or None to store codes without group scales.
          operand_tmem: bfloat16 [128, columns], packed.
          column: its first column to store to.
          interpret: whether the kernel is being interpreted.
        """
        load = lambda ref, layout: plgpu.load(ref, layout=layout, optimized=False)
        codes, high = load(ring["codes"].at[slot], words_layout(4)), None
        if high_words(self.kind):
            high = load(ring["high"].at[slot], words_layout(high_words(self.kind)))
        words = [scales] if scales is not None else []
        if self.kind == "nvfp4":
            words = [load(ring["scales"].at[slot, unit], block_scales_layout()) for unit in range(self.units)]
        tile = unpack_rows(self.kind, codes, high, words, interpret=interpret)
        plgpu.async_store_tmem(operand_tmem.at[:, pl.ds(column, self.block_k)], tile)


def _words(plane: jax.Array) -> jax.Array:
    """uint8 [rows, bytes] as uint32 [rows, bytes / 4]."""
    return lax.bitcast_convert_type(plane.reshape(plane.shape[0], -1, 4), jnp.uint32)
