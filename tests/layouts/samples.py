"""Golden and random words of every format, and the same words for the oracle."""

from functools import cache, partial
from typing import Any

import jax
import numpy as np

from ninfer_jax.formats import FORMATS, BlockScaledFormat, DirectFormat, GroupedFormat, RowScaledFormat
from ninfer_jax.layouts import pack, unpack
from ninfer_jax.words import GroupedWords, NVFP4Words, RowScaledWords, Words
from tests import golden_cases

CASES = (
    *golden_cases.grouped_cases(),
    *golden_cases.nvfp4_cases(),
    *golden_cases.fp8_cases(),
    *golden_cases.direct_cases(),
)

pack_jit = jax.jit(pack, static_argnames="format")


@partial(jax.jit, static_argnames=("format", "k"))
def pack_unpack_jit(words: Any, format: str, k: int | None) -> tuple[Any, Any]:
    """Planes, and the words that come back from them, in one program."""
    planes = pack(words, format)
    return planes, unpack(planes, format, k)


def golden_words(case: golden_cases.Case) -> Any:
    """The words of a golden case, as the package takes them."""
    if "words" in case.arrays:
        return case["words"]
    if "divisor" in case.arrays:
        return NVFP4Words(case["codes"], case["scales"], case["divisor"])
    kind = RowScaledWords if case.format.startswith("FP8") else GroupedWords
    return kind(case["codes"], case["scales"])


def columns(case: golden_cases.Case) -> int | None:
    """The `k` of `unpack`."""
    return case.shape[-1] if case.shape else None


def random_words(name: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Any legal codes and any scale words at all: a layout must not look at their values."""
    rng = np.random.default_rng(seed)
    match FORMATS[name]:
        case DirectFormat(word_dtype=dtype):
            info = np.iinfo(dtype)
            return np.asarray(rng.integers(info.min, info.max, shape, dtype, endpoint=True))
        case GroupedFormat() as spec:
            codes = rng.integers(spec.qmin, spec.qmax, shape, np.int8, endpoint=True)
            return GroupedWords(codes, _any(rng, (*shape[:-1], spec.groups(shape[-1])), np.uint16))
        case BlockScaledFormat(group_size=group):
            codes = rng.integers(0, 16, shape, np.uint8)
            scales = _any(rng, (*shape[:-1], shape[-1] // group), np.uint8)
            return NVFP4Words(codes, scales, _any(rng, shape[:-2], np.uint32))
        case RowScaledFormat():
            return RowScaledWords(_any(rng, shape, np.uint8), _any(rng, shape[:-1], np.uint16))


def _any(rng: np.random.Generator, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    return np.asarray(rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True))


def oracle_words(words: Words) -> tuple[np.ndarray, ...]:
    """The same words as a plain tuple of NumPy arrays."""
    return tuple(np.asarray(part) for part in (words if isinstance(words, tuple) else (words,)))


def assert_same(given, wanted) -> None:
    """Equal trees: the same structure, and in each leaf the same shape, dtype and bits."""
    assert jax.tree.structure(given) == jax.tree.structure(wanted)
    for got, want in zip(jax.tree.leaves(given), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want), strict=True)


@cache
def small_shape(name: str) -> tuple[int, ...]:
    """A shape with a partial group, a padded block and several rows, where the format allows them."""
    if isinstance(FORMATS[name], DirectFormat):
        return (6, 2, 3)
    return (256, 128) if name == "NVFP4" else (6, 130)
