"""What the plans of all kernels have in common: a product, the configurations worth trying for it, and the choice.

    heuristic_config(product) = the candidate with the smallest predicted time

A plan gives a `Planner` three functions of its own: which configurations there are, which of them fit, and how long one
takes, roughly. Plans also share the numbers here: bytes every launch moves, cycles of the tensor cores, when K is worth
splitting, how a tile lies in shared memory. Leaves out what a configuration means to a kernel (each kernel's plan) and
measured tables, which go first (autotune). Source: gpu-kernels.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import jax.experimental.pallas.mosaic_gpu as plgpu

from pallas_kernels.errors import KernelConfigError
from pallas_kernels.hardware import Hardware
from pallas_kernels.planes import plane_bytes
from pallas_kernels.tiling import weight_kind

#: Rows of the scale tile NVFP4 stores, and 32-bit words of one tile.
SCALE_TILE_ROWS, SCALE_TILE_WORDS = 128, 128
#: Bytes of shared memory left free for barriers, and what the driver or the compiler keeps of it for each block.
SMEM_RESERVE = 2048

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class Product:
    """y[m, n] = x[m, k] @ W[n, k].T on a device: all that the choice of a launch depends on.

    Attributes:
      kind: a name of `WEIGHT_KINDS`.
      m: tokens.
      n: rows of the weight ([gate; up] for a gated product).
      k: columns of the weight.
      hardware: the device.
      gated: whether the product is a gated one.
      out_bytes: bytes of an element of the result.
    """

    kind: str
    m: int
    n: int
    k: int
    hardware: Hardware
    gated: bool = False
    out_bytes: int = 2

    @property
    def stored_k(self) -> int:
        """Columns as stored."""
        return weight_kind(self.kind).k_padded(self.k)

    @property
    def traffic(self) -> int:
        """Bytes of the weight, x and the result, each once."""
        columns = self.n // 2 if self.gated else self.n
        return plane_bytes(self.kind, self.n, self.k) + 2 * self.m * self.k + self.out_bytes * self.m * columns

    def split_traffic(self, split_k: int) -> int:
        """Bytes of writing and reading the float32 sums of so many parts of K; none where there is one part."""
        return 2 * 4 * self.m * self.n * split_k if split_k > 1 else 0


@dataclasses.dataclass(frozen=True)
class Planner(Generic[Config]):
    """Chooses the launches of one kernel.

    Attributes:
      alternatives: product -> groups of configurations; of each group the first that fits is worth trying.
      check_config: (configuration, product); raises `KernelConfigError` where the kernel cannot run it.
      predicted_seconds: (configuration, product) -> a rough time of a launch.
    """

    alternatives: Callable[[Product], Iterable[Iterable[Config]]]
    check_config: Callable[[Config, Product], None]
    predicted_seconds: Callable[[Config, Product], float]

    def fits(self, config: Config, product: Product) -> bool:
        """Whether the kernel can run a configuration."""
        try:
            self.check_config(config, product)
        except KernelConfigError:
            return False
        return True

    def candidate_configs(self, product: Product) -> tuple[Config, ...]:
        """Every configuration worth trying: the first of each group of alternatives that fits."""
        first = lambda group: next((config for config in group if self.fits(config, product)), None)
        return tuple(config for config in map(first, self.alternatives(product)) if config is not None)

    def heuristic_config(self, product: Product) -> Config:
        """The candidate with the smallest predicted time, of several the first."""
        return _cheapest(self, product)


@functools.lru_cache(maxsize=4096)
def _cheapest(planner: Planner[Config], product: Product) -> Config:
    return min(planner.candidate_configs(product), key=lambda config: planner.predicted_seconds(config, product))


def tile_sizes(sizes: Sequence[int], m: int) -> tuple[int, ...]:
    """The ascending sizes up to the first that holds m tokens: larger ones would compute nothing more."""
    enough = next((size for size in sizes if size >= m), sizes[-1])
    return tuple(size for size in sizes if size <= enough)


def split_pays(product: Product, split_k: int, tiles: int, block_k: int) -> bool:
    """Whether splitting K may pay: tiles alone do not keep the device busy, and each part has a few steps."""
    steps = -(-product.stored_k // block_k)
    return split_k == 1 or (tiles * split_k <= 2 * product.hardware.sms and steps >= 4 * split_k)


def tensor_cycles(multiply_adds: float, hardware: Hardware) -> float:
    """Cycles the tensor cores of one multiprocessor take for so many multiply-adds."""
    return 2.0 * multiply_adds / (hardware.bf16_flops / hardware.sms / hardware.clock_hz)


def out_tile(columns: int, element_bytes: int) -> int:
    """Columns of a tile of y: the widest of 128, 64 and 32 bytes that divides them, so that y needs no padding."""
    widths = [swizzle // element_bytes for swizzle in (128, 64, 32)]
    return next((width for width in widths if columns % width == 0), widths[-1])


def swizzle_of(row_bytes: int) -> int:
    """Widest swizzle that divides a row of a shared memory tile, or 0 where none does."""
    return next((s for s in (128, 64, 32) if row_bytes % s == 0), 0)


def swizzled(row_bytes: int, element_bits: int) -> tuple[Any, ...]:
    """The transforms of a shared memory tile with rows of that many bytes: the widest swizzle that divides them."""
    swizzle = swizzle_of(row_bytes)
    if not swizzle:
        return ()
    return (plgpu.TilingTransform((8, swizzle * 8 // element_bits)), plgpu.SwizzleTransform(swizzle))
