"""Products over eight virtual CPU devices; run as a module by test_sharded with the device count set.

For every format: sharded arguments under jit, and `shard_map`, with rows and columns split. Epilogues, banks and rows
are in `sharded_epilogue`, `sharded_bank` and `sharded_rows`. Prints one line a case; the compiled programs must hold no
collective but the sum over a split of the columns.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ninfer_jax.arrays import QuantizedTensor, partition_specs, shardings
from ninfer_jax.errors import LayoutError, UnsupportedError
from ninfer_jax.ops import matmul
from tests.ops import sharded_bank, sharded_epilogue, sharded_rows
from tests.ops.mesh import COLLECTIVES, collectives, mesh_of, put
from tests.ops.weights import FORMATS, activations, exact, random_weight, relative_l2

SPLITS = {"rows": PartitionSpec("model", None), "columns": PartitionSpec(None, "model")}
DEEP = ("Q6G64_F16S", "NVFP4", "FP8_E4M3FN_ROW_BF16S")
"""One format for each kind of planes: explicit axes and gradients too, which depend on the kind alone."""
M = 2


def rows_of(w: QuantizedTensor) -> int:
    """Rows of x: both routes of the CPU are taken, and the quicker one to compile more often."""
    return M if w.format in DEEP else 1


def under_jit(w: QuantizedTensor, kind: AxisType, split: str) -> None:
    """Sharded arguments: the output's sharding, its values, the collectives, and the gradient."""
    mesh, spec = mesh_of(kind), SPLITS[split]
    x = activations(rows_of(w), w.k)
    w_sharded = put(w, mesh, spec)
    x_sharded = jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, spec[1])))
    compiled = jax.jit(matmul).lower(x_sharded, w_sharded).compile()
    y = compiled(x_sharded, w_sharded)
    assert tuple(y.sharding.spec) + (None,) * (2 - len(y.sharding.spec)) == (None, spec[0])
    assert relative_l2(np.asarray(y), x @ exact(w).T) <= 1e-5
    found = collectives(compiled.as_text())
    assert found == {name: int(name == "all-reduce" and split == "columns") for name in COLLECTIVES}, found
    if kind == AxisType.Auto and w.format in DEEP:
        gradient = jax.jit(jax.grad(lambda x, w: jnp.sum(matmul(x, w) ** 2)))(x_sharded, w_sharded)
        values = exact(w)
        assert relative_l2(np.asarray(gradient), 2 * (x @ values.T) @ values) <= 1e-5


def under_shard_map(w: QuantizedTensor, split: str) -> None:
    """The caller's own shards: no collective for rows, one psum for columns, written by the caller."""
    mesh, spec = mesh_of(AxisType.Auto), SPLITS[split]

    def body(x: jax.Array, w: QuantizedTensor) -> jax.Array:
        y = matmul(x, w)
        return y if split == "rows" else jax.lax.psum(y, "model")

    specs = (PartitionSpec(None, spec[1]), partition_specs(w, spec))
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(None, spec[0]))
    x = activations(rows_of(w), w.k)
    values = exact(w)
    if w.format not in DEEP:
        assert relative_l2(np.asarray(jax.jit(mapped)(x, w)), x @ values.T) <= 1e-5
        return
    y, pull = jax.vjp(jax.jit(lambda x: mapped(x, w)), jnp.asarray(x))
    assert relative_l2(np.asarray(y), x @ values.T) <= 1e-5
    assert relative_l2(np.asarray(pull(y)[0]), (x @ values.T) @ values) <= 1e-5


def data_parallel() -> None:
    """Rows of x split over one axis, rows of the weight over another."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    w, x = random_weight("Q4G64_F16S", 64, 128), activations(4, 128)
    w_sharded = put(w, mesh, PartitionSpec("model"))
    x_sharded = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    compiled = jax.jit(matmul).lower(x_sharded, w_sharded).compile()
    y = compiled(x_sharded, w_sharded)
    assert tuple(y.sharding.spec) == ("data", "model")
    assert not any(collectives(compiled.as_text()).values())
    assert relative_l2(np.asarray(y), x @ exact(w).T) <= 1e-5


def unchecked() -> None:
    """`shard_map` that does not track what varies: the shard of the columns is taken for a narrower weight."""
    w, x = random_weight("W8G32_F16S", 64, 1024), activations(1, 1024)
    specs = (SPLITS["columns"], partition_specs(w, SPLITS["columns"]))
    body = lambda x, w: jax.lax.psum(matmul(x, w), "model")
    mesh = mesh_of(AxisType.Auto)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    assert relative_l2(np.asarray(jax.jit(mapped)(x, w)), x @ exact(w).T) <= 1e-5


def laid_otherwise() -> None:
    """Typed shardings of x that are not what the weight asks for: x is moved, the weight is not."""
    mesh = mesh_of(AxisType.Explicit)
    w, x = random_weight("W8G32_F16S", 64, 1024), activations(8, 1024)
    values = exact(w)
    for split, x_spec in (("columns", PartitionSpec()), ("rows", PartitionSpec("model", None))):
        operands = jax.device_put(x, NamedSharding(mesh, x_spec)), put(w, mesh, SPLITS[split])
        compiled = jax.jit(matmul).lower(*operands).compile()
        assert relative_l2(np.asarray(compiled(*operands)), x @ values.T) <= 1e-5
        assert collectives(compiled.as_text())["all-gather"] == int(split == "rows")  # of x
        gradient = jax.jit(jax.grad(lambda x, w: jnp.sum(matmul(x, w) ** 2)))(*operands)
        assert (*gradient.sharding.spec, None, None)[:2] == (*x_spec, None, None)[:2]
        assert relative_l2(np.asarray(gradient), 2 * (x @ values.T) @ values) <= 1e-5


def refusals() -> None:
    """A split that cuts a block says which counts are possible, before and while compiling."""
    w = random_weight("Q4G64_F16S", 64, 512)
    expect(lambda: shardings(w, NamedSharding(mesh_of(AxisType.Auto), SPLITS["columns"])), LayoutError)
    with pytest.raises(UnsupportedError, match="split by a NamedSharding"):
        shardings(w, SPLITS["columns"])  # pyright: ignore[reportArgumentType]
    cut = NamedSharding(mesh_of(AxisType.Auto), SPLITS["columns"])
    planes = jax.tree.map(lambda leaf: jax.device_put(leaf, cut), w.planes)
    x = jax.device_put(activations(M, 512), cut)
    badly_placed = QuantizedTensor(planes, w.format, w.k)
    expect(lambda: jax.jit(matmul)(x, badly_placed), Exception)
    expect(lambda: matmul(x, badly_placed), LayoutError)
    specs = (SPLITS["columns"], partition_specs(w, SPLITS["columns"]))
    mapped = jax.shard_map(matmul, mesh=cut.mesh, in_specs=specs, out_specs=PartitionSpec())
    expect(lambda: mapped(activations(M, 512), w), LayoutError)


def expect(call: Callable[[], Any], kind: type[Exception]) -> None:
    """Raise unless the call fails naming the possible shard counts of 512 columns."""
    with pytest.raises(kind, match="1, 2, 4"):
        call()


def main() -> None:
    """Run every case."""
    assert jax.device_count() == 8
    for format in FORMATS:
        w = random_weight(format, 1024 if format == "NVFP4" else 64, 512 if format == "NVFP4" else 1024)
        for split in SPLITS:
            kinds = (AxisType.Auto, AxisType.Explicit) if format in DEEP else (AxisType.Auto,)
            for kind in kinds:
                under_jit(w, kind, split)
                print(f"{format} jit {kind.name} {split}: right")
            under_shard_map(w, split)
            print(f"{format} shard_map {split}: right")
    data_parallel()
    print("data and model: right")
    unchecked()
    print("unchecked: right")
    laid_otherwise()
    print("laid otherwise: right")
    refusals()
    print("refusals: right")
    for cases in (sharded_epilogue.cases, sharded_bank.cases, sharded_rows.cases):
        for name in cases():
            print(f"{name}: right")


if __name__ == "__main__":
    main()
