"""FP8_ROW_MAXABS_BF16_V1 and NVFP4_MAXABS_V1 against their integer oracles: rescue, saturation, ties, overflow."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from ninfer_jax.codecs import check_words, matrix_amax, nvfp4_divisor, quantize, try_quantize
from ninfer_jax.errors import EncodeError
from ninfer_jax.words import NVFP4Words, QuantizedWords, RowScaledWords
from tests.codecs.sources import widen, wild_f32
from tests.golden_cases import table
from tests.oracle import encoders_fp as oracle

MODES = pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
FP8 = "FP8_E4M3FN_ROW_BF16S"
_try_quantize = jax.jit(try_quantize, static_argnames="format")


def assert_fp8(words: QuantizedWords, x: np.ndarray) -> None:
    """Words equal to those of the oracle for the source `x`."""
    assert isinstance(words, RowScaledWords)
    codes, scales = oracle.encode_fp8_row(widen(x))
    np.testing.assert_array_equal(words.scales, scales)
    np.testing.assert_array_equal(words.codes, codes)


def assert_nvfp4(words: QuantizedWords, x: np.ndarray, divisor: int | None = None) -> None:
    """Words equal to those of the oracle for the matrix `x`."""
    assert isinstance(words, NVFP4Words)
    codes, scales, d_w = oracle.encode_nvfp4(widen(x), divisor)
    assert int(words.divisor) == d_w
    np.testing.assert_array_equal(words.scales, scales)
    np.testing.assert_array_equal(words.codes, codes)


@MODES
def test_fp8_every_row_maximum(jit: bool) -> None:
    """Each finite BF16 magnitude as a row's maximum, with smaller values of the sixteen binades below it."""
    rng = np.random.default_rng(0)
    amax = np.arange(0x7F80)
    below = rng.integers(np.maximum(amax - (16 << 7), 0)[:, None], amax[:, None] + 1, (amax.size, 15))
    words = np.concatenate([below, amax[:, None]], axis=1).astype(np.uint16)
    words |= rng.integers(0, 2, words.shape, dtype=np.uint16) << 15
    x = words.view(ml_dtypes.bfloat16)
    found, ok = (_try_quantize if jit else try_quantize)(x, format=FP8)
    assert ok
    assert_fp8(found, x)
    check_words(found, FP8)


def test_fp8_every_bf16_value_at_scale_one() -> None:
    """A row whose scale is 1 holds every BF16 value up to 448, every E4M3FN tie among them."""
    words = np.arange(0x43E0 + 1, dtype=np.uint16)
    x = np.concatenate([words, words | 0x8000]).view(ml_dtypes.bfloat16)[None]
    found = quantize(x, FP8)
    assert found.scales[0] == 0x3F80
    assert_fp8(found, x)


def test_fp8_wild_float32() -> None:
    x = wild_f32(np.random.default_rng(1), (512, 67), 0x7F7F8000)
    found, ok = _try_quantize(x, format=FP8)
    assert ok
    assert_fp8(found, x)
    check_words(found, FP8)


def test_fp8_rescue_saturation_and_zeros() -> None:
    """2^-133 is the smallest scale; a scale rounded down by a third saturates; a row of zeros keeps their signs."""
    tiny = np.array([[1, 0x8001], [1008, 672], [0, 0x8000]], np.uint16).view(ml_dtypes.bfloat16)
    found = quantize(tiny, FP8)
    assert_fp8(found, tiny)
    np.testing.assert_array_equal(found.scales, [1, found.scales[1], 0])
    np.testing.assert_array_equal(np.asarray(found.codes)[2], [0x00, 0x80])
    assert np.asarray(found.codes).max() <= 0xFE


def test_fp8_largest_value_and_the_first_refused_one() -> None:
    largest = np.full((1, 4), np.uint32(0x7F7F7FFF).view(np.float32))
    assert_fp8(quantize(largest, FP8), largest)
    largest.view(np.uint32)[0, 2] = 0x7F7F8000
    with pytest.raises(EncodeError, match=r"x\[0, 2\] = .* too large"):
        quantize(largest, FP8)


@pytest.mark.parametrize("format", [FP8, "NVFP4"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_non_finite_values_are_refused(format: str, bad: float) -> None:
    x = np.ones((4, 40), np.float32)
    x[3, 39] = bad
    assert not _try_quantize(x, format=format)[1]
    with pytest.raises(EncodeError, match=r"x\[3, 39\] is .*only finite"):
        quantize(x, format)


def test_nvfp4_divisor_of_any_maximum() -> None:
    rng = np.random.default_rng(2)
    words = np.concatenate([rng.integers(0, 0x7F800000, 2000), np.arange(300), [0x7F7FFFFF, 0x00800000]])
    words = words.astype(np.uint32)
    expected = [oracle.nvfp4_divisor(int(word)) for word in words]
    np.testing.assert_array_equal(nvfp4_divisor(words), expected)
    np.testing.assert_array_equal(jax.jit(nvfp4_divisor)(words), expected)


@MODES
def test_nvfp4_wild_matrices(jit: bool) -> None:
    """Forty matrices, each row with its own range of magnitudes, some matrices subnormal or huge as a whole."""
    rng = np.random.default_rng(3)
    limits = np.resize([1, 2, 0x1000, 0x00800001, 0x04000000, 0x20000000, 0x3F800000, 0x7F800000], 40)
    x = np.stack([wild_f32(rng, (16, 72), int(limit)) for limit in limits])
    found, ok = (_try_quantize if jit else try_quantize)(x, format="NVFP4")
    assert ok
    check_words(found, "NVFP4")
    for index, matrix in enumerate(x):
        assert_nvfp4(jax.tree.map(lambda a, i=index: a[i], found), matrix)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def test_nvfp4_of_16_bit_sources(dtype: type) -> None:
    words = np.random.default_rng(4).integers(0, 0x7800, (64, 64)).astype(np.uint16)
    words |= np.random.default_rng(5).integers(0, 2, words.shape, dtype=np.uint16) << 15
    assert_nvfp4(quantize(words.view(dtype), "NVFP4"), words.view(dtype))


def test_nvfp4_ties_go_to_even_codes() -> None:
    """With d_w = 1 and scale 1 the values are their own quotients: every multiple of 1/8 up to 6."""
    x = np.zeros((49 * 2 + 1, 16), np.float32)
    x[:98, 0] = np.concatenate([np.arange(49), -np.arange(49)]) / 8
    x[:, 1] = 6
    x[98, 1] = 2688
    found = quantize(x, "NVFP4")
    assert isinstance(found, NVFP4Words)
    assert found.divisor == 0x3F800000
    assert np.all(np.asarray(found.scales)[:98] == 0x38)
    assert_nvfp4(found, x)
    ties = {0.25: 0, 0.75: 2, 1.25: 2, 1.75: 4, 2.5: 4, 3.5: 6, 5.0: 6}
    for value, code in ties.items():
        assert found.codes[int(value * 8), 0] == code


@MODES
def test_nvfp4_every_scale_midpoint(jit: bool) -> None:
    """6 times every midpoint of neighboring scales, and four binary32 words to each side; d_w = 1."""
    scales = table("e4m3fn_f32").view(np.float32)[:0x7F].astype(np.float64)
    exact = ((scales + np.append(scales[1:], 480)) * 3).astype(np.float32).view(np.uint32)
    x = np.zeros((exact.size, 9 * 16), np.float32)
    x[:, ::16] = (exact[:, None] + np.arange(-4, 5)).astype(np.uint32).view(np.float32)
    x = x.reshape(-1, 16)[:-4]  # above the last midpoint, 464 * 6, there is no scale
    divisor = jnp.uint32(0x3F800000)
    found, ok = (_try_quantize if jit else try_quantize)(x, format="NVFP4", divisor=divisor)
    assert ok
    assert_nvfp4(found, x, int(divisor))


@MODES
def test_nvfp4_ties_of_every_scale(jit: bool) -> None:
    """Every scale times every midpoint of E2M1, and one binary32 word to each side; d_w = 1."""
    scales = table("e4m3fn_f32").view(np.float32)[1:0x7F]
    ties = scales[:, None] * np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
    words = ties.view(np.uint32)[..., None] + np.arange(-1, 2)
    x = np.zeros((scales.size, 32), np.float32)
    x[:, [0, 16]] = 6 * scales[:, None]
    x[:, 1:15] = words.astype(np.uint32).view(np.float32).reshape(scales.size, 21)[:, :14]
    x[:, 17:24] = -words.astype(np.uint32).view(np.float32).reshape(scales.size, 21)[:, 14:]
    divisor = jnp.uint32(0x3F800000)
    found, ok = (_try_quantize if jit else try_quantize)(x, format="NVFP4", divisor=divisor)
    assert ok
    np.testing.assert_array_equal(found.scales, np.arange(1, 0x7F)[:, None].repeat(2, axis=1))
    assert_nvfp4(found, x, int(divisor))


def test_nvfp4_rescue() -> None:
    """A group far below the matrix maximum keeps the smallest scale and, where it can, nonzero codes."""
    x = np.zeros((3, 32), np.float32)
    x[0, 0], x[1, 0], x[2, 0], x[2, 1] = 2688, 0.004, -1e-30, -0.0
    found = quantize(x, "NVFP4")
    assert_nvfp4(found, x)
    np.testing.assert_array_equal(np.asarray(found.scales)[:, 0], [0x7E, 1, 1])
    np.testing.assert_array_equal(np.asarray(found.codes)[1:, :2], [[4, 0], [8, 8]])


def test_nvfp4_row_blocks_with_the_divisor_of_the_matrix() -> None:
    x = wild_f32(np.random.default_rng(6), (64, 48), 0x41000000)
    whole = quantize(x, "NVFP4")
    amax = max(int(matrix_amax(block)) for block in np.split(x, 4))
    assert amax == int(matrix_amax(jnp.asarray(x)))
    divisor = nvfp4_divisor(np.uint32(amax))
    blocks = [quantize(block, "NVFP4", divisor=divisor) for block in np.split(x, 4)]
    np.testing.assert_array_equal(np.concatenate([block.codes for block in blocks]), whole.codes)
    np.testing.assert_array_equal(np.concatenate([block.scales for block in blocks]), whole.scales)
    assert isinstance(whole, NVFP4Words)
    assert divisor == whole.divisor


def test_nvfp4_values_beyond_the_divisor_are_refused() -> None:
    """2784 is the tie above the largest scale: it still rounds to 448, the next float32 does not."""
    one = np.uint32(0x3F800000)
    x = np.zeros((2, 16), np.float32)
    x[1, 3] = 2784
    found = quantize(x, "NVFP4", divisor=one)
    assert_nvfp4(found, x, int(one))
    assert found.scales[1, 0] == 0x7E
    x[1, 3] = np.nextafter(np.float32(2784), np.float32(3000))
    with pytest.raises(EncodeError, match=r"x\[1, 3\] = 2784.* magnitudes up to 2784.0 can"):
        quantize(x, "NVFP4", divisor=one)


@pytest.mark.parametrize("divisor", [0, 0x007FFFFF, 0x7F800000, 0xBF800000], ids=hex)
def test_nvfp4_divisors_that_no_encoder_takes(divisor: int) -> None:
    with pytest.raises(EncodeError, match="not a positive normal"):
        quantize(np.zeros((2, 16), np.float32), "NVFP4", divisor=np.uint32(divisor))


@pytest.mark.parametrize("format", [FP8, "NVFP4"])
def test_vmap(format: str) -> None:
    x = wild_f32(np.random.default_rng(7), (3, 8, 32), 0x41000000)
    found, ok = jax.jit(jax.vmap(functools.partial(try_quantize, format=format)))(x)
    expected, _ = _try_quantize(x, format=format)
    assert ok.shape == (3,)
    assert np.asarray(ok).all()
    jax.tree.map(np.testing.assert_array_equal, found, expected)
