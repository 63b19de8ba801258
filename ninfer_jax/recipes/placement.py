"""Decide how rows become a stored tensor: which format, which encoder or cast, and whether its layout can hold it.

All refusals that need no weights happen here, before anything is written. Leaves out rules and templates, which only
choose the arguments. Specification: tensor-formats §3.1, checkpoint-sources (policy), storage-layouts.
"""

from ninfer_jax.codecs import get_encoder
from ninfer_jax.errors import FormatError, LayoutError, RecipeError, UnsupportedError
from ninfer_jax.formats import DirectFormat, Format, get_format
from ninfer_jax.layouts import geometry
from ninfer_jax.recipes.objects import Cast, RowSource, TensorSpec, WordSource
from ninfer_jax.recipes.rows import describe
from ninfer_jax.sources import DIALECTS, FLOAT_TYPES, INTEGER_TYPES

SOURCE = "source"
"""Format keyword: the words as they are, direct or quantized."""

DIRECT = "direct"
"""Format keyword: as `source`, and by exact widening where no direct format has the type (F16, F64, integers)."""

_SAME_TYPE = {"BF16": "BF16", "F32": "FP32", "I32": "I32"}
_WIDENED = {"F16": "FP32", "F64": "FP32", **dict.fromkeys(INTEGER_TYPES - {"I32"}, "I32")}
_CASTS = {
    "BF16": {"F32": ("round", "exact"), "F16": ("round", "exact")},
    "FP32": dict.fromkeys(("BF16", "F16", "F64"), ("round", "exact")),
    "I32": {
        **dict.fromkeys(INTEGER_TYPES - {"I32"}, ("round", "exact")),
        **dict.fromkeys(("F16", "BF16", "F32", "F64"), ("exact",)),
    },
}


def store(
    name: str, rows: RowSource, format: str, *, cast: Cast | None = None, encoder: str | None = None
) -> TensorSpec:
    """Plan one stored tensor.

    `words = rows` where quantized words keep their format or a direct type stays; `words = cast(rows)` for a direct
    format and a named cast; `words = encode(rows)` for a quantized format.

    Args:
        name: stored name.
        rows: the logical tensor, from a checkpoint or the functions of this package.
        format: a canonical format name, `source` or `direct`.
        cast: `round` or `exact`, for a direct format of another type.
        encoder: encoder profile of a quantized format. None is the format's own for float sources; quantized sources
            are then only copied word for word.

    Raises:
        RecipeError: a combination that is not allowed; the message names the tensor and what would be.
    """
    if format in (SOURCE, DIRECT):
        if cast is not None or encoder is not None:
            raise RecipeError(f"{name}: format = {format!r} takes neither cast nor encoder; name a format")
        format, cast = _own_format(name, rows, widen=format == DIRECT)
    try:
        spec = get_format(format)
    except FormatError as error:
        raise RecipeError(f"{name}: {error}, and the keywords {SOURCE!r} and {DIRECT!r}") from None
    planned = _direct(name, rows, spec, cast, encoder) if isinstance(spec, DirectFormat) else None
    planned = planned or _quantized(name, rows, spec, cast, encoder)
    if not all(planned.shape):
        raise RecipeError(
            f"{name}: {describe(rows)} has no elements, and an artifact stores none; drop it by a [[rule]]"
        )
    try:
        geometry(spec, planned.shape)
    except LayoutError as error:
        raise RecipeError(f"{name}: {describe(rows)} cannot be stored as {spec.name}: {error}") from None
    return planned


def fits(format: str, shape: tuple[int, ...]) -> bool:
    """True where the layout of a format can hold a shape."""
    try:
        geometry(format, shape)
    except LayoutError:
        return False
    return True


def _own_format(name: str, rows: RowSource, *, widen: bool) -> tuple[str, Cast | None]:
    if isinstance(rows, WordSource):
        return rows.format, None
    reason = getattr(rows, "reason", None)
    if reason:
        raise RecipeError(f"{name}: {_where(rows)} does not map word for word: {reason}; {_way_out(rows)}")
    if rows.dtype in _SAME_TYPE:
        return _SAME_TYPE[rows.dtype], None
    if widen and rows.dtype in _WIDENED:
        return _WIDENED[rows.dtype], "exact"
    if rows.dtype.startswith("F8_"):
        raise RecipeError(
            f"{name}: {describe(rows)}: float8 codes without their scales are no weight; open the checkpoint with the "
            f"dialect that knows them ({', '.join(DIALECTS[1:])}), or drop it"
        )
    hint = next((f'format = "{target}" with cast = "{modes[-1]}"' for target, modes in _casts_of(rows.dtype)), None)
    use = f"name {hint}, or drop it" if hint else "drop it"
    raise RecipeError(f"{name}: {describe(rows)}: no direct format stores {rows.dtype} words; {use}")


def _casts_of(dtype: str) -> list[tuple[str, tuple[str, ...]]]:
    """Targets of a type and their casts, the exact and widest first."""
    order = ("I32", "FP32", "BF16") if dtype in INTEGER_TYPES else ("FP32", "BF16", "I32")
    return [(target, _CASTS[target][dtype]) for target in order if dtype in _CASTS[target]]


def _way_out(rows: RowSource, spec: Format | None = None) -> str:
    """What a recipe can do about words that do not map."""
    if not getattr(rows, "decodable", True):
        return "nothing here decodes it either; drop it, or convert a checkpoint that holds it as plain values"
    profile = f" ({get_encoder(spec).name})" if spec is not None else " with its format"
    return f"name an encoder{profile} to decode and encode it again, which the report records as lossy"


def _where(rows: RowSource) -> str:
    dialect = getattr(rows, "dialect", None)
    return describe(rows) + (f" ({dialect})" if dialect else "")


def _direct(name: str, rows: RowSource, spec: DirectFormat, cast: Cast | None, encoder: str | None) -> TensorSpec:
    if encoder is not None:
        raise RecipeError(f"{name}: {spec.name} is a direct format and takes a cast, not encoder = {encoder!r}")
    decoded = isinstance(rows, WordSource) or bool(getattr(rows, "reason", None))
    if _SAME_TYPE.get(rows.dtype) == spec.name and not decoded:
        return TensorSpec(name, rows.shape, spec.name, rows)
    if cast is None:
        what = "its quantized words would be decoded" if decoded else f"its type is {rows.dtype}"
        raise RecipeError(
            f"{name}: {_where(rows)} becomes {spec.name} only by a cast, because {what}; "
            + _cast_hint(rows.dtype, spec.name, decoded)
        )
    allowed = ("round", "exact") if decoded and spec.name == "FP32" else _CASTS[spec.name].get(rows.dtype, ())
    if cast not in allowed:
        raise RecipeError(
            f"{name}: no cast {cast!r} takes {describe(rows)} to {spec.name}; "
            + _cast_hint(rows.dtype, spec.name, decoded)
        )
    _need_decoder(name, rows)
    return TensorSpec(name, rows.shape, spec.name, rows, cast=cast, lossy=decoded)


def _need_decoder(name: str, rows: RowSource) -> None:
    if not getattr(rows, "decodable", True):
        raise RecipeError(f"{name}: {_where(rows)}: {getattr(rows, 'reason', None)}; {_way_out(rows)}")


def _cast_hint(dtype: str, target: str, decoded: bool) -> str:
    modes = ("exact",) if decoded and target == "FP32" else _CASTS[target].get(dtype, ())
    if modes:
        return "name " + " or ".join(f'cast = "{mode}"' for mode in modes)
    others = [f'{other} (cast = "{modes[-1]}")' for other, modes in _casts_of(dtype)]
    return f"{dtype} casts to {', '.join(others)}" if others else f"{dtype} has no casts; drop it"


def _quantized(name: str, rows: RowSource, spec: Format, cast: Cast | None, encoder: str | None) -> TensorSpec:
    if cast is not None:
        raise RecipeError(f"{name}: {spec.name} is quantized by an encoder and takes no cast = {cast!r}")
    reason = getattr(rows, "reason", None)
    if encoder is None:
        if isinstance(rows, WordSource):
            if rows.format == spec.name:
                return TensorSpec(name, rows.shape, spec.name, rows, notes=tuple(getattr(rows, "notes", ())))
            reason = f"it holds {rows.format} words"
        if reason:
            raise RecipeError(
                f"{name}: {_where(rows)} does not map word for word to {spec.name}: {reason}; {_way_out(rows, spec)}"
            )
    try:
        profile = get_encoder(spec, encoder)
    except (FormatError, UnsupportedError) as error:
        raise RecipeError(f"{name}: {error}") from None
    _need_decoder(name, rows)
    lossy = isinstance(rows, WordSource) or bool(reason)
    if rows.dtype not in FLOAT_TYPES:
        raise RecipeError(f"{name}: {describe(rows)} cannot be quantized; an encoder takes {sorted(FLOAT_TYPES)}")
    notes = (f"{name}: decoded to float32 and encoded again",) if lossy else ()
    return TensorSpec(name, rows.shape, spec.name, rows, encoder=profile.name, lossy=lossy, notes=notes)
