"""The prefill kernel's unpackers: their word programs and their twins, for every code at every column.

The programs run on `JnpWords` over the four lanes of a quad, so what is emitted for the GPU is what is tested, but for
the instruction each operation becomes.
"""

import jax
import numpy as np
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import jax.numpy as jnp
import ml_dtypes

from pallas_kernels.mosaic_gpu import _unpack_tile
from pallas_kernels.mosaic_gpu._words import JnpWords
from tests.oracle import layouts
from tests.pallas_kernels.weights import FORMATS, planes_of

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
COLUMNS = 32


def quads(words: np.ndarray) -> jnp.ndarray:
    """uint32 [rows, blocks * 4] as the layout spreads it: [rows, blocks, lane]."""
    return jnp.asarray(words.reshape(words.shape[0], -1, 4))


def exchange(word, distance):
    """The word of the lane whose number differs in that bit."""
    return word[..., np.arange(4) ^ distance]


def transposed(words: np.ndarray):
    """`transpose_quad` on the codes of whole rows."""
    halves, odds = (jnp.asarray(s, jnp.uint32) for s in (_unpack_tile.QUAD_HALVES, _unpack_tile.QUAD_BYTES))
    return _unpack_tile.transpose_quad(JnpWords(), quads(words), exchange, halves, odds)


def in_columns(pairs) -> np.ndarray:
    """bfloat16 pairs [rows, blocks, lane] for j = 0..3 as the tile [rows, columns]: pair j of lane t is at 8j + 2t."""
    words = np.stack([np.asarray(p) for p in pairs], axis=2)  # rows, blocks, j, lane
    return words.reshape(words.shape[0], -1).view(ml_dtypes.bfloat16)


def codes_everywhere(bits: int) -> np.ndarray:
    """int8 [2**bits, 128]: every code of that many bits in every column."""
    return ((np.arange(2**bits)[:, None] + np.arange(128)) % 2**bits - 2 ** (bits - 1)).astype(np.int8)


def test_transpose_quad_moves_byte_j_of_lane_t_to_byte_t_of_lane_j():
    raw = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 4)).astype(np.uint8)
    moved = np.asarray(transposed(raw.view(np.uint32).reshape(5, -1)))
    np.testing.assert_array_equal(moved.view(np.uint8).reshape(raw.shape), raw.swapaxes(2, 3))


@pytest.mark.parametrize(("kind", "bits"), [("q5", 5), ("q6", 6)])
def test_split_codes_come_out_right_at_every_column(kind, bits):
    codes = codes_everywhere(bits)
    scales = np.zeros((len(codes), 2), np.uint16)
    planes = planes_of(kind, layouts.pack((codes, scales), FORMATS[kind]), *codes.shape)
    low = transposed(np.ascontiguousarray(planes.codes).view(np.uint32))
    high = np.ascontiguousarray(planes.high).view(np.uint32).reshape(len(codes), -1, bits - 4, 1)
    shift = 2 * (bits - 4) * np.arange(4, dtype=np.uint32)
    words = [jnp.asarray(high[:, :, i] >> shift) for i in range(bits - 4)]
    pairs = _unpack_tile.split_pairs(JnpWords(), kind, low, words)
    np.testing.assert_array_equal(in_columns(pairs).astype(np.int32), codes)


@pytest.mark.parametrize(("kind", "bits"), [("q5", 5), ("q6", 6)])
def test_split_twin_agrees(kind, bits):
    codes = codes_everywhere(bits)
    planes = planes_of(kind, layouts.pack((codes, np.zeros((len(codes), 2), np.uint16)), FORMATS[kind]), *codes.shape)
    packed = np.asarray(planes.codes)
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(codes.shape)
    nibbles = (nibbles.astype(np.int8) ^ 8) - 8
    high = jnp.asarray(np.ascontiguousarray(planes.high).view(np.uint32))
    twin = _unpack_tile.split_twin(kind, jnp.asarray(nibbles, jnp.int4), high)
    np.testing.assert_array_equal(np.asarray(twin).astype(np.int32), codes)


def test_e2m1_codes_come_out_right_at_every_column():
    codes = (np.arange(16)[:, None] + np.arange(128)) % 16
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    values = in_columns(_unpack_tile.e2m1_pairs(JnpWords(), transposed(packed.view(np.uint32))))
    expected = E2M1[codes].astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(values.view(np.uint16), expected.view(np.uint16))
    signed = ((codes ^ 8) - 8).astype(np.int8)
    twin = np.asarray(_unpack_tile.e2m1_twin(jnp.asarray(signed, jnp.int4)))
    np.testing.assert_array_equal(twin.view(np.uint16), expected.view(np.uint16))


def test_scale_words_twin_reads_the_stored_tile():
    rng = np.random.default_rng(0)
    scales = rng.integers(0, 0x7F, (128, 4)).astype(np.uint8)
    payload = layouts.pack((np.zeros((128, 64), np.uint8), scales, np.asarray(np.float32(1)).view(np.uint32)), "NVFP4")
    stored = np.ascontiguousarray(planes_of("nvfp4", payload, 128, 64).scales).view(np.uint32)[0, 0, :, :, 0]
    for first in (0, 64):
        words = _unpack_tile.load_scale_words(jnp.asarray(stored[:, first // 32 : first // 32 + 2]), True)
        np.testing.assert_array_equal(np.asarray(words).view(np.uint8).reshape(64, 4), scales[first : first + 64])


def bfloat16(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def test_scaled_product_is_the_rounded_product():
    # The GPU's fma(w, hi, w * lo) in exact arithmetic, against the twin, for every code and every seventh binary16.
    scales = np.arange(0, 0x7C00, 7, dtype=np.uint16).view(np.float16).astype(np.float64)[None, :]
    codes = np.arange(-127, 128, dtype=np.float64)[:, None]
    high = bfloat16(scales)
    low = bfloat16(scales - high)
    np.testing.assert_array_equal(high + low, scales)
    product = bfloat16(codes * high + bfloat16(codes * low))
    twin = bfloat16(codes * scales)
    # A double rounding may turn a near tie: never further than one place of bfloat16, and rarely.
    assert np.all(np.abs(product - twin) <= np.abs(twin) * 2.0**-7)
    assert np.mean(product != twin) < 1e-4
    assert np.all(np.abs(product - codes * scales) <= np.abs(codes * scales) * (2.0**-8 + 2.0**-16))
