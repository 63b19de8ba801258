"""Banks of experts over eight devices: the ragged product, and weights mapped by vmap; no bank is ever gathered."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.errors import LayoutError
from ninfer_jax.ops import grouped_matmul, matmul
from tests.ops import stand_in
from tests.ops.mesh import mesh_of, put, started
from tests.ops.test_transformations import stack
from tests.ops.weights import activations, exact, random_weight, relative_l2

EXPERTS, N, K = 8, 16, 512
SIZES = np.array([5, 0, 2, 1, 7, 0, 3, 4])  # 22 of the 24 rows
M = 24
# The split of the bank [E, N, K], that of the rows of x, and what may be communicated.
SPLITS: dict[str, tuple[PartitionSpec, Any, set[str]]] = {
    "experts": (PartitionSpec("a"), None, {"all-reduce"}),
    "rows": (PartitionSpec(None, "a"), None, set()),
    "columns": (PartitionSpec(None, None, "a"), None, {"all-reduce"}),
    "rows of x": (PartitionSpec(), "a", set()),
    "experts and rows of x": (PartitionSpec("a"), "b", {"all-reduce"}),
    "experts and rows": (PartitionSpec("a", "b"), None, {"all-reduce"}),
}


def ragged_reference(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Each row times its expert, zeros behind the last group."""
    y, rows = np.zeros((x.shape[0], values.shape[1])), SIZES.sum()
    y[:rows] = np.einsum("mk,mnk->mn", x[:rows], values[np.repeat(np.arange(EXPERTS), SIZES)])
    return y


def ragged(bank: QuantizedTensor, values: np.ndarray, mesh: Mesh, split: str) -> None:
    """Values, gradient, the sharding of the result, and what is communicated."""
    spec, batch, allowed = SPLITS[split]
    _, rows, columns = (*spec, None, None, None)[:3]
    x = activations(M, K)
    arguments = (jax.device_put(x, NamedSharding(mesh, PartitionSpec(batch, columns))), put(bank, mesh, spec))
    compiled = jax.jit(grouped_matmul).lower(*arguments, SIZES).compile()
    y = compiled(*arguments, SIZES)
    expected = ragged_reference(x, values)
    assert relative_l2(np.asarray(y), expected) <= 1e-5
    assert not np.asarray(y)[SIZES.sum() :].any()
    assert started(compiled.as_text()) == allowed, (split, started(compiled.as_text()))
    assert (*y.sharding.spec, None, None)[:2] == (batch, rows)
    if AxisType.Explicit not in mesh.axis_types:
        loss = lambda x, w: jnp.sum(grouped_matmul(x, w, SIZES) ** 2)
        gradient = jax.jit(jax.grad(loss))(*arguments)
        reference = np.zeros((M, K))
        owner = np.repeat(np.arange(EXPERTS), SIZES)
        reference[: SIZES.sum()] = 2 * np.einsum("mn,mnk->mk", expected[: SIZES.sum()], values[owner])
        assert relative_l2(np.asarray(gradient), reference) <= 1e-5


def mapped(bank: QuantizedTensor, values: np.ndarray, kind: AxisType, implementation: str) -> None:
    """vmap over experts split over the mesh: every device multiplies by its own."""
    mesh = mesh_of(kind, a=8)
    x = activations(EXPERTS, K).reshape(EXPERTS, 1, K)
    arguments = (jax.device_put(x, NamedSharding(mesh, PartitionSpec("a"))), put(bank, mesh, PartitionSpec("a")))
    compiled = jax.jit(jax.vmap(lambda x, w: matmul(x, w, implementation=implementation))).lower(*arguments).compile()
    y = compiled(*arguments)
    assert relative_l2(np.asarray(y), np.einsum("emk,enk->emn", x, values)) <= 1e-5
    assert started(compiled.as_text()) == set(), started(compiled.as_text())
    assert tuple(y.sharding.spec)[:1] == ("a",)


def refused(bank: QuantizedTensor) -> None:
    """A bank cut through its blocks; the message comes at once where nothing is traced."""
    cut = NamedSharding(mesh_of(a=8), PartitionSpec(None, None, "a"))
    planes = jax.tree.map(lambda leaf: jax.device_put(leaf, cut), bank)
    with pytest.raises(LayoutError, match="possible shard counts: 1, 2, 4"):
        grouped_matmul(activations(M, K), planes, SIZES)


def cases() -> Iterator[str]:
    """Run every case, yielding its name."""
    experts = [random_weight("Q4G64_F16S", N, K, seed) for seed in range(EXPERTS)]
    bank, values = stack(*experts), np.stack([exact(w) for w in experts])
    for split in SPLITS:
        ragged(bank, values, mesh_of(a=4, b=2), split)
        yield f"ragged {split}"
    for split in ("experts", "rows", "columns"):
        ragged(bank, values, mesh_of(AxisType.Explicit, a=4, b=2), split)
        yield f"ragged explicit {split}"
    with pytest.MonkeyPatch.context() as monkeypatch:
        kernel = stand_in.register(monkeypatch)
        for kind, implementation in (
            (AxisType.Auto, "xla"),
            (AxisType.Auto, "stand_in"),
            (AxisType.Explicit, "stand_in"),
        ):
            mapped(bank, values, kind, implementation)
            yield f"mapped {kind.name} {implementation}"
        assert {(p.m, p.n, p.k) for p in kernel.seen} == {(1, N, K)}
    refused(bank)
    yield "refused"
