"""Blocks of the formats whose planes keep their rows: FP8 with row scales and NVFP4, encoded or copied word for word.

Programs are compiled per row length here, because the scale of a whole row, or the 128 x 4 tiling of scales, does not
allow rows to be cut. An NVFP4 encoder needs the maximum of the whole matrix, found in a first pass over its rows.
Specification: tensor-formats §3.3, §3.4; storage-layouts (blockscale-k16-m128x4-v1, row-scale-v1).
"""

from typing import Any

import numpy as np

from ninfer_jax.codecs import nvfp4_divisor
from ninfer_jax.convert.blocks import object_blocks, row_bytes
from ninfer_jax.convert.devices import DeviceMesh, padded_rows
from ninfer_jax.convert.failures import raise_encode_error
from ninfer_jax.convert.programs import (
    amax_program,
    block_scaled_errors_program,
    block_scaled_pack_program,
    block_scaled_quantize_program,
    errors_program,
    quantize_program,
)
from ninfer_jax.convert.tiles import pad_rows
from ninfer_jax.convert.totals import ErrorTotals
from ninfer_jax.convert.work_grouped import source_block
from ninfer_jax.errors import FormatError
from ninfer_jax.layouts import pack
from ninfer_jax.planes import NVFP4Planes, RowScaledPlanes
from ninfer_jax.recipes import TensorSpec, WordSource
from ninfer_jax.words import NVFP4Words, RowScaledWords

_INFINITY_WORD = 0x7F800000
_SCALE_TILE_ROWS = 128


class RowScaledEncode:
    """Quantize FP8 rows: `planes = pack(quantize(x))` (FP8_ROW_MAXABS_BF16_V1); error sums where `measured`."""

    quantum = 1

    def __init__(self, spec: TensorSpec, mesh: DeviceMesh, block_bytes: int, measured: bool) -> None:
        self.spec = spec
        self.measured = measured
        self.mesh = mesh
        self.block_bytes = block_bytes
        self.full = max(1, block_bytes // row_bytes(spec))

    def read(self, start: int, stop: int) -> np.ndarray:
        """Source values of the rows, padded with rows of zeros."""
        rows = padded_rows(stop - start, self.full, self.quantum * self.mesh.size, width=self.spec.shape[1])
        return pad_rows(source_block(self.spec, start, stop), rows)

    def launch(self, data: np.ndarray) -> Any:
        """Start quantize, pack and the error sums."""
        values = self.mesh.put(data)
        words, ok = quantize_program(self.mesh, self.spec.format)(values)
        sums = errors_program(self.mesh, self.spec.format)(values, words) if self.measured else None
        return pack(words, self.spec.format), ok, sums

    def collect(self, start: int, stop: int, result: Any) -> tuple[Any, ErrorTotals]:
        """Planes of the rows; a refused value or scale is explained in the tensor's coordinates."""
        planes, ok, sums = result
        if not np.asarray(ok).all():
            raise_encode_error(self.spec, start, stop)
        count = stop - start
        kept = RowScaledPlanes(np.asarray(planes.codes)[:count], np.asarray(planes.scales)[:count])
        return kept, ErrorTotals.of_rows(sums, count)


class BlockScaledEncode(RowScaledEncode):
    """Quantize NVFP4 rows with the divisor of their whole matrix (NVFP4_MAXABS_V1)."""

    quantum = _SCALE_TILE_ROWS

    def __init__(self, spec: TensorSpec, mesh: DeviceMesh, block_bytes: int, measured: bool) -> None:
        super().__init__(spec, mesh, block_bytes, measured)
        self.full = max(_SCALE_TILE_ROWS, self.full // _SCALE_TILE_ROWS * _SCALE_TILE_ROWS)
        self._divisor: np.ndarray | None = None

    def read(self, start: int, stop: int) -> np.ndarray:
        """Source values of the rows; the first call also scans the matrix for its divisor."""
        if self._divisor is None:
            self._divisor = self._find_divisor()
        return super().read(start, stop)

    def launch(self, data: np.ndarray) -> Any:
        """Start quantize, pack and the error sums."""
        mesh, name = self.mesh, self.spec.format
        values, divisor = mesh.put(data), mesh.replicate(self._divisor)
        parts, ok = block_scaled_quantize_program(mesh, name)(values, divisor)
        planes = block_scaled_pack_program(mesh, name)(*parts, divisor)
        sums = block_scaled_errors_program(mesh, name)(values, parts, divisor) if self.measured else None
        return planes, ok, sums

    def collect(self, start: int, stop: int, result: Any) -> tuple[Any, ErrorTotals]:
        """Planes of the rows, each block with the divisor of the matrix."""
        (codes, scales), ok, sums = result
        if not np.asarray(ok).all():
            raise_encode_error(self.spec, start, stop)
        return block_scaled_rows(codes, scales, self._divisor, stop - start), ErrorTotals.of_rows(sums, stop - start)

    def _find_divisor(self) -> np.ndarray:
        largest = np.uint32(0)
        for block in object_blocks(0, self.spec, self.block_bytes):
            data = super().read(block.start, block.stop)
            maximum = np.asarray(amax_program(self.mesh)(self.mesh.put(data))).max()
            if maximum >= _INFINITY_WORD:
                raise_encode_error(self.spec, block.start, block.stop)
            largest = max(largest, maximum)
        return np.asarray(nvfp4_divisor(np.asarray(largest)))


class RowScaledCopy:
    """FP8 words as they are: the planes of `row-scale-v1` are the words."""

    def __init__(self, spec: TensorSpec, mesh: DeviceMesh, block_bytes: int) -> None:
        self.spec = spec

    def read(self, start: int, stop: int) -> RowScaledWords:
        """Words of the rows."""
        words = _words(self.spec, start, stop)
        return RowScaledWords(np.asarray(words.codes), np.asarray(words.scales))

    def launch(self, data: RowScaledWords) -> Any:
        """Nothing to compute."""
        return pack(data, self.spec.format)

    def collect(self, start: int, stop: int, result: Any) -> tuple[Any, ErrorTotals]:
        """The words as planes."""
        return result, ErrorTotals()


class BlockScaledCopy:
    """NVFP4 words copied bit for bit: nibbles joined, scales swizzled once, the divisor as it is."""

    def __init__(self, spec: TensorSpec, mesh: DeviceMesh, block_bytes: int) -> None:
        self.spec = spec
        self.mesh = mesh
        self.full = max(_SCALE_TILE_ROWS, block_bytes // row_bytes(spec) // _SCALE_TILE_ROWS * _SCALE_TILE_ROWS)
        self._divisor: np.ndarray | None = None

    def read(self, start: int, stop: int) -> NVFP4Words:
        """Words of the rows, padded with rows of zeros."""
        words = _words(self.spec, start, stop)
        rows = padded_rows(stop - start, self.full, _SCALE_TILE_ROWS * self.mesh.size, width=self.spec.shape[1])
        self._divisor = np.array(words.divisor)
        codes, scales = (pad_rows(np.asarray(part), rows) for part in (words.codes, words.scales))
        return NVFP4Words(codes, scales, self._divisor)

    def launch(self, data: NVFP4Words) -> Any:
        """Start packing."""
        program = block_scaled_pack_program(self.mesh, self.spec.format)
        return program(self.mesh.put(data.codes), self.mesh.put(data.scales), self.mesh.replicate(data.divisor))

    def collect(self, start: int, stop: int, result: Any) -> tuple[Any, ErrorTotals]:
        """Planes of the rows."""
        codes, scales = result
        return block_scaled_rows(codes, scales, self._divisor, stop - start), ErrorTotals()


def block_scaled_rows(codes: Any, scales: Any, divisor: Any, rows: int) -> NVFP4Planes:
    """Planes of the first `rows` rows; a scale tile holds 128 rows."""
    return NVFP4Planes(
        np.asarray(codes)[:rows], np.asarray(scales)[: rows // _SCALE_TILE_ROWS], np.asarray(divisor, np.uint32)
    )


def _words(spec: TensorSpec, start: int, stop: int) -> Any:
    if not isinstance(spec.rows, WordSource):
        raise FormatError(f"tensor {spec.name!r} has no {spec.format} words to copy; name an encoder in the recipe")
    return spec.rows.read_words(start, stop)
