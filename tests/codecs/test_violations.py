"""Validation of words: golden illegal cases, one planted fault for every rule, counts under jit."""

import functools

import jax
import numpy as np
import pytest

from ninfer_jax.codecs import check_words, count_violations
from ninfer_jax.errors import FormatError, InvalidWordsError
from ninfer_jax.words import GroupedWords, NVFP4Words, QuantizedWords, RowScaledWords
from tests.codecs.sources import grouped_spec
from tests.golden_cases import fp8_cases, fp8_fail_cases, nvfp4_cases, nvfp4_fail_cases

FP8 = "FP8_E4M3FN_ROW_BF16S"


def legal_words(format: str) -> QuantizedWords:
    """Small legal words [4, 40], nonzero everywhere."""
    codes = np.ones((4, 40))
    if format == "NVFP4":
        scales = np.full((4, 3), 0x38, np.uint8)
        return NVFP4Words(codes.astype(np.uint8), scales, np.array(0x3F800000, np.uint32))
    if format == FP8:
        return RowScaledWords(codes.astype(np.uint8), np.full(4, 0x3F80, np.uint16))
    groups = grouped_spec(format).groups(40)
    return GroupedWords(codes.astype(np.int8), np.full((4, groups), 0x3C00, np.uint16))


# format, field, coordinate, word, rules broken with their counts
FAULTS = [
    *[
        (format, "scales", (2, 0), word, rules)
        for format, width in [("Q4G64_F16S", 40), ("W8G32_F16S", 32)]
        for word, rules in [
            (0x8001, {"scale_negative": 1}),
            (0xFBFF, {"scale_negative": 1}),
            (0x8000, {"scale_minus_zero": 1, "zero_scale_nonzero_code": width}),
            (0x0000, {"zero_scale_nonzero_code": width}),
            (0x7C00, {"scale_infinite": 1}),
            (0xFC00, {"scale_infinite": 1}),
            (0x7C01, {"scale_nan": 1}),
            (0xFFFF, {"scale_nan": 1}),
        ]
    ],
    ("Q4G64_F16S", "codes", (1, 39), 8, {"code_out_of_range": 1}),
    ("Q4G64_F16S", "codes", (1, 39), -9, {"code_out_of_range": 1}),
    ("Q5G64_F16S", "codes", (3, 0), 16, {"code_out_of_range": 1}),
    ("Q6G64_F16S", "codes", (0, 0), -33, {"code_out_of_range": 1}),
    ("W8G32_F16S", "codes", (3, 39), -128, {"code_out_of_range": 1}),
    ("NVFP4", "codes", (3, 39), 16, {"code_out_of_range": 1}),
    ("NVFP4", "scales", (3, 2), 0x81, {"scale_negative": 1}),
    ("NVFP4", "scales", (3, 2), 0x80, {"scale_minus_zero": 1}),
    ("NVFP4", "scales", (0, 1), 0x7F, {"scale_nan": 1}),
    ("NVFP4", "scales", (0, 1), 0xFF, {"scale_nan": 1}),
    *[
        ("NVFP4", "divisor", (), word, {"divisor_not_finite_positive": 1})
        for word in (0, 0x80000000, 0xBF800000, 0x7F800000, 0x7FC00000, 0xFF800001)
    ],
    (FP8, "codes", (1, 2), 0x7F, {"code_nan": 1}),
    (FP8, "codes", (1, 2), 0xFF, {"code_nan": 1}),
    (FP8, "scales", (3,), 0x8001, {"scale_negative": 1}),
    (FP8, "scales", (3,), 0x8000, {"scale_minus_zero": 1, "zero_scale_nonzero_code": 40}),
    (FP8, "scales", (3,), 0x0000, {"zero_scale_nonzero_code": 40}),
    (FP8, "scales", (3,), 0x7F80, {"scale_infinite": 1}),
    (FP8, "scales", (3,), 0x7FC0, {"scale_nan": 1}),
]


@functools.partial(jax.jit, static_argnames="format")
def _counts(words: QuantizedWords, format: str) -> dict[str, jax.Array]:
    return count_violations(words, format)


@pytest.mark.parametrize(("format", "field", "at", "word", "rules"), FAULTS)
def test_one_fault(format: str, field: str, at: tuple[int, ...], word: int, rules: dict[str, int]) -> None:
    words = legal_words(format)
    check_words(words, format)
    array = getattr(words, field).copy()
    array[at] = word
    broken = words._replace(**{field: array})
    found = {rule: int(count) for rule, count in _counts(broken, format).items()}
    assert {rule: count for rule, count in found.items() if count} == rules
    rule = next(iter(rules))
    place = rf"{field}\[{', '.join(map(str, at))}\]" if at else field
    place = r"codes\[\d, 0\]" if rule == "zero_scale_nonzero_code" else place
    with pytest.raises(InvalidWordsError, match=rf"^{format}: {place} = .* breaks {rule} "):
        check_words(broken, format)


@pytest.mark.parametrize("format", ["Q4G64_F16S", "W8G32_F16S", "NVFP4", FP8])
def test_legal_extremes(format: str) -> None:
    """Zero scales over zero codes, signed zeros of FP8, the largest scales, subnormal scales and divisors."""
    words = legal_words(format)
    codes, scales = words.codes.copy(), words.scales.copy()
    codes[0] = 0
    scales[0] = 0
    scales[1] = {"NVFP4": 0x7E, FP8: 0x7F7F}.get(format, 0x7BFF)
    scales[2] = 1
    if format == FP8:
        codes[0, :3] = 0x80
    words = words._replace(codes=codes, scales=scales)
    if isinstance(words, NVFP4Words):
        words = words._replace(divisor=np.array(1, np.uint32))
    check_words(words, format)
    assert not any(int(count) for count in count_violations(words, format).values())


@pytest.mark.parametrize("case", nvfp4_fail_cases(), ids=lambda case: case.id)
def test_nvfp4_golden(case) -> None:
    with pytest.raises(InvalidWordsError):
        check_words(NVFP4Words(case["codes"], case["scales"], case["divisor"]), "NVFP4")


@pytest.mark.parametrize("case", fp8_fail_cases(), ids=lambda case: case.id)
def test_fp8_golden(case) -> None:
    with pytest.raises(InvalidWordsError):
        check_words(RowScaledWords(case["codes"], case["scales"]), FP8)


def test_golden_words_are_legal() -> None:
    for case in nvfp4_cases():
        check_words(NVFP4Words(case["codes"], case["scales"], case["divisor"]), "NVFP4")
    for case in fp8_cases():
        check_words(RowScaledWords(case["codes"], case["scales"]), FP8)


def test_direct_words_are_all_legal() -> None:
    for format, dtype in {"BF16": np.uint16, "FP32": np.uint32, "I32": np.int32}.items():
        assert count_violations(np.zeros(3, dtype), format) == {}
        check_words(np.zeros(3, dtype), format)


@pytest.mark.parametrize(
    ("format", "change", "message"),
    [
        ("Q4G64_F16S", {"scales": np.zeros((4, 2), np.uint16)}, r"scales of shape \[4, 2\].*need \[4, 1\]"),
        ("W8G32_F16S", {"codes": np.zeros((4, 40), np.int16)}, "codes must hold int8 words"),
        ("NVFP4", {"divisor": np.zeros(1, np.uint32)}, r"divisor of shape \[1\].*need \[\]"),
        ("NVFP4", {"scales": np.zeros((4, 40), np.uint8)}, r"need \[4, 3\]"),
        (FP8, {"scales": np.zeros((4, 1), np.uint16)}, r"need \[4\]"),
        (FP8, {"codes": np.zeros((4, 0), np.uint8)}, "K >= 1"),
    ],
)
def test_words_that_do_not_belong_together(format: str, change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        check_words(legal_words(format)._replace(**change), format)


def test_words_of_another_format() -> None:
    with pytest.raises(FormatError, match="NVFP4 takes NVFP4Words, not GroupedWords"):
        count_violations(legal_words("Q4G64_F16S"), "NVFP4")
    with pytest.raises(FormatError, match="one uint16 array, not GroupedWords"):
        count_violations(legal_words("Q4G64_F16S"), "BF16")
    with pytest.raises(FormatError, match="BF16 must hold uint16 words"):
        count_violations(np.zeros(3, np.int16), "BF16")
