"""What an artifact holds: its identity and its ordered objects (container, "Objects").

Plain frozen records. How they are read from JSON and checked is in `ninfer_jax.container._directory`; how offsets are
chosen is in `ninfer_jax.container.plan`. Offsets and sizes are bytes; offsets are relative to the payload offset.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ninfer_jax.layouts import Geometry, geometry

RAW_BYTES = "raw-bytes-v1"
"""The one resource encoding: a nonempty byte string."""


class Identity(NamedTuple):
    """Which model and which set of weights an artifact holds.

    Attributes:
        model_id: nonempty name of the model.
        weights_id: nonempty name of the weights; None in revision 1, which has none.
    """

    model_id: str
    weights_id: str | None


@dataclass(frozen=True)
class TensorObject:
    """One stored tensor.

    Attributes:
        name: unique nonempty name, compared code point by code point.
        shape: logical shape, elements; `()` is a scalar.
        format: canonical format name.
        layout: layout name; it accepts the format and the shape.
        offset: first byte of the payload, a multiple of the layout's alignment.
        nbytes: size of the payload, exactly the layout's size for (format, shape).
    """

    kind: ClassVar[str] = "tensor"
    name: str
    shape: tuple[int, ...]
    format: str
    layout: str
    offset: int
    nbytes: int

    @property
    def geometry(self) -> Geometry:
        """Where every plane and every row lies inside the payload."""
        return geometry(self.format, self.shape, self.layout)

    def entry(self) -> dict[str, Any]:
        """The directory entry: seven members in canonical order."""
        return {
            "name": self.name,
            "kind": self.kind,
            "shape": list(self.shape),
            "format": self.format,
            "layout": self.layout,
            "offset": self.offset,
            "bytes": self.nbytes,
        }


@dataclass(frozen=True)
class ResourceObject:
    """One stored file, such as a tokenizer.

    Attributes:
        name: unique nonempty name, compared code point by code point.
        encoding: `raw-bytes-v1`.
        offset: first byte of the payload; resources have alignment 1.
        nbytes: size of the payload, > 0.
    """

    kind: ClassVar[str] = "resource"
    name: str
    encoding: str
    offset: int
    nbytes: int

    def entry(self) -> dict[str, Any]:
        """The directory entry: five members in canonical order."""
        return {
            "name": self.name,
            "kind": self.kind,
            "encoding": self.encoding,
            "offset": self.offset,
            "bytes": self.nbytes,
        }


StoredObject = TensorObject | ResourceObject
