"""`take_rows` by name: the choice and its reasons, transformations of a kernel-like gather, and lowering for a GPU."""

import sys
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_batching import custom_vmap

from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.errors import UnsupportedError
from ninfer_jax.ops import _taking, dequantize, gathers, take_rows
from ninfer_jax.ops.gathers import GATHERS, Gather, RowGather
from pallas_kernels import H100
from pallas_kernels.mosaic_gpu import gather as kernel
from tests.ops.test_mosaic_gpu import GPU, lowered, needs_kernels
from tests.ops.test_rows import IDS, OUTSIDE, bits
from tests.ops.test_transformations import stack
from tests.ops.weights import FORMATS, exact, random_weight

rows_module = sys.modules["ninfer_jax.ops.rows"]


class StandIn(RowGather):
    """Runs anywhere, by decoding the whole table, and can be neither mapped nor differentiated, as a kernel."""

    name: ClassVar[str] = "stand_in"

    def supports(self, gather: Gather, device: Any) -> str | None:
        return None

    def take(self, planes: Any, ids: jax.Array, gather: Gather) -> jax.Array:
        @custom_vmap
        def rows(planes: Any, ids: jax.Array) -> jax.Array:
            return dequantize(QuantizedTensor(planes, gather.format, gather.k))[ids].astype(gather.out_dtype)

        @rows.def_vmap
        def mapped(size: int, in_batched: Any, *arguments: Any) -> Any:
            raise AssertionError("a kernel was mapped")

        return jax.jit(rows)(planes, ids)


def register(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a stand-in; its name."""
    both = MappingProxyType({**GATHERS, StandIn.name: StandIn()})
    for module in (gathers, _taking, rows_module):
        monkeypatch.setattr(module, "GATHERS", both)
    return StandIn.name


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a registered stand-in."""
    return register(monkeypatch)


@pytest.mark.parametrize("name", ["mosaic_gpu", "triton"])
def test_a_kernel_that_cannot_run_says_why(name: str) -> None:
    w = random_weight("Q4G64_F16S", 128, 64)
    with pytest.raises(UnsupportedError, match=f"cannot take 6 rows of .*{name}: needs an NVIDIA GPU|{name}: needs an"):
        take_rows(w, IDS, implementation=name)
    np.testing.assert_array_equal(bits(take_rows(w, IDS, implementation=(name, "xla"))), bits(take_rows(w, IDS)))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match="unknown implementation 'cuda'; registered: mosaic_gpu, triton, xla"):
        take_rows(random_weight("Q4G64_F16S", 128, 64), IDS, implementation="cuda")


@pytest.mark.parametrize("format", FORMATS)
def test_a_named_gather_gives_the_same_rows(format: str, stand_in: str) -> None:
    w = random_weight(format, 256, 192)
    values = exact(w).astype(np.float32)
    take = lambda w, ids: take_rows(w, ids, implementation=stand_in)
    np.testing.assert_array_equal(bits(take(w, IDS)), bits(values[IDS]))
    np.testing.assert_array_equal(bits(jax.jit(take)(w, IDS)), bits(values[IDS]))
    np.testing.assert_array_equal(bits(jax.vmap(take, (None, 0))(w, IDS)), bits(values[IDS]))
    assert take(w, np.zeros((0,), np.int32)).shape == (0, 192)


@pytest.mark.parametrize("mode", ["fill", "clip", "wrap"])
def test_modes_are_the_same_by_name(mode: str, stand_in: str) -> None:
    w = random_weight("Q5G64_F16S", 128, 70)
    named = take_rows(w, OUTSIDE, mode=mode, implementation=stand_in)
    np.testing.assert_array_equal(np.asarray(named), np.asarray(take_rows(w, OUTSIDE, mode=mode)))


def test_nothing_is_differentiated_through_packed_rows(stand_in: str) -> None:
    w = random_weight("Q4G64_F16S", 128, 64)
    loss = lambda scale: jnp.sum(scale * take_rows(w, IDS, implementation=stand_in))
    assert jax.grad(loss)(2.0) == pytest.approx(float(jnp.sum(take_rows(w, IDS))), rel=1e-6)


def test_mapped_tables_need_xla(stand_in: str) -> None:
    tables = stack(random_weight("Q4G64_F16S", 128, 64), random_weight("Q4G64_F16S", 128, 64))
    take = lambda choice: jax.vmap(lambda w, ids: take_rows(w, ids, implementation=choice))(tables, IDS)
    with pytest.raises(UnsupportedError, match="vmap over tables"):
        take(stand_in)
    np.testing.assert_array_equal(bits(take((stand_in, "xla"))), bits(take(None)))


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H100 to trace and lower for."""
    monkeypatch.setattr(kernel, "visible_hardware", lambda: H100)
    monkeypatch.setattr(rows_module, "resolve_device", lambda device, x: GPU)


@needs_kernels
@pytest.mark.parametrize("format", ["Q6G64_F16S", "NVFP4"])
@pytest.mark.usefixtures("h100")
def test_rows_by_name_lower_to_the_kernel(format: str) -> None:
    w = random_weight(format, 256, 192)
    take: Callable[..., Any] = lambda ids: take_rows(w, ids, jnp.bfloat16, implementation="mosaic_gpu")
    for function in (take, jax.vmap(take)):
        assert "mosaic_gpu" in lowered(function, jax.ShapeDtypeStruct((4, 8), jnp.int32))
