"""The doors: formats and encoders by name, sources and words that are refused, equal results eager and under jit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.codecs import (
    ENCODERS,
    check_words,
    dequantize,
    get_encoder,
    nvfp4_divisor,
    quantize,
    try_quantize,
)
from ninfer_jax.errors import EncodeError, FormatError, UnknownFormatError, UnsupportedError
from ninfer_jax.formats import FORMATS, QuantizedFormat, get_format

QUANTIZED = [name for name, spec in FORMATS.items() if isinstance(spec, QuantizedFormat)]


def test_every_quantized_format_has_one_profile() -> None:
    assert sorted(name for profile in ENCODERS.values() for name in profile.formats) == sorted(QUANTIZED)
    assert all(get_encoder(name).name in ENCODERS for name in QUANTIZED)
    with pytest.raises(TypeError, match="does not support item assignment"):
        ENCODERS["mine"] = get_encoder("NVFP4")  # pyright: ignore[reportIndexIssue]


def test_encoders_by_name() -> None:
    x = np.ones((2, 64), np.float32)
    named = quantize(x, "Q4G64_F16S", encoder="MAXABS_F16_RECIP_RNE_V1")
    jax.tree.map(np.testing.assert_array_equal, named, quantize(x, get_format("Q4G64_F16S")))
    with pytest.raises(UnsupportedError, match="NVFP4_MAXABS_V1 does not encode Q4G64_F16S; it encodes NVFP4"):
        quantize(x, "Q4G64_F16S", encoder="NVFP4_MAXABS_V1")
    with pytest.raises(FormatError, match="unknown encoder profile 'maxabs'; the profiles are MAXABS_F16"):
        try_quantize(x, "Q4G64_F16S", encoder="maxabs")


@pytest.mark.parametrize("name", ["FP16", "Q4G32_F16S", "q4", "INT32"])
def test_unknown_formats(name: str) -> None:
    for door in (quantize, try_quantize, dequantize):
        with pytest.raises(UnknownFormatError, match=name):
            door(np.ones((2, 64), np.float32), name)


def test_direct_formats_are_not_quantized() -> None:
    with pytest.raises(FormatError, match="BF16 is a direct format and has no encoder"):
        quantize(np.ones(4, np.float32), "BF16")


@pytest.mark.parametrize(
    ("x", "format", "message"),
    [
        (np.ones((2, 64), np.int32), "Q4G64_F16S", "int32 source; allowed are float32, bfloat16, float16"),
        (np.ones((), np.float32), "Q4G64_F16S", r"shape \[\]; give at least 1 axes"),
        (np.ones((2, 0), np.float32), "W8G32_F16S", "a last axis of K >= 1"),
        (np.ones(64, np.float32), "NVFP4", "at least 2 axes"),
        (np.ones(64, np.float32), "FP8_E4M3FN_ROW_BF16S", "at least 2 axes"),
    ],
)
def test_sources_that_no_encoder_takes(x: np.ndarray, format: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        quantize(x, format)


@pytest.mark.parametrize("format", QUANTIZED)
def test_empty_matrices(format: str) -> None:
    """Grouped rows may be none at all; the matrix formats have positive dimensions."""
    if format in ("NVFP4", "FP8_E4M3FN_ROW_BF16S"):
        for door in (quantize, try_quantize):
            with pytest.raises(FormatError, match=r"a matrix \[N, K\] of N >= 1 and K >= 1"):
                door(np.ones((0, 64), np.float32), format)
    else:
        assert quantize(np.ones((0, 64), np.float32), format).codes.shape == (0, 64)


@pytest.mark.parametrize("given", [[[1.0, 2.0]], 1.0, np.float32(1), None], ids=repr)
def test_what_is_no_array(given: Any) -> None:
    for door in (quantize, try_quantize):
        with pytest.raises(FormatError, match=f"cannot quantize a {type(given).__name__}; give a NumPy or JAX array"):
            getattr(door, "__wrapped__", door)(given, "Q4G64_F16S")


@pytest.mark.parametrize("dtype", [np.longdouble, "datetime64[s]", "U1", object])
def test_types_that_jax_does_not_know(dtype: Any) -> None:
    with pytest.raises(FormatError, match="source; allowed are float32, bfloat16, float16"):
        quantize(np.zeros((1, 64), dtype), "Q4G64_F16S")


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">f2"])
@pytest.mark.parametrize("format", QUANTIZED)
def test_the_byte_order_of_a_source_does_not_matter(format: str, dtype: str) -> None:
    x = np.random.default_rng(3).standard_normal((2, 64)).astype(np.float16)
    found = quantize(x.astype(dtype), format)
    jax.tree.map(np.testing.assert_array_equal, found, quantize(x.astype(dtype[1:]), format))


def test_what_looks_at_values_is_not_traced() -> None:
    x = np.ones((2, 64), np.float32)
    with pytest.raises(FormatError, match=r"under jit or vmap use try_quantize\(\)"):
        jax.jit(lambda x: quantize(x, "Q4G64_F16S"))(x)
    with pytest.raises(FormatError, match=r"under jit use count_violations\(\)"):
        jax.jit(lambda words: check_words(words, "Q4G64_F16S"))(quantize(x, "Q4G64_F16S"))


def test_each_matrix_has_its_own_divisor() -> None:
    """What is refused is judged, and named, with the divisor of its own matrix."""
    one, double = np.uint32(0x3F800000), np.uint32(0x40000000)
    x = np.zeros((2, 3, 16), np.float32)
    x[0, 1, 2], x[1, 2, 3] = 2784, 1393
    with pytest.raises(EncodeError, match=r"x\[1, 2, 3\] = 1393.0 .* up to 1392.0 can .*\(1 refused\)"):
        quantize(x, "NVFP4", divisor=np.array([one, double]))
    for bad in (0, 0x7F800000):
        with pytest.raises(EncodeError, match=f"divisor word {bad:#010x} is not a positive normal"):
            quantize(x, "NVFP4", divisor=np.array([bad, one], np.uint32))
    with pytest.raises(FormatError, match="amax must hold uint32 words"):
        nvfp4_divisor(np.int32(1))


def test_divisors_belong_to_nvfp4() -> None:
    x = np.ones((2, 64), np.float32)
    with pytest.raises(UnsupportedError, match="W8G32_F16S has no divisor"):
        quantize(x, "W8G32_F16S", divisor=np.uint32(0x3F800000))
    with pytest.raises(FormatError, match=r"divisor of shape \[1\] for a source of shape \[2, 64\]"):
        quantize(x, "NVFP4", divisor=np.ones(1, np.uint32))
    with pytest.raises(FormatError, match="divisor must hold uint32 words"):
        quantize(x, "NVFP4", divisor=np.int64(1))


def test_the_first_bad_coordinate_is_named_with_the_limit() -> None:
    x = np.zeros((2, 3, 70), np.float32)
    x[1, 2, 5], x[1, 0, 69] = np.nan, 458640
    with pytest.raises(
        EncodeError, match=r"^Q4G64_F16S: x\[1, 0, 69\] = 458640.0 .* up to 458639.97 can .*\(2 refused\)"
    ):
        quantize(x, "Q4G64_F16S")


@pytest.mark.parametrize("format", QUANTIZED)
def test_both_doors_agree(format: str) -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 80)), jnp.bfloat16)
    words, ok = jax.jit(lambda x: try_quantize(x, format))(x)
    assert ok
    jax.tree.map(np.testing.assert_array_equal, words, quantize(x, format))
    error = np.abs(np.asarray(dequantize(words, format)) - np.asarray(x, np.float32)).max()
    assert error < 0.6  # half of the widest step of any format here, for values up to about 3
