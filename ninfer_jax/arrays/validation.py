"""Checks of a QuantizedTensor's planes, apart from its constructor: types, dtypes and shapes, never values.

Illegal codes and scales are found by `ninfer_jax.codecs.check_words` on the unpacked words.
"""

from ninfer_jax.arrays._geometry import (
    GROUP_NBYTES,
    NVFP4_COLUMNS,
    NVFP4_ROWS,
    column_block,
    lead_axes,
    physical_columns,
    stored_columns,
)
from ninfer_jax.arrays.quantized_tensor import QuantizedTensor
from ninfer_jax.arrays.sharding import shard_counts
from ninfer_jax.errors import LayoutError
from ninfer_jax.formats import BlockScaledFormat, GroupedFormat
from ninfer_jax.layouts import layout_of

_Plane = tuple[str, tuple[int, ...]] | None


def validate(w: QuantizedTensor) -> None:
    """Raise unless w is a packed weight whose planes fit its format; works on traced, abstract and concrete leaves.

    Raises:
        LayoutError: for something else than a `QuantizedTensor`, another planes type, a plane missing or too many, a
            wrong dtype or shape, or planes that are a shard of the columns cut through a group or block; the message
            then lists the possible shard counts.
    """
    if not isinstance(w, QuantizedTensor):
        raise LayoutError(
            f"the weight is {type(w).__name__}, not QuantizedTensor; pack a float array with QuantizedTensor.quantize"
        )
    planes_type = layout_of(w.format).planes_type
    if planes_type is None or not isinstance(w.planes, planes_type):
        raise LayoutError(f"{w.format} planes are {getattr(planes_type, '__name__', None)}, not {type(w.planes)}")
    _check_rank(w)
    _check_columns(w)
    for name, expected in _expected(w).items():
        plane = getattr(w.planes, name)
        given = None if plane is None else (str(plane.dtype), tuple(plane.shape))
        if given != expected:
            raise LayoutError(f"{w.format} {list(w.shape)}: plane {name} is {_text(given)}, needed {_text(expected)}")


def _check_rank(w: QuantizedTensor) -> None:
    codes = w.planes[0]
    if codes is None or len(codes.shape) < 2 or 0 in codes.shape:
        shape = None if codes is None else list(codes.shape)
        raise LayoutError(f"{w.format}: a code plane of shape {shape}; needed [..., N, row bytes], all positive")


def _check_columns(w: QuantizedTensor) -> None:
    columns, stored, block = physical_columns(w.planes, w.spec), stored_columns(w.spec, w.k), column_block(w.spec)
    if columns == stored:
        return
    if not 0 < columns <= stored or stored % columns or columns % block or w.k != stored:
        raise LayoutError(
            f"{w.format} with k = {w.k}: planes of {columns} columns are neither the whole weight ({stored}) nor a"
            f" whole shard of it; a split of the columns may have {_counts(shard_counts(w.format, w.k))} shards"
        )


def _counts(counts: tuple[int, ...]) -> str:
    return ", ".join(map(str, counts))


def _text(plane: _Plane) -> str:
    return "absent" if plane is None else f"{plane[0]} {list(plane[1])}"


def _expected(w: QuantizedTensor) -> dict[str, _Plane]:
    """Dtype and shape of every plane, from the logical shape; None where the format has no such plane."""
    spec, lead = w.spec, lead_axes(w.planes)
    n, columns = w.shape[-2], physical_columns(w.planes, w.spec)
    if isinstance(spec, GroupedFormat):
        groups = columns // spec.group_size
        high = {5: 8, 6: 16}.get(spec.bits)
        return {
            "base": ("uint8", (*lead, n, GROUP_NBYTES * groups)),
            "high": None if high is None else ("uint8", (*lead, n, high * groups)),
            "scales": ("uint16", (*lead, n, groups)),
        }
    if isinstance(spec, BlockScaledFormat):
        if n % NVFP4_ROWS or columns % NVFP4_COLUMNS:
            raise LayoutError(f"NVFP4 [{n}, {columns}]: needed N % {NVFP4_ROWS} == 0 and K % {NVFP4_COLUMNS} == 0")
        tiles = (n // NVFP4_ROWS, columns // NVFP4_COLUMNS, 32, 4, 4)
        return {
            "codes": ("uint8", (*lead, n, columns // 2)),
            "scales": ("uint8", (*lead, *tiles)),
            "divisor": ("uint32", lead),
        }
    return {"codes": ("uint8", (*lead, n, columns)), "scales": ("uint16", (*lead, n))}
