"""The word programs of the Blackwell unpackers: every code of every kind, in order, against the independent oracle.

The twin that runs where kernels are interpreted is held to the same weights.
"""

from typing import Any

import jax
import numpy as np
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import jax.numpy as jnp
from jax import lax

from benchmarks import sass
from pallas_kernels.mosaic_gpu import _row_unpack
from pallas_kernels.mosaic_gpu._words import JnpWords
from pallas_kernels.tiling import WEIGHT_KINDS, weight_kind
from tests.pallas_kernels.weights import random_weight

K = 64


def pair(low, high):
    """A word of two float32 arrays as bfloat16 halves."""
    low, high = (lax.bitcast_convert_type(v.astype(jnp.bfloat16), jnp.uint16).astype(jnp.uint32) for v in (low, high))
    return low | high << 16


class Words(JnpWords):
    """The operations of `RowPtxWords` on arrays."""

    def fma_bf16x2(self, a, b, c):
        halves = [[lax.bitcast_convert_type(w >> s << 16, jnp.float32) for w in (a, b, c)] for s in (0, 16)]
        return pair(*(x * y + z for x, y, z in halves))

    def split_binary16(self, word):
        value = lax.bitcast_convert_type(word.astype(jnp.uint16), jnp.float16).astype(jnp.float32)
        rest = value - value.astype(jnp.bfloat16).astype(jnp.float32)
        return pair(value, value), pair(rest, rest)


def word_columns(plane):
    return [jnp.asarray(column) for column in np.ascontiguousarray(plane).view(np.uint32).T]


def scale_words(kind: str, planes: Any):
    """What a thread is given of its row's scales: 64 columns of it."""
    if kind == "fp8":
        return []
    if kind == "nvfp4":
        return [jnp.asarray(planes.scales[0, 0].view(np.uint32)[..., 0].T.reshape(-1))]
    return [jnp.asarray(c, jnp.uint32) for c in planes.scales[:, : K // weight_kind(kind).group_size].T]


def check(kind: str, values: Any, planes: Any, weight: np.ndarray):
    """Values against the weights, after what `scaled_pairs` leaves to others: FP8's row scale, NVFP4's divisor."""
    values = np.asarray(values, np.float64)
    if kind == "fp8":
        scales = (planes.scales.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        np.testing.assert_array_equal((values * scales[:, None]).astype(np.float32), weight)
    elif kind == "nvfp4":
        divisor = float(np.asarray(planes.divisor).reshape(1).view(np.float32)[0])
        np.testing.assert_array_equal((values / divisor).astype(np.float32), weight)
    else:  # half a bfloat16 step, 2**-8 at most, and a little for the low part of the scale
        np.testing.assert_allclose(values, weight, rtol=2**-7.99, atol=0)


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_word_program_and_twin_give_the_weights_in_order(kind):
    planes: Any
    planes, weight = random_weight(kind, 128, K if kind in ("fp8", "nvfp4") else 128)
    codes = planes.codes[:, : 4 * _row_unpack.code_words(kind)]
    high = None if planes.high is None else planes.high[:, : 4 * _row_unpack.high_words(kind)]
    further = [] if high is None else word_columns(high)
    pairs = _row_unpack.scaled_pairs(kind, word_columns(codes), further, scale_words(kind, planes), Words())
    values = lax.bitcast_convert_type(jnp.stack(pairs, axis=1), jnp.bfloat16).reshape(128, K)
    check(kind, values, planes, weight[:, :K])
    if kind == "fp8":
        scales = []
    elif kind == "nvfp4":
        scales = [jnp.asarray(planes.scales[0, 0].view(np.uint32)[..., 0])]
    else:
        scales = [jnp.asarray(planes.scales[:, : K // weight_kind(kind).group_size])]
    words = lambda plane: jnp.stack(word_columns(plane), axis=1)
    twin = _row_unpack.rows_twin(kind, words(codes), None if high is None else words(high), scales)
    check(kind, twin, planes, weight[:, :K])


@pytest.mark.parametrize("kind", ["q4", "q5", "q6", "w8"])
def test_integer_codes_alone_are_exact(kind):
    planes: Any
    planes, weight = random_weight(kind, 128, 128)
    group = weight_kind(kind).group_size
    scales = planes.scales.view(np.float16)[:, : K // group].astype(np.float64).repeat(group, axis=1)
    codes = word_columns(planes.codes[:, : 4 * _row_unpack.code_words(kind)])
    high = [] if planes.high is None else word_columns(planes.high[:, : 4 * _row_unpack.high_words(kind)])
    pairs = _row_unpack.scaled_pairs(kind, codes, high, [], Words())
    values = np.asarray(lax.bitcast_convert_type(jnp.stack(pairs, axis=1), jnp.bfloat16)).reshape(128, K)
    np.testing.assert_array_equal(values.astype(np.float64), np.rint(weight[:, :K] / scales))


def test_cost_of_a_weight_is_read_off_the_stores_to_tensor_memory():
    line = "        /*{:04x}*/                   {} ;\n".format
    program = [".L_x_0:\n", line(0x10, "LOP3.LUT R1, R2, R3, RZ, 0x3c, !PT"), line(0x20, "STTM.x16 tmem[UR4], R4")]
    program += [line(0x30, "@P0 BRA `(.L_x_0)"), line(0x40, "EXIT")]
    [loop] = sass.operand_loops("".join(program))
    assert loop.weights == 32
    assert loop.per_weight == 3 / 32
    assert loop.unpack_per_weight == 1 / 32
