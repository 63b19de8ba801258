"""Direct words: identity keeps every bit, casts round, widen or refuse, and never do anything else."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from ninfer_jax.codecs import cast_words, quantize, source_words
from ninfer_jax.errors import CastError, FormatError
from tests.codecs.flushing import flushed_subnormals
from tests.golden_cases import direct_cases, table
from tests.oracle.exact import BF16, F32, round_word, split


@pytest.mark.parametrize("case", direct_cases(), ids=lambda case: case.id)
def test_identity_keeps_every_word(case) -> None:
    dtype = {"BF16": ml_dtypes.bfloat16, "FP32": np.float32, "I32": np.int32}[case.format]
    values = case["words"].view(dtype)
    np.testing.assert_array_equal(source_words(values), case["words"])
    np.testing.assert_array_equal(source_words(jnp.asarray(values)), case["words"])
    for mode in ("round", "exact"):
        np.testing.assert_array_equal(cast_words(values, case.format, mode=mode), case["words"])


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int64, np.uint8, np.bool_, ml_dtypes.float8_e4m3fn])
def test_no_implicit_conversion(dtype: type) -> None:
    with pytest.raises(CastError, match="no direct format holds"):
        source_words(np.zeros(2, dtype))


def test_bf16_rounding_of_every_boundary() -> None:
    """Every pair of neighboring BF16 words: the lower one, just below, at and just above the tie, and one ulp off."""
    words = (np.arange(0x7F7F, dtype=np.uint32) << 16)[:, None] + np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    words = np.concatenate([words, words | 0x80000000]).astype(np.uint32)
    negative, sig, exp = split(words, F32)
    expected = round_word(sig, exp, BF16) | np.where(negative, BF16.sign, 0)
    np.testing.assert_array_equal(cast_words(words.view(np.float32), "BF16", mode="round"), expected)


def test_bf16_special_values() -> None:
    words = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFA51234, 0xFFA50000], np.uint32)
    found = cast_words(words.view(np.float32), "BF16", mode="round")
    np.testing.assert_array_equal(found, [0x7F80, 0xFF80, 0x7FC0, 0x7FC0, 0xFFE5, 0xFFA5])
    np.testing.assert_array_equal(cast_words(words[[0, 2, 5]].view(np.float32), "BF16", mode="exact"), found[[0, 2, 5]])


def test_bf16_refusals() -> None:
    x = np.zeros((2, 3), np.float32)
    x.view(np.uint32)[1, 2] = 0x7F7F8000
    with pytest.raises(CastError, match=r"x\[1, 2\] = .* rounds to a BF16 infinity"):
        cast_words(x, "BF16", mode="round")
    x[1, 2], x[0, 1] = 1, 1.001
    with pytest.raises(CastError, match=r"x\[0, 1\] = 1.001 is not a BF16 value.*\(1 such values\)"):
        cast_words(x, "BF16", mode="exact")
    x[0, 1] = 2.0**-133
    np.testing.assert_array_equal(cast_words(x, "BF16", mode="exact"), [[0, 1, 0], [0, 0, 0x3F80]])


def test_float16_to_bf16() -> None:
    words = np.arange(0x7C00, dtype=np.uint16)
    _, sig, exp = split(table("f16_scale_f32"), F32)
    np.testing.assert_array_equal(cast_words(words.view(np.float16), "BF16", mode="round"), round_word(sig, exp, BF16))


def test_fp32_widening_is_exact() -> None:
    bf16 = np.arange(65536, dtype=np.uint16)
    expected = bf16.astype(np.uint32) << 16
    np.testing.assert_array_equal(cast_words(bf16.view(ml_dtypes.bfloat16), "FP32", mode="exact"), expected)
    f16 = np.arange(0x7C00, dtype=np.uint16)
    np.testing.assert_array_equal(cast_words(f16.view(np.float16), "FP32", mode="exact"), table("f16_scale_f32"))
    e4m3fn = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    found = cast_words(e4m3fn.view(ml_dtypes.float8_e4m3fn), "FP32", mode="exact")
    np.testing.assert_array_equal(found, table("e4m3fn_f32")[e4m3fn])
    e2m1 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn)
    np.testing.assert_array_equal(cast_words(e2m1, "FP32", mode="round"), table("e2m1_f32"))


def test_float64_to_fp32() -> None:
    x = np.array([0.1, -0.0, 2.0**-149, np.inf, 1e-300])
    expected = [0x3DCCCCCD, 0x80000000, 1, 0x7F800000, 0]
    np.testing.assert_array_equal(cast_words(x, "FP32", mode="round"), expected)
    np.testing.assert_array_equal(cast_words(x[1:4], "FP32", mode="exact"), expected[1:4])
    with pytest.raises(CastError, match=r"x\[0\] = 0.1 is not a binary32 value"):
        cast_words(x, "FP32", mode="exact")
    with pytest.raises(CastError, match=r"x\[1\] = 1e\+39 rounds to a binary32 infinity"):
        cast_words(np.array([0, 1e39]), "FP32", mode="round")


def test_float64_rounding_at_every_exponent() -> None:
    """Random, exact, tied and nearly tied significands of 53 bits, from below the subnormals to beyond infinity."""
    rng = np.random.default_rng(8)
    top = rng.integers(2**23, 2**24, 4000)
    low = np.concatenate([rng.integers(0, 2**29, 1000), np.repeat([0, 1, 2**28 - 1, 2**28, 2**28 + 1, 2**29 - 1], 500)])
    significand = (top << 29) | low
    significand[::7] = (significand[::7] >> 40) << 40  # few bits: exact, or tied where the result is subnormal
    exponent = rng.integers(-212, 80, significand.size)
    x = np.ldexp(significand.astype(np.float64), exponent)
    expected = round_word(significand, exponent, F32)
    finite = expected < F32.infinity
    assert 0 < finite.sum() < finite.size
    np.testing.assert_array_equal(cast_words(-x[finite], "FP32", mode="round"), expected[finite] | F32.sign)
    with pytest.raises(CastError, match=rf"\({(~finite).sum()} such values\)"):
        cast_words(x, "FP32", mode="round")
    _, back, scale = split(np.where(finite, expected, 0), F32)
    exact = finite & (np.ldexp(back.astype(np.float64), scale) == x)
    assert 0 < exact.sum() < exact.size
    np.testing.assert_array_equal(cast_words(x[exact], "FP32", mode="exact"), expected[exact])
    with pytest.raises(CastError, match=rf"\({(~exact).sum()} such values\)"):
        cast_words(x, "FP32", mode="exact")


def test_float64_nans_keep_what_fits() -> None:
    words = np.array([0x7FF8000000000000, 0xFFF0000020000000, 0x7FF0000000000001, 0xFFF4000020000001], np.uint64)
    found = cast_words(words.view(np.float64), "FP32", mode="round")
    np.testing.assert_array_equal(found, [0x7FC00000, 0xFF800001, 0x7FC00000, 0xFFE00001])
    np.testing.assert_array_equal(cast_words(words[:2].view(np.float64), "FP32", mode="exact"), found[:2])
    with pytest.raises(CastError, match=r"x\[2\] = nan is not a binary32 value.*\(2 such values\)"):
        cast_words(words.view(np.float64), "FP32", mode="exact")


def test_a_thread_that_flushes_subnormals_changes_nothing() -> None:
    x = np.array([2.0**-149, -(2.0**-130), 2.0**-126 - 2.0**-150, 1e-40])
    with flushed_subnormals():
        assert np.array(1e-40).astype(np.float32).view(np.uint32) == 0  # the mode is on
        rounded = cast_words(x, "FP32", mode="round")
        exact = cast_words(x[:2], "FP32", mode="exact")
        scales = quantize(x[:1, None], "Q4G64_F16S").scales
        for dtype in (np.float32, ml_dtypes.bfloat16):
            tiny = np.array([0, 1], np.dtype(f"u{np.dtype(dtype).itemsize}")).view(dtype)
            with pytest.raises(CastError, match=r"x\[1\] = .* is not an integer"):
                cast_words(tiny, "I32", mode="exact")
    np.testing.assert_array_equal(rounded, [1, 0x80080000, 0x00800000, 71362])
    np.testing.assert_array_equal(exact, rounded[:2])
    np.testing.assert_array_equal(scales, [[1]])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.int64, np.uint64, np.bool_])
def test_integers_to_i32(dtype: type) -> None:
    values = np.array([0, 1, 1 if dtype is np.bool_ else 100], dtype)
    for mode in ("round", "exact"):
        np.testing.assert_array_equal(cast_words(values, "I32", mode=mode), values.astype(np.int32))


@pytest.mark.parametrize(
    ("value", "dtype"), [(2**31, np.int64), (-(2**31) - 1, np.int64), (2**31, np.uint32), (2**64 - 1, np.uint64)]
)
def test_integers_outside_i32(value: int, dtype: type) -> None:
    x = np.zeros((2, 2), dtype)
    x[1, 0] = value
    with pytest.raises(CastError, match=rf"x\[1, 0\] = {value} is outside \[-2147483648, 2147483647\]"):
        cast_words(x, "I32", mode="exact")


def test_floats_to_i32() -> None:
    x = np.array([-(2.0**31), 3.0, -0.0])
    np.testing.assert_array_equal(cast_words(x, "I32", mode="exact"), [-(2**31), 3, 0])
    for bad in (0.5, 2.0**31, np.nan, np.inf):
        with pytest.raises(CastError, match=r"x\[1\] = .* is not an integer"):
            cast_words(np.array([0, bad]), "I32", mode="exact")
    with pytest.raises(FormatError, match="no cast from float64 to I32"):
        cast_words(x, "I32", mode="round")


def test_scalars() -> None:
    words = cast_words(np.array(1.5, np.float32), "BF16", mode="exact")
    assert words.shape == ()
    assert words == 0x3FC0
    with pytest.raises(CastError, match=r"x\[0\] = 0.1"):
        cast_words(np.array(0.1, np.float32), "BF16", mode="exact")


@pytest.mark.parametrize(
    ("dtype", "target", "mode", "message"),
    [
        (np.float64, "BF16", "round", "no cast from float64 to BF16; it takes float32 and float16"),
        (np.int32, "FP32", "exact", "no cast from int32 to FP32"),
        (np.complex64, "I32", "exact", "no cast from complex64 to I32"),
        (np.float32, "Q4G64_F16S", "round", "the targets are BF16, FP32, I32"),
        (np.float32, "BF16", "truncate", "use 'round' or 'exact'"),
    ],
)
def test_casts_that_do_not_exist(dtype: type, target: str, mode, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        cast_words(np.zeros(2, dtype), target, mode=mode)
