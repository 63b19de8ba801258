"""MAXABS_F16_RECIP_RNE_V1 against the integer oracle: every scale and midpoint, wild sources, shapes, refusals."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis.extra import numpy as hnp

from ninfer_jax.codecs import check_words, quantize, try_quantize
from ninfer_jax.codecs.grouped_encoder import reciprocals, scale_words
from ninfer_jax.errors import EncodeError
from ninfer_jax.words import GroupedWords, QuantizedWords
from tests.codecs.sources import COLUMNS, ROWS, bits, grouped_spec, widen, wild_f32
from tests.golden_cases import GROUPED_FORMATS
from tests.oracle import grouped as oracle

# The largest group maximum with a finite scale, as a binary32 word; the next word is a tie to infinity.
LARGEST_AMAX = {
    "Q4G64_F16S": 0x48DFF1FF,
    "Q5G64_F16S": 0x496FF0FF,
    "Q6G64_F16S": 0x49F7F07F,
    "W8G32_F16S": 0x4AFDF01F,
}
MODES = pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
FORMATS = pytest.mark.parametrize("format", GROUPED_FORMATS)
_try_quantize = jax.jit(try_quantize, static_argnames="format")


def assert_encoded(words: QuantizedWords, x: np.ndarray, format: str) -> None:
    """Words equal to those of the oracle for the source `x`."""
    assert isinstance(words, GroupedWords)
    codes, scales = oracle.encode(widen(x), format)
    np.testing.assert_array_equal(words.codes, codes)
    np.testing.assert_array_equal(words.scales, scales)


@MODES
def test_every_reciprocal(jit: bool) -> None:
    scales = np.arange(1, 0x7C00, dtype=np.uint32)
    inverse = (jax.jit(reciprocals) if jit else reciprocals)(jnp.asarray(scales))
    np.testing.assert_array_equal(bits(inverse), oracle.inverse_words(scales))


@MODES
@FORMATS
def test_every_binary16_midpoint(format: str, jit: bool) -> None:
    """`qmax` times every midpoint of neighboring binary16 words, and four binary32 words to each side."""
    scales = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    midpoints = (scales + np.append(scales[1:], 65536)) / 2
    exact = (midpoints * grouped_spec(format).qmax).astype(np.float32).view(np.uint32)
    amax = (exact[:, None] + np.arange(-4, 5)).astype(np.uint32)
    encode = functools.partial(scale_words, spec=grouped_spec(format))
    found = (jax.jit(encode) if jit else encode)(jnp.asarray(amax))
    np.testing.assert_array_equal(found, oracle.scale_words(amax, format))


@FORMATS
def test_smallest_maxima(format: str) -> None:
    """Binary32 subnormals and everything around the first binary16 midpoint: zero stays zero, the rest is rescued."""
    amax = np.concatenate([np.arange(4096), 2 ** np.arange(13, 31), 2 ** np.arange(13, 31) - 1]).astype(np.uint32)
    found = jax.jit(scale_words, static_argnames="spec")(jnp.asarray(amax), spec=grouped_spec(format))
    np.testing.assert_array_equal(found, oracle.scale_words(amax, format))
    assert found[0] == 0
    assert np.all(np.asarray(found)[1:] >= 1)


@MODES
@FORMATS
def test_wild_float32(format: str, jit: bool) -> None:
    """Subnormals, signed zeros, single binades and all magnitudes, with a partial group at the end of every row."""
    x = wild_f32(np.random.default_rng(1), (ROWS, COLUMNS), LARGEST_AMAX[format] + 1)
    words, ok = (_try_quantize if jit else try_quantize)(x, format=format)
    assert ok
    assert_encoded(words, x, format)
    check_words(words, format)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16], ids=["bf16", "f16"])
@FORMATS
def test_every_16_bit_source(format: str, dtype: type) -> None:
    """Every finite magnitude of the type, at the end of a group whose other values are smaller."""
    words = np.arange(0x8000, dtype=np.uint16)
    words |= (words & 1) << 15  # signs in turn
    x = words.view(dtype)
    x = np.where(np.abs(widen(x)) <= np.uint32(LARGEST_AMAX[format]).view(np.float32), x, dtype(0))
    source = np.zeros((words.size, 4), dtype)
    source[:, 3] = x
    source[:, 0] = (words & 0xFF00).view(dtype)  # a word of the same exponent and fewer bits, finite like the last one
    source[:, 0] = np.where(x == 0, dtype(0), source[:, 0])
    found, ok = _try_quantize(source, format=format)
    assert ok
    assert_encoded(found, source, format)


@hypothesis.given(words=hnp.arrays(np.uint32, (3, 130)))
def test_any_words(words: np.ndarray) -> None:
    """Arbitrary words, refused exactly where the oracle refuses."""
    x = words.view(np.float32)
    for format in GROUPED_FORMATS:
        found, ok = jax.vmap(functools.partial(_try_quantize, format=format))(x)
        expected = oracle.encodable(x, format).all(axis=-1)
        np.testing.assert_array_equal(ok, expected)
        if expected.any():
            assert_encoded(jax.tree.map(lambda a, rows=expected: a[rows], found), x[expected], format)


@pytest.mark.parametrize("shape", [(1,), (33,), (2, 3, 65), (2, 1, 2, 64)], ids=str)
@pytest.mark.parametrize("format", ["Q5G64_F16S", "W8G32_F16S"])
def test_shapes(format: str, shape: tuple[int, ...]) -> None:
    x = wild_f32(np.random.default_rng(2), shape, 0x40000000)
    words = quantize(x, format)
    assert words.scales.shape == (*shape[:-1], grouped_spec(format).groups(shape[-1]))
    assert_encoded(words, x, format)


def test_float64_is_rounded_to_float32() -> None:
    x = np.random.default_rng(3).standard_normal((4, 70))
    assert_encoded(quantize(x, "Q6G64_F16S"), x.astype(np.float32), "Q6G64_F16S")
    x[2, 69] = 1e39
    with pytest.raises(EncodeError, match=r"x\[2, 69\] is inf"):
        quantize(x, "Q6G64_F16S")


@FORMATS
def test_negative_codes_reach_qmin_with_a_subnormal_scale(format: str) -> None:
    spec = grouped_spec(format)
    x = np.full((2, spec.group_size), 1.49 * spec.qmax * 2.0**-24, np.float32)
    x[1] *= -1
    words = quantize(x, format)
    assert np.all(np.asarray(words.scales) == 1)
    np.testing.assert_array_equal(np.unique(words.codes), [spec.qmin, spec.qmax])


@FORMATS
def test_largest_maximum(format: str) -> None:
    largest = np.uint32(LARGEST_AMAX[format])
    assert quantize(np.full((1, 1), largest.view(np.float32)), format).scales[0, 0] == 0x7BFF
    with pytest.raises(EncodeError, match=r"x\[0, 0\] = .* too large"):
        quantize(np.full((1, 1), (largest + np.uint32(1)).view(np.float32)), format)


def test_division_that_upstream_gpus_round_wrongly() -> None:
    x = np.full((1, 64), 0x3636, np.uint16).view(ml_dtypes.bfloat16)
    assert quantize(x, "Q4G64_F16S").scales[0, 0] == 6


@pytest.mark.parametrize("bad", [0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00001], ids=hex)
def test_one_bad_value_anywhere_fails(bad: int) -> None:
    """At every place of a row with a partial group, among normal values."""
    x = np.random.default_rng(4).standard_normal((70, 70)).astype(np.float32)
    np.fill_diagonal(x.view(np.uint32), bad)
    _, ok = jax.vmap(functools.partial(_try_quantize, format="Q4G64_F16S"))(x)
    assert not np.asarray(ok).any()
    with pytest.raises(EncodeError, match=r"x\[0, 0\] is"):
        quantize(x, "Q4G64_F16S")


@FORMATS
def test_encoding_a_decoded_group_gives_it_back(format: str) -> None:
    """A group whose largest code is qmax in magnitude has itself as its encoding."""
    spec = grouped_spec(format)
    rng = np.random.default_rng(5)
    codes = rng.integers(-spec.qmax, spec.qmax + 1, (64, spec.group_size), dtype=np.int8)
    codes[:, 0] = spec.qmax
    scales = rng.integers(1, 0x7C00, (64, 1)).astype(np.uint16)
    x = oracle.decode(codes, scales, format).view(np.float32)
    words = quantize(x, format)
    np.testing.assert_array_equal(words.codes, codes)
    np.testing.assert_array_equal(words.scales, scales)
