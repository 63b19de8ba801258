"""Source values for codec tests: random words of every kind, kept as integer words until the last moment."""

import ml_dtypes
import numpy as np

from ninfer_jax.formats import GroupedFormat, get_format

# Eager tests of the grouped encoder share one shape, because every operation is compiled for every shape.
ROWS, COLUMNS = 192, 260

DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}


def grouped_spec(name: str) -> GroupedFormat:
    """The spec of a grouped format."""
    spec = get_format(name)
    if not isinstance(spec, GroupedFormat):
        raise TypeError(f"{name} is not grouped")
    return spec


def as_source(words: np.ndarray, dtype: str) -> np.ndarray:
    """The array a user would pass: the words viewed as their scalar type."""
    return words.view(DTYPES[dtype])


def widen(x: np.ndarray) -> np.ndarray:
    """Exact float32 values of a source; ml_dtypes and NumPy convert without flushing."""
    return x.astype(np.float32)


def bits(x) -> np.ndarray:
    """The unsigned words of a NumPy or JAX array of any 16 or 32-bit float type."""
    array = np.asarray(x)
    return array.view(f"uint{8 * array.dtype.itemsize}")


def wild_f32(rng: np.random.Generator, shape: tuple[int, ...], limit_word: int) -> np.ndarray:
    """Finite float32 values below `limit_word` in magnitude: every last axis has its own range of exponents.

    Some rows hold only subnormals, some one binade, some everything; signed zeros are sprinkled over all.
    """
    low = rng.integers(0, limit_word, (*shape[:-1], 1))
    low = np.where(rng.random(low.shape) < 0.2, 0, low)
    width = np.array([4, 1 << 16, 1 << 23, 1 << 25, limit_word])[rng.integers(0, 5, low.shape)]
    high = np.minimum(low + width, limit_word)
    words = rng.integers(low, high, shape).astype(np.uint32)
    words = np.where(rng.random(shape) < 0.05, np.uint32(0), words)
    return (words | (rng.integers(0, 2, shape).astype(np.uint32) << np.uint32(31))).view(np.float32)
