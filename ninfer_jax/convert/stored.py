"""Row blocks of a stored tensor, read for the device: what verification, export and comparison have in common.

Rows come as views of the mapped artifact; padded copies go to the device in the few shapes that programs are compiled
for, and pages that were read are let go, so that memory stays bounded. Specification: storage-layouts (row views).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ninfer_jax.container import Artifact, TensorObject
from ninfer_jax.convert.devices import DeviceMesh, padded_rows
from ninfer_jax.convert.tiles import TILE, pad_rows, tile_planes, tiles_per_row
from ninfer_jax.formats import DirectFormat, get_format
from ninfer_jax.planes import GroupedPlanes, NVFP4Planes, Planes, RowScaledPlanes


class StoredRows:
    """The rows of one stored tensor.

    Args:
        artifact: the open artifact.
        stored: the tensor.
        mesh: devices to lay row blocks over.
        block_bytes: payload bytes of a full block.

    Attributes:
        direct: True for a direct tensor, which has words but no codes.
        columns: weights in a row.
        program_columns: weights in a row of the padded planes: those of a tile for grouped formats.
        step: rows of a full block.
    """

    def __init__(self, artifact: Artifact, stored: TensorObject, mesh: DeviceMesh, block_bytes: int) -> None:
        self.artifact = artifact
        self.stored = stored
        self.mesh = mesh
        self.category = get_format(stored.format).category
        self.direct = isinstance(get_format(stored.format), DirectFormat)
        geometry = stored.geometry
        self.rows, self.row_block = geometry.rows, geometry.row_block
        self.columns = stored.shape[-1] if stored.shape else 1
        self.program_columns = TILE if self.category == "grouped" else self.columns
        row_bytes = max(1, stored.nbytes // self.rows)
        self.step = max(1, block_bytes // (row_bytes * self.row_block)) * self.row_block

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Row ranges of the blocks, in order."""
        for start in range(0, self.rows, self.step):
            yield start, min(start + self.step, self.rows)

    def planes(self, start: int, stop: int) -> Planes:
        """Planes of rows [start, stop), as views of the file."""
        return self.artifact.row_planes(self.stored.name, start, stop)

    def padded(self, start: int, stop: int) -> Planes:
        """Padded copies of the planes of a quantized tensor's rows, for the programs."""
        planes = self.planes(start, stop)
        count = stop - start
        if isinstance(planes, GroupedPlanes):
            tiles = count * tiles_per_row(self.columns)
            full = self.step * tiles_per_row(self.columns)
            padded: Planes = tile_planes(planes, self.columns, padded_rows(tiles, full, self.mesh.size, width=TILE))
        elif isinstance(planes, NVFP4Planes):
            rows = padded_rows(count, self.step, self.row_block * self.mesh.size, width=self.columns)
            padded = NVFP4Planes(
                pad_rows(planes.codes, rows), pad_rows(planes.scales, rows // self.row_block), np.array(planes.divisor)
            )
        elif isinstance(planes, RowScaledPlanes):
            rows = padded_rows(count, self.step, self.mesh.size, width=self.columns)
            padded = RowScaledPlanes(pad_rows(planes.codes, rows), pad_rows(planes.scales, rows))
        else:
            padded = np.array(planes)
        self.artifact.release(self.stored.name)
        return padded

    def values(self, decoded: Any, start: int, stop: int) -> np.ndarray:
        """Decoded rows without padding: float32 [stop - start, columns]."""
        host = np.asarray(decoded)
        if self.category != "grouped":
            return host[: stop - start]
        used = (stop - start) * tiles_per_row(self.columns)
        return host[:used].reshape(stop - start, -1)[:, : self.columns]
