"""A 1-D mesh of devices that row blocks are laid over, and the few row counts that programs are compiled for.

No row depends on another, so every device runs the same program on its share of a block and the bytes do not depend
on the number of devices. This module leaves out the programs (`ninfer_jax.convert.programs`).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from ninfer_jax.errors import ConversionError

Devices: TypeAlias = Sequence[Any]
"""JAX devices."""

_ROWS = "rows"
SMALLEST_ELEMENTS = 1 << 17
"""Blocks are not compiled for less than about this many elements, which take about a millisecond."""


class DeviceMesh:
    """A 1-D mesh of devices over which row blocks are laid.

    Args:
        devices: the devices to use; all local devices where None.

    Raises:
        ConversionError: an empty list of devices.
    """

    def __init__(self, devices: Devices | None = None) -> None:
        self.devices = tuple(devices) if devices is not None else tuple(jax.local_devices())
        if not self.devices:
            raise ConversionError("devices = () names no device; give at least one, or None for all local ones")
        self.mesh = Mesh(np.array(self.devices), (_ROWS,))
        self._sharded = NamedSharding(self.mesh, P(_ROWS))
        self._replicated = NamedSharding(self.mesh, P())

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.devices)

    def __hash__(self) -> int:
        return hash(self.devices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and self.devices == other.devices

    def put(self, tree: Any) -> Any:
        """Lay the leading axis of every array over the devices."""
        return jax.device_put(tree, self._sharded)

    def replicate(self, tree: Any) -> Any:
        """Copy every array to all devices."""
        return jax.device_put(tree, self._replicated)

    def compile(self, function: Callable[..., Any], *, sharded: int = 1, replicated: int = 0) -> Callable[..., Any]:
        """Jit `function` over shares of rows.

        Args:
            function: takes `sharded` trees of rows, then `replicated` trees that are whole on every device.
            sharded: number of its arguments that are split by rows.
            replicated: number of its arguments after them.
        """
        specs = (P(_ROWS),) * sharded + (P(),) * replicated
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=P(_ROWS), check_vma=False)
        shardings = (self._sharded,) * sharded + (self._replicated,) * replicated
        return jax.jit(mapped, in_shardings=shardings, out_shardings=self._sharded)


def padded_rows(rows: int, full: int, quantum: int, *, width: int) -> int:
    """Smallest of the few row counts that programs are compiled for which holds `rows`.

    The counts are `full`, a quarter of it and so on, but nothing so small that compiling for it would not pay.

    Args:
        rows: rows in the block.
        full: rows of a full block of this kind.
        quantum: row counts are multiples of it.
        width: elements in a row.
    """
    smallest = max(1, SMALLEST_ELEMENTS // width)
    size = -(-max(full, smallest) // quantum) * quantum
    if rows > size:
        return -(-rows // quantum) * quantum
    while size // 4 >= max(rows, quantum, smallest):
        size = -(-(size // 4) // quantum) * quantum
    return size
