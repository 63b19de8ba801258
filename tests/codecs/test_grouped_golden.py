"""Golden vectors of the four grouped formats, eager and under jit: words, decoded values, refusals, scale probes.

All cases of one format and source type are stacked into one matrix of a common shape, filled up with zeros, so that few
programs are compiled; a zero changes no maximum. Real partial shapes are in test_grouped_encoder.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.codecs import check_words, dequantize, quantize, try_quantize
from ninfer_jax.codecs.grouped_encoder import reciprocals, scale_words
from ninfer_jax.errors import EncodeError
from ninfer_jax.words import GroupedWords
from tests.codecs.sources import COLUMNS, ROWS, as_source, bits, grouped_spec
from tests.golden_cases import GROUPED_FORMATS, grouped_cases, grouped_fail_cases, scale_probe

_PROBES = 2048
_try_quantize = jax.jit(try_quantize, static_argnames="format")


def _stack(arrays: list[np.ndarray], columns: int) -> np.ndarray:
    stacked = np.concatenate([np.pad(a, [(0, 0), (0, columns - a.shape[1])]) for a in arrays])
    return np.pad(stacked, [(0, ROWS - stacked.shape[0]), (0, 0)])


@functools.cache
def _stacked(format: str, dtype: str) -> tuple[np.ndarray, GroupedWords, np.ndarray]:
    """Source words, expected words and expected decoded words of every case."""
    cases = [case for case in grouped_cases(format) if case.source_dtype == dtype]
    groups = grouped_spec(format).groups(COLUMNS)
    codes = _stack([case["codes"] for case in cases], COLUMNS)
    words = GroupedWords(codes, _stack([case["scales"] for case in cases], groups))
    return _stack([c["source"] for c in cases], COLUMNS), words, _stack([c["decoded"] for c in cases], COLUMNS)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("format", GROUPED_FORMATS)
def test_words(format: str, dtype: str, jit: bool) -> None:
    source, expected, _ = _stacked(format, dtype)
    encode = _try_quantize if jit else try_quantize
    words, ok = encode(as_source(source, dtype), format=format)
    assert ok
    np.testing.assert_array_equal(words.codes, expected.codes)
    np.testing.assert_array_equal(words.scales, expected.scales)


@pytest.mark.parametrize("format", GROUPED_FORMATS)
def test_door_and_validity(format: str) -> None:
    source, expected, _ = _stacked(format, "f32")
    words = quantize(as_source(source, "f32"), format)
    np.testing.assert_array_equal(words.codes, expected.codes)
    np.testing.assert_array_equal(words.scales, expected.scales)
    check_words(words, format)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("format", GROUPED_FORMATS)
def test_decoded(format: str, jit: bool) -> None:
    _, words, expected = _stacked(format, "f32")
    decode = functools.partial(dequantize, format=format)
    with jax.disable_jit(not jit):
        values = (jax.jit(decode) if jit else decode)(words)
    np.testing.assert_array_equal(bits(values), expected)


@pytest.mark.parametrize("case", grouped_fail_cases(), ids=lambda case: case.id)
def test_refused(case) -> None:
    source = as_source(case["source"], case.source_dtype)
    with pytest.raises(EncodeError, match=rf"^{case.format}: x\[\d+, \d+\]"):
        quantize(source, case.format)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("format", GROUPED_FORMATS)
def test_scale_probe(format: str, jit: bool) -> None:
    """Every probed group maximum: binary16 midpoints times qmax and their float32 neighbors among them."""
    amax, scale, inv, ok = _probe(format)
    scale_of = functools.partial(scale_words, spec=grouped_spec(format))
    scales = (jax.jit(scale_of) if jit else scale_of)(jnp.asarray(amax))
    inverse = (jax.jit(reciprocals) if jit else reciprocals)(scales)
    np.testing.assert_array_equal(np.asarray(scales) < 0x7C00, ok)
    np.testing.assert_array_equal(np.asarray(scales)[ok], scale[ok])
    np.testing.assert_array_equal(bits(inverse)[ok], inv[ok])


@pytest.mark.parametrize("format", GROUPED_FORMATS)
def test_scale_probe_through_the_encoder(format: str) -> None:
    amax, scale, _, ok = _probe(format)
    encode = jax.jit(jax.vmap(functools.partial(try_quantize, format=format)))
    words, accepted = encode(amax.view(np.float32)[:, None])
    np.testing.assert_array_equal(accepted, ok)
    np.testing.assert_array_equal(np.asarray(words.scales)[ok, 0], scale[ok])


def _probe(format: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`amax scale inv ok`, repeated to a common length."""
    probe = scale_probe(format)
    amax, scale, inv, ok = (np.resize(probe[name], _PROBES) for name in ("amax", "scale", "inv", "ok"))
    return amax, scale, inv, ok == 1
