"""Blocks of the four grouped formats: encoded, or copied word for word, as tiles of 128 columns.

Both kinds give planes with the bytes of `row-split-k128-v1` whatever the row length (see `ninfer_jax.convert.tiles`).
Specification: tensor-formats §7, storage-layouts (row-split-k128-v1), checkpoint-sources (GGUF Q8_0).
"""

from typing import Any

import numpy as np

from ninfer_jax.convert.blocks import row_bytes
from ninfer_jax.convert.devices import DeviceMesh, padded_rows
from ninfer_jax.convert.failures import raise_encode_error
from ninfer_jax.convert.programs import errors_program, pack_program, quantize_program
from ninfer_jax.convert.tiles import TILE, tile_rows, tiles_per_row, untile_planes
from ninfer_jax.convert.totals import ErrorTotals
from ninfer_jax.errors import FormatError
from ninfer_jax.formats import GroupedFormat, get_format
from ninfer_jax.recipes import TensorSpec, WordSource
from ninfer_jax.words import GroupedWords


class GroupedEncode:
    """Quantize and pack: `planes = pack(quantize(x))` (MAXABS_F16_RECIP_RNE_V1); error sums where `measured`."""

    def __init__(self, spec: TensorSpec, mesh: DeviceMesh, block_bytes: int, measured: bool) -> None:
        self.spec = spec
        self.measured = measured
        self.mesh = mesh
        self.columns = spec.shape[1]
        self.full = full_tiles(spec, block_bytes)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Source values of the rows as zero-padded tiles."""
        block = source_block(self.spec, start, stop)
        tiles = (stop - start) * tiles_per_row(self.columns)
        return tile_rows(block, padded_rows(tiles, self.full, self.mesh.size, width=TILE))

    def launch(self, data: np.ndarray) -> Any:
        """Start quantize, pack and the error sums."""
        values = self.mesh.put(data)
        words, ok = quantize_program(self.mesh, self.spec.format)(values)
        planes = pack_program(self.mesh, self.spec.format)(words)
        sums = errors_program(self.mesh, self.spec.format)(values, words) if self.measured else None
        return planes, ok, sums

    def collect(self, start: int, stop: int, result: Any) -> tuple[Any, ErrorTotals]:
        """Planes of the rows; a refused value or scale is explained in the tensor's coordinates."""
        planes, ok, sums = result
        if not np.asarray(ok).all():
            raise_encode_error(self.spec, start, stop)
        tiles = (stop - start) * tiles_per_row(self.columns)
        return untile_planes(planes, stop - start, self.columns), ErrorTotals.of_rows(sums, tiles)


class GroupedCopy:
    """Pack words that a quantized checkpoint already holds: `planes = pack(words)`."""

    def __init__(self, spec: TensorSpec, mesh: DeviceMesh, block_bytes: int) -> None:
        self.spec = spec
        self.mesh = mesh
        self.columns = spec.shape[1]
        self.full = full_tiles(spec, block_bytes)

    def read(self, start: int, stop: int) -> GroupedWords:
        """Words of the rows as zero-padded tiles."""
        rows, spec = self.spec.rows, get_format(self.spec.format)
        if not isinstance(rows, WordSource) or not isinstance(spec, GroupedFormat):
            raise FormatError(f"tensor {self.spec.name!r} has no {self.spec.format} words to copy; name an encoder")
        words = rows.read_words(start, stop)
        used = (stop - start) * tiles_per_row(self.columns)
        tiles = padded_rows(used, self.full, self.mesh.size, width=TILE)
        scales = tile_rows(np.asarray(words.scales), tiles, width=TILE // spec.group_size)
        return GroupedWords(tile_rows(np.asarray(words.codes), tiles), scales)

    def launch(self, data: GroupedWords) -> Any:
        """Start packing."""
        return pack_program(self.mesh, self.spec.format)(self.mesh.put(data))

    def collect(self, start: int, stop: int, result: Any) -> tuple[Any, ErrorTotals]:
        """Planes of the rows; nothing was rounded."""
        return untile_planes(result, stop - start, self.columns), ErrorTotals()


def full_tiles(spec: TensorSpec, block_bytes: int) -> int:
    """Tiles of a full block: those of its rows, at least those of one row."""
    element = row_bytes(spec) / spec.shape[1]
    return max(tiles_per_row(spec.shape[1]), int(block_bytes / (element * TILE)))


def source_block(spec: TensorSpec, start: int, stop: int) -> np.ndarray:
    """Values of the rows; float64 is rounded to float32, and what overflows is refused by the encoder."""
    block = spec.rows.read(start, stop)
    if block.dtype == np.float64:
        with np.errstate(over="ignore"):
            return block.astype(np.float32)
    return block
