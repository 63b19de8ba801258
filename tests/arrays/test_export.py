"""Programs that take and give packed weights, serialized by `jax.export` and read back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.ops import matmul
from tests.ops.weights import FORMATS, activations, random_weight


@pytest.mark.parametrize("format", FORMATS)
def test_a_program_with_packed_arguments_is_serialized(format: str) -> None:
    pytest.importorskip("flatbuffers")
    w, x = random_weight(format, 128, 192), jnp.asarray(activations(2, 192))
    program = jax.jit(lambda x, w: (matmul(x, w), w))
    again = jax.export.deserialize(jax.export.export(program)(x, w).serialize())
    assert again.in_tree == jax.tree.structure(((x, w), {}))
    y, same = again.call(x, w)
    np.testing.assert_array_equal(np.asarray(y), np.asarray(matmul(x, w)))
    assert isinstance(same, QuantizedTensor)
    assert same == w
