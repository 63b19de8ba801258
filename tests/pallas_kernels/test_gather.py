"""Rows of packed weights against the oracle, bit for bit, on any device and any jax."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels import PlaneShapeError
from pallas_kernels.mosaic_gpu import take_rows
from pallas_kernels.tiling import WEIGHT_KINDS
from tests.pallas_kernels.weights import random_weight

IDS = np.array([0, 255, 3, 3, 128, 77], np.int32)


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_rows_are_the_exactly_decoded_ones(kind, dtype):
    n, k = 256, 192 if kind == "nvfp4" else 200
    planes, weight = random_weight(kind, n, k)
    rows = jax.jit(lambda planes, ids: take_rows(planes, ids, kind=kind, n=n, k=k, out_dtype=dtype))(planes, IDS)
    expected = weight[IDS].astype(np.float32)
    if dtype == jnp.bfloat16:
        expected = expected.astype(ml_dtypes.bfloat16)
    assert rows.dtype == dtype
    bits = np.uint16 if dtype == jnp.bfloat16 else np.uint32
    zero = expected == 0  # a zero code times a scale has no sign to keep
    np.testing.assert_array_equal(np.asarray(rows).view(bits)[~zero], expected.view(bits)[~zero])
    np.testing.assert_array_equal(np.asarray(rows)[zero], 0)


def test_ids_out_of_range_are_clipped():
    planes, weight = random_weight("q4", 7, 64)
    rows = take_rows(planes, jnp.array([-5, 99]), kind="q4", n=7, k=64, out_dtype=jnp.float32)
    np.testing.assert_array_equal(np.asarray(rows), weight[[0, 6]].astype(np.float32))


def test_planes_of_another_shape_are_refused():
    planes, _ = random_weight("q5", 8, 64)
    with pytest.raises(PlaneShapeError, match=r"plane codes is uint8\[8, 64\], it must be uint8\[9, 64\]"):
        take_rows(planes, jnp.zeros(1, jnp.int32), kind="q5", n=9, k=64)
