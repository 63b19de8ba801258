"""Error sums on the device against float64, and their independence of how rows are cut into blocks."""

from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

from ninfer_jax.convert import Settings, convert
from ninfer_jax.convert.error_sums import error_sums
from tests.convert.conftest import Sample
from tests.convert.samples import SMALL_BLOCK

_error_sums = jax.jit(error_sums)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("columns", [1, 127, 128, 129, 1000, 4096])
def test_sums_of_rows_of_any_length(columns: int, dtype: type) -> None:
    """Sums within float32 rounding of the exact ones, and the very largest error, wherever in the row it is."""
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((40, columns)).astype(dtype)
    decoded = (x.astype(np.float32) + 0.01 * rng.standard_normal(x.shape)).astype(np.float32)
    places = rng.integers(0, columns, 40)
    decoded[np.arange(40), places] = -9 * np.sign(x[np.arange(40), places].astype(np.float32))
    difference = x.astype(np.float32) - decoded
    signal, noise, worst = _error_sums(x, decoded)
    np.testing.assert_allclose(signal, (x.astype(np.float64) ** 2).sum(axis=1), rtol=4e-6)
    np.testing.assert_allclose(noise, (difference.astype(np.float64) ** 2).sum(axis=1), rtol=4e-6)
    np.testing.assert_array_equal(worst, np.abs(difference).max(axis=1))


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 130, 255, 299])
def test_a_non_finite_error_stays_visible(place: int, bad: float) -> None:
    decoded = np.zeros((3, 300), np.float32)
    decoded[1, place] = bad
    worst = np.asarray(_error_sums(np.ones((3, 300), np.float32), decoded).worst)
    assert list(np.isfinite(worst)) == [True, False, True]


def test_errors_do_not_depend_on_blocks(sample: Sample, tmp_path: Path) -> None:
    whole = convert(sample.checkpoint, tmp_path / "whole.ninfer", sample.recipe)
    blocks = convert(sample.checkpoint, tmp_path / "blocks.ninfer", sample.recipe, Settings(SMALL_BLOCK))
    measured = 0
    for one, other in zip(whole.tensors, blocks.tensors, strict=True):
        assert one.max_error == other.max_error, one.name
        assert one.sqnr_db == (None if other.sqnr_db is None else pytest.approx(other.sqnr_db, rel=1e-9)), one.name
        measured += one.sqnr_db is not None
    assert measured >= 10
