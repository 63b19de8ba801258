"""Bias, residual and gates over eight devices, with product and epilogue apart (xla) and as a kernel has them.

A split of the rows of a [gate; up] parent puts gate and up of one output on different devices: sums are exchanged, and
the planes stay where they are.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ninfer_jax.arrays import QuantizedTensor, partition_specs
from ninfer_jax.ops import gated_linear, linear
from tests.ops import stand_in
from tests.ops.mesh import mesh_of, put, started
from tests.ops.weights import activations, exact, random_weight, relative_l2

M, N, K = 2, 64, 1024
ROWS, COLUMNS = PartitionSpec("model", None), PartitionSpec(None, "model")


def operands(width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, a bias and a residual."""
    return activations(M, K), activations(1, N, seed=2)[0], activations(M, width, seed=3)


def reference(w: QuantizedTensor, gated: bool) -> np.ndarray:
    """The product and its whole epilogue in float64."""
    x, bias, residual = operands(N // 2 if gated else N)
    y = x.astype(np.float64) @ exact(w).T + bias
    gate, up = np.split(y, 2, axis=1)
    return (gate / (1 + np.exp(-gate)) * up if gated else y) + residual


def function(gated: bool, implementation: str) -> Any:
    """The operator on (x, w, bias, residual)."""
    if gated:
        return lambda x, w, bias, residual: gated_linear(
            x, w, bias=bias, residual=residual, implementation=implementation
        )
    return lambda x, w, bias, residual: linear(x, w, bias, residual=residual, implementation=implementation)


def under_jit(w: QuantizedTensor, spec: PartitionSpec, kind: AxisType, gated: bool, implementation: str) -> None:
    """Values, the output's sharding, what is communicated, and a gradient."""
    mesh, run = mesh_of(kind), function(gated, implementation)
    x, bias, residual = operands(N // 2 if gated else N)
    x = jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, spec[1])))
    arguments = (x, put(w, mesh, spec), bias, residual)
    compiled = jax.jit(run).lower(*arguments).compile()
    y = compiled(*arguments)
    assert relative_l2(np.asarray(y), reference(w, gated)) <= 1e-5
    assert (*y.sharding.spec, None, None)[:2] == (None, spec[0])
    expected = {"all-reduce"} if spec[1] else {"collective-permute"} if gated else set()
    assert started(compiled.as_text()) == expected, started(compiled.as_text())
    if kind == AxisType.Auto and gated and implementation == "stand_in":  # differentiated as with xla
        loss = lambda x, w, bias, residual: jnp.sum(run(x, w, bias, residual) ** 2)
        got = jax.jit(jax.grad(loss, (0, 2, 3)))(*arguments)
        expected = jax.jit(jax.grad(loss, (0, 2, 3)))(np.asarray(x), w, bias, residual)
        for a, b in zip(got, expected, strict=True):
            assert relative_l2(np.asarray(a), np.asarray(b, np.float64)) <= 1e-5


def gate_of(w: QuantizedTensor, implementation: str) -> None:
    """A gate over rows split eight ways."""
    mesh, x = mesh_of(), activations(M, w.k)
    y = jax.jit(partial(gated_linear, implementation=implementation))(x, put(w, mesh, ROWS))
    gate, up = np.split(x.astype(np.float64) @ exact(w).T, 2, axis=1)
    assert relative_l2(np.asarray(y), gate / (1 + np.exp(-gate)) * up) <= 1e-5


def checked(w: QuantizedTensor, implementation: str) -> None:
    """`shard_map` that tracks what varies, data and rows split: the kernel runs on the shard, gradients are added."""
    mesh = mesh_of(data=2, model=4)
    run = function(False, implementation)
    x, bias, residual = operands(N)
    w_spec, y_spec = PartitionSpec("model", None), PartitionSpec("data", "model")
    specs = (PartitionSpec("data"), partition_specs(w, w_spec), PartitionSpec("model"), y_spec)
    mapped = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=y_spec))
    y, pull = jax.vjp(lambda x, bias, residual: mapped(x, w, bias, residual), x, bias, residual)
    assert relative_l2(np.asarray(y), reference(w, False)) <= 1e-5
    dx, d_bias, d_residual = pull(y)
    assert relative_l2(np.asarray(dx), np.asarray(y, np.float64) @ exact(w)) <= 1e-5
    assert relative_l2(np.asarray(d_bias), np.asarray(y, np.float64).sum(0)) <= 1e-5
    np.testing.assert_array_equal(np.asarray(d_residual), np.asarray(y))


def cases() -> Iterator[str]:
    """Run every case, yielding its name."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        kernel = stand_in.register(monkeypatch)
        w = random_weight("Q5G64_F16S", N, K)
        for implementation in ("stand_in", "xla"):
            for gated in (True,) if implementation == "xla" else (False, True):
                for spec in (ROWS, COLUMNS):
                    under_jit(w, spec, AxisType.Auto, gated, implementation)
                    yield f"{implementation} gated={gated} {spec}"
            for spec in (ROWS, COLUMNS):
                under_jit(w, spec, AxisType.Explicit, spec == ROWS, implementation)
                yield f"{implementation} explicit {spec}"
            # Three rows for a shard have no halves: then the result is whole everywhere.
            gate_of(random_weight("Q4G64_F16S", 24, 256), implementation)
            gate_of(random_weight("NVFP4", 1024, 64), implementation)
            yield f"{implementation} gates of other formats"
            kernel.seen.clear()
            checked(w, implementation)
            assert {p.n for p in kernel.seen} == ({N // 4} if implementation == "stand_in" else set())
            yield f"{implementation} checked axes"
