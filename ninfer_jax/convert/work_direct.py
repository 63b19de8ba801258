"""Blocks of direct tensors and of resources: words and bytes as they are, or the cast that a recipe names.

Specification: tensor-formats §3.1, container (resources).
"""

from typing import Any

import numpy as np

from ninfer_jax.codecs import cast_words, source_words
from ninfer_jax.convert.failures import in_tensor
from ninfer_jax.convert.totals import ErrorTotals
from ninfer_jax.errors import CastError, ConversionError, SourceChangedError
from ninfer_jax.formats import DirectFormat, get_format
from ninfer_jax.recipes import ResourceSpec, TensorSpec
from ninfer_jax.sources import PositionedFile


class DirectCopy:
    """The words of a tensor of the same type, preserved bit for bit."""

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.target = _direct(spec)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Words of the rows."""
        block = np.ascontiguousarray(self.spec.rows.read(start, stop))
        words = in_tensor(self.spec.name, lambda: source_words(block))
        if words.dtype != self.target.word_dtype:
            raise CastError(
                f"tensor {self.spec.name!r} holds {block.dtype}, which {self.target.name} does not store as it is; "
                "name a cast in the recipe"
            )
        return words

    def launch(self, data: np.ndarray) -> np.ndarray:
        """Nothing to compute."""
        return data

    def collect(self, start: int, stop: int, result: np.ndarray) -> tuple[Any, ErrorTotals]:
        """The words; nothing was rounded."""
        return result, ErrorTotals()


class DirectCast:
    """A cast named by the recipe: `words = cast(x)`, rounded or refused where not exact; all of it on the host."""

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.target = _direct(spec)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Source values of the rows."""
        return self.spec.rows.read(start, stop)

    def launch(self, data: np.ndarray) -> np.ndarray:
        """The cast waits for the row numbers that its errors name."""
        return data

    def collect(self, start: int, stop: int, result: np.ndarray) -> tuple[Any, ErrorTotals]:
        """The words of the rows."""
        mode = self.spec.cast or "exact"
        words = in_tensor(self.spec.name, lambda: cast_words(result, self.target.name, mode=mode, first_row=start))
        return words, ErrorTotals()


class ResourceCopy:
    """Bytes of a file, as they are."""

    def __init__(self, spec: ResourceSpec) -> None:
        self.spec = spec

    def read(self, start: int, stop: int) -> np.ndarray:
        """Bytes [start, stop) of the file."""
        if self.spec.path is None:
            raise ConversionError(f"resource {self.spec.name!r}: the recipe was resolved without its checkpoint")
        file = PositionedFile(self.spec.path)
        try:
            if file.nbytes != self.spec.nbytes:
                raise SourceChangedError(f"{self.spec.file} has {file.nbytes} bytes now, and had {self.spec.nbytes}")
            return file.read(start, stop - start)
        finally:
            file.close()

    def launch(self, data: np.ndarray) -> np.ndarray:
        """Nothing to compute."""
        return data

    def collect(self, start: int, stop: int, result: np.ndarray) -> tuple[Any, ErrorTotals]:
        """The bytes."""
        return result, ErrorTotals()


def _direct(spec: TensorSpec) -> DirectFormat:
    target = get_format(spec.format)
    if not isinstance(target, DirectFormat):
        raise ConversionError(f"tensor {spec.name!r}: {spec.format} is not a direct format")
    return target
