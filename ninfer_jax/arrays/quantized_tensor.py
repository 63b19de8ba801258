"""`QuantizedTensor`: one packed weight as a pytree of its planes.

The leaves are the planes of the persistent layout, byte for byte; format and logical columns are static. Leading axes
(stacked layers, expert banks) are allowed on every leaf, so `jax.lax.scan` and `jax.vmap` slice it. The constructor
checks nothing, because a pytree may hold any leaf; `ninfer_jax.arrays.validate` does. Products are in `ninfer_jax.ops`.
"""

import dataclasses
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, UInt8

from ninfer_jax import codecs, layouts
from ninfer_jax._typing import AnyArray
from ninfer_jax.arrays._geometry import lead_axes, logical_columns, quantized_format
from ninfer_jax.errors import LayoutError, NinferError, UnsupportedError
from ninfer_jax.formats import Format, QuantizedFormat


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class QuantizedTensor:
    """A weight `w[..., n, k]` of one of the six quantized formats, kept as its planes.

    It is no array: it has no arithmetic, and nothing decodes it silently. Two are equal where their formats, columns
    and planes are, in every byte; it has no hash, like an array.

    Attributes:
        planes: the planes tuple of the format's layout (see `ninfer_jax.planes`); the pytree leaves.
        format: canonical format name; static.
        k: logical columns of the whole weight; static. Inside `shard_map`, where the planes are one shard of the
            columns, it stays the whole weight's and `shape` is the shard's.
    """

    planes: Any
    format: str = dataclasses.field(metadata={"static": True})
    k: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def quantize(
        cls, x: Float[AnyArray, "*lead n k"], format: str | Format, *, encoder: str | None = None
    ) -> "QuantizedTensor":
        """`planes = pack(encode(x))`; eager.

        Args:
            x: source values [..., N, K], float32, bfloat16 or float16; NVFP4 needs N % 128 == 0 and K % 64 == 0.
            format: canonical name or spec of a quantized format.
            encoder: profile name; None takes the format's own.

        Raises:
            EncodeError: for a value that is not finite or a scale that cannot be represented.
            LayoutError: for a shape that the layout cannot hold.
        """
        spec = quantized_format(format)
        if 0 in getattr(x, "shape", ()):
            raise LayoutError(f"{spec.name} of shape {list(x.shape)}: a packed weight holds [..., N, K], all positive")
        words = codecs.quantize(x, spec, encoder=encoder)
        return cls(layouts.pack(words, spec), spec.name, int(x.shape[-1]))

    @classmethod
    def from_payload(
        cls, payload: bytes | memoryview | np.ndarray, format: str | Format, shape: Sequence[int]
    ) -> "QuantizedTensor":
        """The tensor whose planes are read-only NumPy views of a payload; nothing is copied or decoded.

        Args:
            payload: exactly the bytes of one stored tensor.
            format: canonical name or spec of a quantized format.
            shape: logical [N, K].

        Raises:
            LayoutError: where the byte count does not fit the shape.
        """
        spec = quantized_format(format)
        return cls(layouts.payload_to_planes(payload, spec, shape), spec.name, int(shape[-1]))

    def to_payload(self) -> UInt8[np.ndarray, " nbytes"]:
        """The exact payload bytes of the layout, planes at their offsets and zero bytes between them.

        Raises:
            LayoutError: for a tensor with leading axes, or one shard of a weight; a payload is one whole [N, K].
        """
        if len(self.shape) != 2 or self.shape[1] != self.k:
            raise LayoutError(
                f"a payload holds one whole [N, K]; this tensor is {list(self.shape)} with k = {self.k}:"
                " index the leading axes first, and gather shards"
            )
        return layouts.planes_to_payload(self.planes, self.format, self.shape)

    @property
    def spec(self) -> QuantizedFormat:
        """The spec of `format`."""
        return quantized_format(self.format)

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape [..., N, K] of the planes present."""
        codes = self.planes[0]
        return (*lead_axes(self.planes), codes.shape[-2], logical_columns(self.planes, self.spec, self.k))

    @property
    def ndim(self) -> int:
        """Number of logical axes, at least 2."""
        return self.planes[0].ndim

    @property
    def dtype(self) -> np.dtype:
        """What the tensor dequantizes to: float32."""
        return np.dtype(np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of all planes, padding within rows included."""
        leaves = [leaf for leaf in self.planes if leaf is not None]
        return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)

    @property
    def bits_per_weight(self) -> float:
        """`8 * nbytes / (number of logical weights)`."""
        return 8 * self.nbytes / math.prod(self.shape)

    def __getitem__(self, index: Any) -> "QuantizedTensor":
        """Select along the first axis without decoding: a leading axis as any array would, rows by slice or ids.

        Raises:
            LayoutError: for an index out of range, a selection of no rows or, in NVFP4, of a number of rows that is not
                a multiple of 128.
            UnsupportedError: for an index of more than the first axis, or one that is not one slice, or one 1-D integer
                array, of the rows.
        """
        if self.ndim == 2:
            return dataclasses.replace(self, planes=self._select_rows(index))
        if isinstance(index, tuple):
            raise UnsupportedError(f"index {index!r}: only the first axis of a packed tensor can be indexed")
        if isinstance(index, list):
            index = np.asarray(index)
        self._check_position(index)
        return dataclasses.replace(self, planes=jax.tree.map(lambda leaf: leaf[index], self.planes))

    def __iter__(self) -> Iterator["QuantizedTensor"]:
        """The tensors along a leading axis.

        Raises:
            UnsupportedError: for one matrix, whose rows are no tensors of their own.
        """
        if self.ndim == 2:
            raise UnsupportedError(f"{self!r} is one matrix; iterate over a leading axis, or take rows by w[a:b]")
        return (self[i] for i in range(self.shape[0]))

    def _check_position(self, index: Any) -> None:
        """Raise LayoutError for a static position that is not there; jax would take the last one."""
        try:
            position = operator.index(index)
        except TypeError:  # a slice or an array, or a traced position, whose value nobody knows
            return
        size = self.shape[0]
        if not -size <= position < size:
            raise LayoutError(f"index {position} of {self!r}: allowed {-size} to {size - 1}")

    def _select_rows(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(self.shape[0])
            if not range(start, stop, step):
                raise LayoutError(f"{index} selects no rows of {self!r}")
            if step != 1:
                return layouts.gather_rows(self.planes, self.format, np.arange(start, stop, step))
            return layouts.slice_rows(self.planes, self.format, start, stop)
        if isinstance(index, list):
            index = np.asarray(index)
        if isinstance(index, np.ndarray | jax.Array) and index.ndim == 1 and index.dtype != bool:
            return layouts.gather_rows(self.planes, self.format, index)
        raise UnsupportedError(
            f"rows of a packed tensor are selected by one slice or one 1-D integer array, not {index!r};"
            " jnp.flatnonzero gives those of a mask, and ops.take_rows dequantizes rows"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QuantizedTensor):
            return NotImplemented
        (mine, form), (theirs, other_form) = jax.tree.flatten(self), jax.tree.flatten(other)
        return form == other_form and all(map(np.array_equal, mine, theirs))

    # Without these, NumPy would take the tensor for one object, and `@` would not say what to call.
    __array_ufunc__ = None

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self!r} is no array; ninfer_jax.ops.dequantize(w) gives its float values")

    def __matmul__(self, other: Any) -> Any:
        raise TypeError(f"{self!r} has no operator @; ninfer_jax.matmul(x, w) is x @ w.T")

    __rmatmul__ = __matmul__

    def __repr__(self) -> str:
        try:
            return f"QuantizedTensor({self.format}, {list(self.shape)}, {self.bits_per_weight:.3f} bits a weight)"
        except (ArithmeticError, AttributeError, IndexError, TypeError, NinferError):
            # Leaves that are no weight, such as axes and shardings, or a format that does not exist.
            return f"QuantizedTensor({self.format}, k={self.k}, planes={self.planes!r})"
