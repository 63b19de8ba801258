"""The static part of one product, and the flat arrays that go with it. Nothing here computes."""

import dataclasses
from typing import Any, Literal, cast

from ninfer_jax.arrays import quantized_format
from ninfer_jax.formats import GroupedFormat, QuantizedFormat
from ninfer_jax.layouts import layout_of
from ninfer_jax.ops.epilogue import Epilogue

Form = Literal["matrix", "bank", "ragged"]


@dataclasses.dataclass(frozen=True)
class Call:
    """One product; the arrays it takes are x, the planes' leaves, and the operands of its epilogue or its group sizes.

    Attributes:
        format: canonical format name.
        k: logical columns of the weight, or of the caller's shard inside `shard_map`.
        transposed: False for x [M, columns] to y [M, N], True for dy [M, N] to dx [M, columns].
        implementation: name of the one that multiplies.
        platform: where it runs.
        out_dtype: dtype name of the result.
        epilogue: what is done to the sums before they are rounded.
        form: "matrix" for one weight; "bank" for x [E, M, columns] times weights [E, N, K], each its own; "ragged" for
            x [M, columns] whose rows are sorted by weight.
    """

    format: str
    k: int
    transposed: bool
    implementation: str
    platform: str
    out_dtype: str
    epilogue: Epilogue = Epilogue()  # noqa: RUF009, frozen
    form: Form = "matrix"

    @property
    def spec(self) -> QuantizedFormat:
        """The spec of `format`."""
        return quantized_format(self.format)

    @property
    def plain(self) -> "Call":
        """The product alone, its sums in float32."""
        return dataclasses.replace(self, out_dtype="float32", epilogue=Epilogue())

    def divide(self, arrays: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The planes' leaves, and what comes behind them."""
        others = self.epilogue.bias + (self.epilogue.residual is not None) + (self.form == "ragged")
        count = len(arrays) - others
        return arrays[:count], arrays[count:]


def planes_of(call: Call, leaves: tuple[Any, ...]) -> Any:
    """The planes tuple of flat leaves, None where the format has no such plane."""
    planes_type = cast(Any, layout_of(call.format).planes_type)
    if isinstance(call.spec, GroupedFormat) and len(leaves) == 2:
        return planes_type(leaves[0], None, leaves[1])
    return planes_type(*leaves)
