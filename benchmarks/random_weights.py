"""Random packed weights as `QuantizedTensor`s, made directly in packed form: no float copy ever exists.

The words come from packed_weights; this adds the package's own planes types, stacked layers and direct tensors.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.packed_weights import random_planes
from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.formats import BlockScaledFormat, GroupedFormat, get_format
from ninfer_jax.ops.mosaic_gpu import KINDS
from ninfer_jax.planes import GroupedPlanes, NVFP4Planes, QuantizedPlanes, RowScaledPlanes

_DENSE_ROWS = 512
#: Canonical format name of each kind of kernel weight.
FORMATS_OF_KINDS = {kind: name for name, kind in KINDS.items()}


def random_host_planes(format: str, n: int, k: int, seed: int = 0) -> QuantizedPlanes:
    """NumPy planes of an [n, k] weight of random legal words."""
    made = random_planes(KINDS[format], n, k, seed)
    spec = get_format(format)
    if isinstance(spec, GroupedFormat):
        return GroupedPlanes(made.codes, made.high, made.scales)  # type: ignore[arg-type]
    if isinstance(spec, BlockScaledFormat):
        return NVFP4Planes(made.codes, made.scales, np.asarray(made.divisor))  # type: ignore[arg-type]
    return RowScaledPlanes(made.codes, made.scales)  # type: ignore[arg-type]


def random_weight(format: str, n: int, k: int, layers: int | None = None, seed: int = 0) -> QuantizedTensor:
    """A packed weight on the default device; with `layers`, as many copies of it along a leading axis.

    Args:
        format: canonical name of a quantized format.
        n: rows.
        k: columns.
        layers: how many to stack; each lies in memory of its own.
        seed: of the random words.
    """
    planes = random_host_planes(format, n, k, seed)
    place = jnp.asarray if layers is None else lambda plane: jnp.repeat(jnp.asarray(plane)[None], layers, axis=0)
    return QuantizedTensor(jax.tree.map(place, planes), format, k)


def random_dense(n: int, k: int, layers: int | None = None, seed: int = 0) -> jax.Array:
    """A bfloat16 weight, or as many as `layers`: normal values of deviation 0.02, a block of rows repeated."""
    return _normal_rows(jax.random.key(seed), (*(() if layers is None else (layers,)), n, k))


@partial(jax.jit, static_argnames="shape")
def _normal_rows(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    n, k = shape[-2:]
    rows = min(n, _DENSE_ROWS)
    block = 0.02 * jax.random.normal(key, (rows, k), jnp.bfloat16)
    return jnp.broadcast_to(jnp.tile(block, (-(-n // rows), 1))[:n], shape)
