"""Packed weights as pytrees, and loading them from artifacts without repacking (storage-layouts)."""

from ninfer_jax.arrays import _export as _export
from ninfer_jax.arrays._geometry import quantized_format as quantized_format
from ninfer_jax.arrays.loading import load as load, nest as nest
from ninfer_jax.arrays.quantized_tensor import QuantizedTensor as QuantizedTensor
from ninfer_jax.arrays.sharding import (
    partition_specs as partition_specs,
    shard_counts as shard_counts,
    shardings as shardings,
)
from ninfer_jax.arrays.validation import validate as validate
