"""Which elements of an array each thread of a warpgroup has in a layout, worked out from its tiling in numpy."""

import itertools

import jax.experimental.pallas.mosaic_gpu as plgpu
import numpy as np


def places(layout, shape):
    """For each thread, register and element of a register: which element of the array it is, by the layout's tiling."""
    layout = layout.to_mgpu()
    array = np.arange(np.prod(shape)).reshape(shape)
    for tile in layout.tiling.tiles:
        kept, cut = array.shape[: array.ndim - len(tile)], array.shape[array.ndim - len(tile) :]
        outer = [size // part for size, part in zip(cut, tile, strict=True)]
        array = array.reshape(*kept, *itertools.chain(*zip(outer, tile, strict=True)))
        first = len(kept)
        array = array.transpose(*range(first), *range(first, array.ndim, 2), *range(first + 1, array.ndim, 2))
    threads = []
    for dims, times in ((layout.warp_dims, 4), (layout.lane_dims, 32)):
        sizes = [d.times if isinstance(d, plgpu.Replicated) else array.shape[d] for d in dims]
        assert np.prod(sizes) == times
        threads += list(zip(dims, sizes, strict=True))
    moved = [array.ndim + d for d, _ in threads if not isinstance(d, plgpu.Replicated)]
    vector = array.ndim + layout.vector_dim
    rest = [i for i in range(array.ndim) if i not in (*moved, vector)]
    array = array.transpose(*moved, *rest, vector)
    held = array.shape[len(moved) :]
    sizes = iter(array.shape[: len(moved)])
    spread = [1 if isinstance(d, plgpu.Replicated) else next(sizes) for d, _ in threads]
    array = np.broadcast_to(array.reshape(*spread, *held), [*(size for _, size in threads), *held])
    return array.reshape(128, -1, held[-1])
