"""The implementations of `take_rows` by name, and what each supports.

`xla` runs everywhere. The kernels have not run on a GPU, so that they are taken by name only. Row numbers are in range
here: what is to become of others is decided in `rows`. Leaves out transformations and shardings (`_taking`).
"""

import dataclasses
import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ninfer_jax import codecs
from ninfer_jax.arrays import quantized_format
from ninfer_jax.formats import BlockScaledFormat, GroupedFormat
from ninfer_jax.layouts import unpack
from ninfer_jax.ops.mosaic_gpu import KINDS, kernel_planes
from ninfer_jax.ops.registry import Choice, Device, device_text, first_supported
from ninfer_jax.words import NVFP4Words
from pallas_kernels import hardware_of


@dataclasses.dataclass(frozen=True)
class Gather:
    """Rows to take, as the implementations see them.

    Attributes:
        format: canonical name of the table's format.
        tokens: row numbers.
        n: rows of the table, elements.
        k: columns of the table, elements.
        out_dtype: dtype name of the rows.
    """

    format: str
    tokens: int
    n: int
    k: int
    out_dtype: str


class RowGather(ABC):
    """One way to take rows; stateless.

    Attributes:
        name: what it is asked for by.
        by_name_only: whether it is left out unless it is named.
    """

    name: ClassVar[str]
    by_name_only: ClassVar[bool] = True

    @abstractmethod
    def supports(self, gather: Gather, device: Device) -> str | None:
        """Why it cannot take the rows on the device, or None where it can."""

    @abstractmethod
    def take(self, planes: Any, ids: Array, gather: Gather) -> Array:
        """`y[t, k] = w[ids[t], k]` on local arrays, for ids in [0, n), in `gather.out_dtype`."""


class XlaRows(RowGather):
    """Gathers packed rows and decodes them, in plain JAX."""

    name: ClassVar[str] = "xla"
    by_name_only: ClassVar[bool] = False

    def supports(self, gather: Gather, device: Device) -> str | None:
        """Every format, shape, type and device."""
        return None

    def take(self, planes: Any, ids: Array, gather: Gather) -> Array:
        """`y[t, k] = w[ids[t], k]`, decoded in float32 and rounded once."""
        words = _words_of_rows(planes, ids, gather)
        return codecs.dequantize(words, gather.format)[:, : gather.k].astype(gather.out_dtype)


class KernelRows(RowGather):
    """A kernel of `pallas_kernels`: packed rows are decoded where they are read. Has not run on a GPU."""

    module: ClassVar[str]

    def supports(self, gather: Gather, device: Device) -> str | None:
        """What the kernel itself answers, on a GPU."""
        if device.platform not in ("gpu", "cuda"):
            return f"needs an NVIDIA GPU, the device is {device_text(device)}"
        try:
            kernels = importlib.import_module(self.module)
        except ImportError as error:
            return f"the kernel cannot be imported here: {error}"
        return kernels.gather_unsupported_reason(
            kind=KINDS[gather.format],
            tokens=gather.tokens,
            n=gather.n,
            k=gather.k,
            out_dtype=jnp.dtype(gather.out_dtype),
            hardware=hardware_of(device),
        )

    def take(self, planes: Any, ids: Array, gather: Gather) -> Array:
        """`y[t, k] = w[ids[t], k]` by the kernel, decoded in float32 and rounded once."""
        kernel = partial(
            importlib.import_module(self.module).take_rows,
            kind=KINDS[gather.format],
            n=gather.n,
            k=gather.k,
            out_dtype=jnp.dtype(gather.out_dtype),
        )
        # A program of its own: it keeps its constants to itself, and a partitioned function may have none.
        return jax.jit(kernel)(kernel_planes(planes), ids.astype(jnp.int32))


class MosaicGpuRows(KernelRows):
    """The Pallas kernel."""

    name: ClassVar[str] = "mosaic_gpu"
    module: ClassVar[str] = "pallas_kernels.mosaic_gpu"


class TritonRows(KernelRows):
    """The Triton kernel; needs the extra `triton`."""

    name: ClassVar[str] = "triton"
    module: ClassVar[str] = "pallas_kernels.triton"


GATHERS: Mapping[str, RowGather] = MappingProxyType({g.name: g for g in (MosaicGpuRows(), TritonRows(), XlaRows())})
"""Every implementation by name; always all of them."""


def choose_gather(gather: Gather, device: Device, choice: Choice) -> str:
    """The name of the implementation that takes the rows.

    Raises:
        UnsupportedError: for an unknown name, or where none of those asked for can run; with every reason.
    """
    what = f"take {gather.tokens} rows of {gather.format} [{gather.n}, {gather.k}] as {gather.out_dtype}"
    return first_supported(GATHERS, gather, device, choice, what)[0]


def _words_of_rows(planes: Any, ids: Array, gather: Gather) -> Any:
    """Words of the rows `ids`; the NVFP4 scales of a row are picked out of their tiles."""
    spec = quantized_format(gather.format)
    take = lambda plane: jnp.take(plane, ids, axis=0, mode="clip")
    if not isinstance(spec, BlockScaledFormat):
        rows = jax.tree.map(take, planes)
        return unpack(rows, gather.format, gather.k if isinstance(spec, GroupedFormat) else None)
    tile, row = ids // 128, ids % 128
    scales = jnp.asarray(planes.scales)[tile, :, row % 32, row // 32, :].reshape(ids.shape[0], -1)
    codes = take(planes.codes)
    pairs = jnp.stack([codes & 15, codes >> 4], axis=-1).reshape(ids.shape[0], -1)
    return NVFP4Words(pairs, scales, jnp.asarray(planes.divisor))
