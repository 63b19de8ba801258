"""The registry is closed: nine names, compared and never parsed, read-only (tensor-formats §1, §3.2)."""

import dataclasses

import numpy as np
import pytest

from ninfer_jax import formats
from ninfer_jax.errors import UnknownFormatError
from ninfer_jax.formats import FORMATS, get_format

NINE = (
    "BF16",
    "FP32",
    "I32",
    "Q4G64_F16S",
    "Q5G64_F16S",
    "Q6G64_F16S",
    "W8G32_F16S",
    "NVFP4",
    "FP8_E4M3FN_ROW_BF16S",
)


def test_exactly_nine_names():
    assert tuple(FORMATS) == NINE
    assert all(spec.name == name for name, spec in FORMATS.items())
    assert [getattr(formats, name) for name in NINE] == list(FORMATS.values())


def test_registry_is_read_only():
    with pytest.raises(TypeError):
        FORMATS["Q4"] = FORMATS["Q4G64_F16S"]  # pyright: ignore[reportIndexIssue]
    with pytest.raises(dataclasses.FrozenInstanceError):
        FORMATS["NVFP4"].bits = 5  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", NINE)
def test_get_format_returns_the_registered_spec(name):
    assert get_format(name) is FORMATS[name]
    assert get_format(FORMATS[name]) is FORMATS[name]


@pytest.mark.parametrize(
    "name",
    ["FP16", "Q4G32_F16S", "Q6G128_F16S", "W8G64_F16S", "q4", "Q4", "bf16", "INT32", "FP8_E4M3FN", "I64", "", "NVFP4 "],
)
def test_unknown_names_list_the_nine(name):
    with pytest.raises(UnknownFormatError) as caught:
        get_format(name)
    assert repr(name) in str(caught.value)
    assert all(known in str(caught.value) for known in NINE)


@pytest.mark.parametrize("given", [None, ["NVFP4"], (1.0, 2.0), np.ones((2, 2)), np.dtype("float32")], ids=repr)
def test_what_is_no_name_is_told_by_its_type(given):
    """A swapped argument, such as an array, is no name either and is not printed."""
    with pytest.raises(UnknownFormatError, match=f"unknown format of type {type(given).__name__}; the nine formats"):
        getattr(get_format, "__wrapped__", get_format)(given)


def test_a_look_alike_spec_is_not_registered():
    for altered in (
        dataclasses.replace(formats.Q4G64_F16S, group_size=32),
        dataclasses.replace(formats.BF16, name="FP16"),
    ):
        with pytest.raises(UnknownFormatError):
            get_format(altered)


@pytest.mark.parametrize(
    ("name", "bits", "group_size", "qmin", "qmax", "bits_per_weight"),
    [
        ("Q4G64_F16S", 4, 64, -8, 7, 4.25),
        ("Q5G64_F16S", 5, 64, -16, 15, 5.25),
        ("Q6G64_F16S", 6, 64, -32, 31, 6.25),
        ("W8G32_F16S", 8, 32, -127, 127, 8.5),
    ],
)
def test_grouped_specs(name, bits, group_size, qmin, qmax, bits_per_weight):
    spec = get_format(name)
    assert isinstance(spec, formats.GroupedFormat)
    assert (spec.category, spec.scale_type) == ("grouped", "binary16")
    assert (spec.bits, spec.group_size, spec.qmin, spec.qmax) == (bits, group_size, qmin, qmax)
    assert spec.logical_bits_per_weight == bits_per_weight
    assert list(spec.legal_codes) == list(range(qmin, qmax + 1))
    assert [spec.groups(k) for k in (1, group_size, group_size + 1)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("name", "bits", "word_dtype", "value_dtype"),
    [("BF16", 16, "uint16", "bfloat16"), ("FP32", 32, "uint32", "float32"), ("I32", 32, "int32", "int32")],
)
def test_direct_specs(name, bits, word_dtype, value_dtype):
    spec = get_format(name)
    assert isinstance(spec, formats.DirectFormat)
    assert (spec.category, spec.bits, spec.word_dtype, spec.value_dtype) == ("direct", bits, word_dtype, value_dtype)
    assert spec.logical_bits_per_weight == bits


def test_nvfp4_spec():
    spec = formats.NVFP4
    assert (spec.category, spec.bits, spec.group_size, spec.scale_type) == ("block-scaled", 4, 16, "E4M3FN")
    assert spec.logical_bits_per_weight == 4.5
    assert list(spec.legal_codes) == list(range(16))
    assert spec.groups(64) == 4


def test_fp8_spec():
    spec = formats.FP8_E4M3FN_ROW_BF16S
    assert (spec.category, spec.bits, spec.scale_type) == ("row-scaled", 8, "BF16")
    assert spec.logical_bits_per_weight == 8
    assert set(range(256)) - set(spec.legal_codes) == {0x7F, 0xFF}
