"""What a resolved recipe asks for: ordered objects, each with a lazy source of rows.

A converter consumes these types and nothing else of a recipe. Rows are read block by block along axis 0, so that
neither a tensor nor a fused parent of several tensors is ever held whole. This module leaves out how rows are found
(`ninfer_jax.recipes.resolve`), the expression tree behind them (`ninfer_jax.recipes.rows`) and every encoder.
Specification: container (objects), checkpoint-sources.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ninfer_jax.formats import DirectFormat, get_format
from ninfer_jax.sources import SourceRef
from ninfer_jax.words import QuantizedWords

Cast = Literal["round", "exact"]


@runtime_checkable
class RowSource(Protocol):
    """A logical tensor that can be read by rows of axis 0; a scalar has one row.

    Attributes:
        shape: logical shape, elements.
        dtype: safetensors name of the element type (`F32`, `BF16`, `I64`, ...); `F32` where `read` decodes words.
        sources: every checkpoint tensor it reads, in order, without duplicates.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...

    @property
    def sources(self) -> tuple[SourceRef, ...]: ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """Values of rows [start, stop), [stop - start, *shape[1:]] ([1] for a scalar); may be read-only."""
        ...


@runtime_checkable
class WordSource(RowSource, Protocol):
    """A RowSource over already quantized words; `read` decodes them, `read_words` hands them over bit for bit.

    Attributes:
        format: canonical name of the format whose words these are.
    """

    @property
    def format(self) -> str: ...

    def read_words(self, start: int, stop: int) -> QuantizedWords:
        """Words of rows [start, stop); the divisor of NVFP4Words is that of the whole matrix.

        Raises:
            SourceError: a word is outside the valid language of the format; the message names the tensor.
        """
        ...


@dataclass(frozen=True)
class TensorSpec:
    """One tensor to store.

    Attributes:
        name: stored name.
        shape: stored logical shape.
        format: canonical format name.
        rows: where its rows come from; `rows.shape == shape`.
        encoder: encoder profile that quantizes the values; None for a direct format and for word-exact copies.
        cast: how values of another type become direct words; None means the words are preserved.
        lossy: True where quantized words are decoded and encoded again.
        notes: facts for the report, such as the bits of a multiplier that became a divisor.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    rows: RowSource
    encoder: str | None = None
    cast: Cast | None = None
    lossy: bool = False
    notes: tuple[str, ...] = ()

    @property
    def word_exact(self) -> bool:
        """True where quantized words are copied: `rows` is then a WordSource of the same format."""
        return self.encoder is None and not isinstance(get_format(self.format), DirectFormat)


@dataclass(frozen=True)
class ResourceSpec:
    """One file to store as `raw-bytes-v1`.

    Attributes:
        name: stored name.
        path: the file; None where a recipe was resolved without its checkpoint.
        nbytes: size in bytes; None where unknown for the same reason.
        file: the name of the file inside the checkpoint, for reports.
    """

    name: str
    path: Path | None = field(repr=False)
    nbytes: int | None
    file: str


ObjectSpec = TensorSpec | ResourceSpec


class RecipeIdentity(NamedTuple):
    """The two identity strings that a recipe gives its artifact (container, revision 2)."""

    model_id: str
    weights_id: str


@dataclass(frozen=True)
class Resolution:
    """A recipe applied to one checkpoint: everything a converter needs, in stored order.

    Attributes:
        identity: model_id and weights_id of the artifact.
        objects: resources and tensors in stored order.
        dropped: source tensors left out on purpose, in source order.
        notes: facts for the report, such as optional objects left out.
    """

    identity: RecipeIdentity
    objects: tuple[ObjectSpec, ...]
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors alone, in stored order."""
        return tuple(spec for spec in self.objects if isinstance(spec, TensorSpec))

    @property
    def resources(self) -> tuple[ResourceSpec, ...]:
        """The resources alone, in stored order."""
        return tuple(spec for spec in self.objects if isinstance(spec, ResourceSpec))
