"""A tensor known by name and shape only, for plans made from a config.json without weights."""

from dataclasses import dataclass

import numpy as np

from ninfer_jax.errors import SourceError
from ninfer_jax.sources import ELEMENT_TYPES, SourceRef


@dataclass(frozen=True)
class DeclaredTensor:
    """What a recipe says about a tensor that is not there; a `RowSource` whose rows cannot be read."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def sources(self) -> tuple[SourceRef, ...]:
        """Its name; the file is unknown."""
        return (SourceRef(self.name, ""),)

    def read(self, start: int, stop: int) -> np.ndarray:
        """An empty block where none is asked for.

        Raises:
            SourceError: rows are asked for.
        """
        if start == stop:
            return np.empty((0, *self.shape[1:]), ELEMENT_TYPES[self.dtype].dtype)
        raise SourceError(f"tensor {self.name!r} was planned from config.json alone; its rows need the checkpoint")
