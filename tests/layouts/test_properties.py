"""Hypothesis: for any words, package bytes equal oracle bytes, and every round trip is the identity."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ninfer_jax.formats import FORMATS
from ninfer_jax.layouts import gather_rows, pack, payload_to_planes, planes_to_payload, unpack
from tests.layouts.samples import assert_same, oracle_words, random_words
from tests.oracle import layouts as oracle

SEEDS = st.integers(0, 2**32 - 1)


def _shapes(name: str) -> st.SearchStrategy[tuple[int, ...]]:
    if name in oracle.DIRECT:
        return st.lists(st.integers(1, 4), max_size=5).map(tuple)
    if name == "NVFP4":
        return st.tuples(st.sampled_from([128, 256]), st.sampled_from([64, 128]))
    # Few shapes, many contents: every new shape costs a compilation.
    return st.sampled_from([(1, 1), (9, 1), (3, 65), (5, 127), (2, 257), (4, 300)])


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=12)
@given(data=st.data())
def test_words_planes_bytes_round_trip(name, data):
    shape = data.draw(_shapes(name))
    words = random_words(name, shape, data.draw(SEEDS))
    planes = pack(words, name)
    payload = planes_to_payload(planes, name, shape)
    assert payload.tobytes() == oracle.pack(oracle_words(words), name)
    views = payload_to_planes(payload, name, shape)
    assert_same(views, planes)
    assert_same(unpack(views, name, shape[-1] if shape else None), words)
    for given_part, part in zip(oracle.unpack(payload.tobytes(), name, shape), oracle_words(words), strict=True):
        np.testing.assert_array_equal(given_part, part)


@pytest.mark.parametrize("name", ["Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S", "FP8_E4M3FN_ROW_BF16S"])
@settings(max_examples=8)
@given(data=st.data())
def test_gather_commutes_with_pack(name, data):
    shape = data.draw(_shapes(name))
    words = random_words(name, shape, data.draw(SEEDS))
    ids = np.array(data.draw(st.lists(st.integers(0, shape[0] - 1), min_size=1, max_size=6)))
    planes = jax.tree.map(np.asarray, pack(words, name))
    assert_same(gather_rows(planes, name, ids), pack(jax.tree.map(lambda leaf: leaf[ids], words), name))
