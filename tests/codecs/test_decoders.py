"""Exact decoders: golden vectors, and every combination of small words, eager and under jit.

NumPy multiplies and divides binary32 as IEEE 754 says, subnormals and overflow included, and serves as the oracle of
the exhaustive checks; the integer oracle covers the golden vectors.
"""

import functools

import jax
import ml_dtypes
import numpy as np
import pytest

from ninfer_jax.codecs import dequantize
from ninfer_jax.formats import FP8_E4M3FN_ROW_BF16S
from ninfer_jax.words import GroupedWords, NVFP4Words, RowScaledWords, Words
from tests.codecs.sources import bits, grouped_spec
from tests.golden_cases import (
    GROUPED_FORMATS,
    direct_cases,
    fp8_cases,
    grouped_case,
    nvfp4_cases,
    table,
)
from tests.oracle import fp8_row as fp8_oracle, nvfp4 as nvfp4_oracle

MODES = pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
FP8 = "FP8_E4M3FN_ROW_BF16S"


def decode(words: Words, format: str, jit: bool) -> np.ndarray:
    """Binary32 words (I32: values) of `dequantize`, compiled as one program or run one operation at a time."""
    with jax.disable_jit(not jit):
        return bits(dequantize(words, format))


@MODES
@pytest.mark.parametrize("format", GROUPED_FORMATS)
def test_every_scale_and_code(format: str, jit: bool) -> None:
    """All 31,744 valid scales, each with every legal code."""
    spec = grouped_spec(format)
    codes = np.array(spec.legal_codes, np.int8)
    codes = np.resize(codes, -(-codes.size // spec.group_size) * spec.group_size)
    scales = np.arange(0x7C00, dtype=np.uint16)
    lanes = np.broadcast_to(codes, (scales.size, codes.size))
    words = GroupedWords(lanes, np.repeat(scales[:, None], codes.size // spec.group_size, axis=1))
    expected = table("f16_scale_f32").view(np.float32)[:, None] * codes.astype(np.float32)
    found = decode(words, format, jit)
    np.testing.assert_array_equal(found[1:], expected.view(np.uint32)[1:])
    np.testing.assert_array_equal(found[0] & 0x7FFFFFFF, 0)  # a zero scale has no legal code but 0


@MODES
def test_partial_groups(jit: bool) -> None:
    case = grouped_case("W8G32_F16S", "rows_parent")
    found = decode(GroupedWords(case["codes"], case["scales"]), "W8G32_F16S", jit)
    np.testing.assert_array_equal(found, case["decoded"])
    found = decode(GroupedWords(case["codes"][0], case["scales"][0]), "W8G32_F16S", jit)
    np.testing.assert_array_equal(found, case["decoded"][0])


@pytest.mark.parametrize("case", fp8_cases(), ids=lambda case: case.id)
def test_fp8_golden(case) -> None:
    np.testing.assert_array_equal(fp8_oracle.decode(case["codes"], case["scales"]), case["decoded"])
    found = decode(RowScaledWords(case["codes"], case["scales"]), FP8, jit=True)
    np.testing.assert_array_equal(found, case["decoded"])


@MODES
def test_fp8_every_code_and_scale(jit: bool) -> None:
    """All 254 finite codes times all 32,640 valid scales: subnormal scales, subnormal products, overflow."""
    codes = np.array(FP8_E4M3FN_ROW_BF16S.legal_codes, np.uint8)
    scales = np.arange(0x7F80, dtype=np.uint16)
    words = RowScaledWords(np.broadcast_to(codes, (scales.size, codes.size)), scales)
    values = table("e4m3fn_f32").view(np.float32)[codes]
    with np.errstate(over="ignore", under="ignore"):
        expected = values * (scales.astype(np.uint32) << 16).view(np.float32)[:, None]
    subnormal = (expected != 0) & (np.abs(expected) < np.finfo(np.float32).tiny)
    assert subnormal.any()
    assert np.isinf(expected).any()
    np.testing.assert_array_equal(decode(words, FP8, jit), expected.view(np.uint32))


@pytest.mark.parametrize("case", nvfp4_cases(), ids=lambda case: case.id)
def test_nvfp4_golden_oracle(case) -> None:
    expected = nvfp4_oracle.decode(case["codes"], case["scales"], case["divisor"])
    np.testing.assert_array_equal(expected, case["decoded"])


@MODES
def test_nvfp4_golden(jit: bool) -> None:
    """All cases at once, along a leading axis; zero codes fill the smaller ones up."""
    rows, columns = np.max([case.shape for case in nvfp4_cases()], axis=0)

    def stack(field: str, width: int) -> np.ndarray:
        arrays = [case[field] for case in nvfp4_cases()]
        return np.stack([np.pad(a, [(0, rows - a.shape[0]), (0, width - a.shape[1])]) for a in arrays])

    divisors = np.stack([case["divisor"] for case in nvfp4_cases()])
    words = NVFP4Words(stack("codes", columns), stack("scales", columns // 16), divisors)
    np.testing.assert_array_equal(decode(words, "NVFP4", jit), stack("decoded", columns))


@MODES
def test_nvfp4_every_code_and_scale_with_many_divisors(jit: bool) -> None:
    """All 16 codes times all 127 valid scales, over divisors of every exponent and the extreme ones."""
    rng = np.random.default_rng(0)
    exponents = np.arange(255, dtype=np.uint32) << 23
    fractions = rng.integers(0, 1 << 23, (2, 255)).astype(np.uint32)
    extremes = np.array([1, 2, 3, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x3F800000, 0x3FFFFFFF], np.uint32)
    divisors = np.concatenate([*(exponents | fractions), exponents[1:], exponents[1:] | 0x7FFFFF, extremes])
    codes = np.broadcast_to(np.arange(16, dtype=np.uint8), (divisors.size, 127, 16))
    scales = np.broadcast_to(np.arange(127, dtype=np.uint8)[:, None], (divisors.size, 127, 1))
    e2m1, e4m3fn = table("e2m1_f32").view(np.float32), table("e4m3fn_f32").view(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        expected = e2m1[codes] * e4m3fn[scales] / divisors.view(np.float32)[:, None, None]
    assert np.isinf(expected).any()
    found = decode(NVFP4Words(codes, scales, divisors), "NVFP4", jit)
    np.testing.assert_array_equal(found, expected.view(np.uint32))


@MODES
def test_nvfp4_divisors_that_leave_every_weight_normal(jit: bool) -> None:
    """All codes and scales over one divisor at a time, at both ends of the range with a program of its own; vmapped."""
    divisors = np.array([0x08800000, 0x087FFFFF, 0x76FFFFFF, 0x77000000, 0x3F800000, 0x3FAAAAAB, 0x5C123457], np.uint32)
    codes = np.broadcast_to(np.arange(16, dtype=np.uint8), (127, 16))
    scales = np.arange(127, dtype=np.uint8)[:, None]
    e2m1, e4m3fn = table("e2m1_f32").view(np.float32), table("e4m3fn_f32").view(np.float32)
    expected = (e2m1[codes] * e4m3fn[scales] / divisors.view(np.float32)[:, None, None]).view(np.uint32)
    for divisor, each in zip(divisors, expected, strict=True):
        np.testing.assert_array_equal(decode(NVFP4Words(codes, scales, divisor), "NVFP4", jit), each)
    vmapped = jax.vmap(lambda divisor: dequantize(NVFP4Words(codes, scales, divisor), "NVFP4"))
    np.testing.assert_array_equal(bits((jax.jit(vmapped) if jit else vmapped)(divisors)), expected)


def test_nvfp4_partial_group() -> None:
    case = nvfp4_cases()[0]
    words = NVFP4Words(case["codes"][:, :20], case["scales"][:, :2], case["divisor"])
    np.testing.assert_array_equal(decode(words, "NVFP4", jit=True), case["decoded"][:, :20])


@MODES
@pytest.mark.parametrize("case", direct_cases(), ids=lambda case: case.id)
def test_direct(case, jit: bool) -> None:
    """Every bit survives: NaN payloads, signaling NaNs, signed zeros, subnormals."""
    words = case["words"]
    expected = words.astype(np.uint32) << 16 if case.format == "BF16" else words
    np.testing.assert_array_equal(decode(words, case.format, jit), expected.view(np.uint32))


def test_scalar_types_are_taken_by_their_bits() -> None:
    case = fp8_cases()[1]
    typed = RowScaledWords(case["codes"].view(ml_dtypes.float8_e4m3fn), case["scales"].view(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(decode(typed, FP8, jit=True), case["decoded"])
    np.testing.assert_array_equal(decode(jax.tree.map(jax.numpy.asarray, typed), FP8, jit=True), case["decoded"])
    case = nvfp4_cases()[0]
    codes = case["codes"].view(ml_dtypes.float4_e2m1fn)
    scales = case["scales"].view(ml_dtypes.float8_e4m3fn)
    typed = NVFP4Words(codes, scales, case["divisor"].view(np.float32))
    np.testing.assert_array_equal(decode(typed, "NVFP4", jit=True), case["decoded"])
    np.testing.assert_array_equal(decode(jax.tree.map(jax.numpy.asarray, typed), "NVFP4", jit=True), case["decoded"])


def test_vmap_equals_leading_axes() -> None:
    case = nvfp4_cases()[0]
    words = NVFP4Words(case["codes"], case["scales"], case["divisor"])
    batch = jax.tree.map(lambda a: np.stack([a, a]), words)
    found = jax.jit(jax.vmap(functools.partial(dequantize, format="NVFP4")))(batch)
    np.testing.assert_array_equal(bits(found), np.stack([case["decoded"]] * 2))
    np.testing.assert_array_equal(decode(batch, "NVFP4", jit=True), bits(found))
