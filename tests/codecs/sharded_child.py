"""Run by test_sharded.py under eight virtual CPU devices: every encoder and decoder, sharded by rows and by columns.

Prints one line a combination; any difference from the unsharded words is an error.
"""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ninfer_jax.codecs import dequantize, try_quantize
from tests.codecs.sources import bits, wild_f32

FORMATS = ["Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S", "FP8_E4M3FN_ROW_BF16S", "NVFP4"]
MESHES = {"rows": ((8, 1), 128), "columns, groups cut in parts": ((2, 4), 160)}


def check(format: str, shape: tuple[int, int], columns: int) -> None:
    """Encode and decode on a mesh, and compare with one device."""
    x = wild_f32(np.random.default_rng(columns), (64, columns), 0x48DFF200)
    encode = jax.jit(try_quantize, static_argnames="format")
    decode = jax.jit(dequantize, static_argnames="format")
    expected, _ = encode(x, format=format)
    mesh = Mesh(np.array(jax.devices()).reshape(shape), ("rows", "columns"))
    sharded = jax.device_put(x, NamedSharding(mesh, PartitionSpec("rows", "columns")))
    words, ok = encode(sharded, format=format)
    if not ok:
        raise ValueError(f"{format} on {shape}: a legal source was refused")
    jax.tree.map(np.testing.assert_array_equal, words, expected)
    np.testing.assert_array_equal(bits(decode(words, format=format)), bits(decode(expected, format=format)))
    x[63, columns - 1] = np.nan
    if encode(jax.device_put(x, sharded.sharding), format=format)[1]:
        raise ValueError(f"{format} on {shape}: NaN in the last shard was not seen")


def main() -> None:
    """Check every format on every mesh."""
    if jax.device_count() != 8:
        raise RuntimeError(f"{jax.device_count()} devices, 8 are needed")
    for name, (shape, columns) in MESHES.items():
        for format in FORMATS:
            check(format, shape, columns)
            print(f"{format} sharded by {name}: equal")


if __name__ == "__main__":
    main()
