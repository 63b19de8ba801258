"""Rows taken by a named gather over eight devices: row numbers may be split, the table may not. For `sharded_child`."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from ninfer_jax.ops import take_rows
from tests.ops.mesh import collectives, mesh_of, put
from tests.ops.test_gathers import register
from tests.ops.weights import exact, random_weight

IDS = np.arange(16) * 5 % 64


def cases() -> Iterator[str]:
    """Run every case, yielding its name."""
    mesh, w = mesh_of(), random_weight("Q6G64_F16S", 64, 1024)
    with pytest.MonkeyPatch.context() as monkeypatch:
        take = jax.jit(partial(take_rows, implementation=register(monkeypatch)))
        whole = put(w, mesh, PartitionSpec())
        ids = jax.device_put(jnp.asarray(IDS), NamedSharding(mesh, PartitionSpec("model")))
        compiled = take.lower(whole, ids).compile()
        rows = compiled(whole, ids)
        assert tuple(rows.sharding.spec)[:1] == ("model",)
        assert not any(collectives(compiled.as_text()).values())
        np.testing.assert_array_equal(np.asarray(rows), exact(w)[IDS].astype(np.float32))
        yield "split row numbers"
        with pytest.raises(Exception, match="pass implementation='xla', or replicate the table"):
            take(put(w, mesh, PartitionSpec("model")), ids)
        yield "split table refused"
