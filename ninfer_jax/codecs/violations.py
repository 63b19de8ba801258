"""Validation of existing words: masks by rule, counts under jit, and an eager check that names the first coordinate.

The rules are the valid languages of tensor-formats §3.3, §3.4, §5 and §6.1. Direct formats have none: every word is
legal.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Bool, Int32

from ninfer_jax._typing import AnyArray
from ninfer_jax.codecs.boundary import as_words
from ninfer_jax.codecs.grouping import join_groups, split_groups
from ninfer_jax.errors import FormatError, InvalidWordsError
from ninfer_jax.formats import DirectFormat, Format, GroupedFormat, get_format
from ninfer_jax.words import GroupedWords, NVFP4Words, RowScaledWords, Words

Masks = dict[str, tuple[str, Bool[AnyArray, "..."]]]  # rule -> (words field, mask of that field's shape)

_ALLOWED = {
    "code_out_of_range": "codes must be in the legal interval of the format",
    "code_nan": "codes must not be NaN (0x7f, 0xff)",
    "scale_negative": "scales must not be negative",
    "scale_minus_zero": "a zero scale must be positive zero",
    "scale_infinite": "scales must be finite",
    "scale_nan": "scales must not be NaN",
    "zero_scale_nonzero_code": "where the scale is zero, every code must be zero",
    "divisor_not_finite_positive": "the divisor must be finite and positive",
}


def count_violations(words: Words, format: str | Format) -> dict[str, Int32[Array, ""]]:
    """`count[rule] = sum(mask[rule])`: how many words break each rule; jit-able.

    Args:
        words: words of `format`.
        format: canonical name or spec.

    Returns:
        One int32 count a rule, in a fixed order; empty for direct formats. Codes are counted by element, scales by
        group or row, `zero_scale_nonzero_code` by element.

    Raises:
        FormatError: for a words type, dtype or shape that does not belong to the format.

    Source: tensor-formats §3.3, §3.4, §5, §6.1.
    """
    return {rule: _count(mask) for rule, (_, mask) in _masks(words, format).items()}


def check_words(words: Words, format: str | Format, *, first_row: int = 0) -> None:
    """Raise for the first rule that any word breaks; eager.

    Args:
        words: words of `format`, concrete arrays.
        format: canonical name or spec.
        first_row: the row of a larger tensor where the words begin, in whose coordinates the error speaks.

    Raises:
        InvalidWordsError: naming the rule, the field, the first coordinate in row-major order and its word.
        FormatError: for a words type, dtype or shape that does not belong to the format, or for traced words.

    Source: tensor-formats §3.3, §3.4, §5, §6.1.
    """
    spec = get_format(format)
    typed = as_words(words, spec)
    if any(isinstance(field, Tracer) for field in jax.tree.leaves(typed)):
        raise FormatError("check_words() looks at values, so it cannot be traced; under jit use count_violations()")
    counts = _count_jit(typed, spec)
    if not any(int(count) for count in counts.values()):
        return
    masks = _masks(typed, spec)
    rule = next(rule for rule in masks if int(counts[rule]))
    field, mask = masks[rule]
    bad = np.asarray(mask)
    at = np.unravel_index(int(bad.argmax()), bad.shape)
    value = np.asarray(getattr(typed, field))[at]
    place = f"{field}[{', '.join(map(str, (at[0] + first_row, *at[1:])))}]" if at else field
    raise InvalidWordsError(
        f"{spec.name}: {place} = {_show(value)} breaks {rule} ({int(counts[rule])} in all): {_ALLOWED[rule]}; "
        "the words are damaged or of another format"
    )


_CHUNK, _LANES = 256, 32

# Fused into one pass over the words; the masks are made only to name a coordinate.
_count_jit = jax.jit(count_violations, static_argnames="format")


def _count(mask: Bool[AnyArray, "..."]) -> Int32[Array, ""]:
    """How many are set. Eight are added at a time first: XLA's CPU backend does that with vector instructions."""
    partial = jnp.asarray(mask, jnp.int32)
    if mask.ndim:
        if mask.shape[-1] < _CHUNK:  # filling every short row up would cost more than the row
            partial = partial.reshape(-1)
        lanes = jnp.sum(split_groups(split_groups(partial, _CHUNK), _LANES), axis=-2)
        partial = lax.optimization_barrier(lanes)
    return jnp.sum(partial, dtype=jnp.int32)


def _show(value: np.generic) -> str:
    if value.dtype == np.int8:
        return str(value)
    bits = value.view(f"uint{8 * value.dtype.itemsize}")
    return f"{int(bits):#0{2 + 2 * value.dtype.itemsize}x}"


def _masks(words: Words, format: str | Format) -> Masks:
    """The masks of a format's words, as JAX arrays."""
    spec = get_format(format)
    typed = as_words(words, spec)
    if isinstance(spec, DirectFormat):
        return {}
    if isinstance(spec, GroupedFormat):
        return _grouped_masks(GroupedWords(*map(jnp.asarray, typed)), spec)
    if isinstance(typed, NVFP4Words):
        return _nvfp4_masks(NVFP4Words(*map(jnp.asarray, typed)))
    return _row_scaled_masks(RowScaledWords(*map(jnp.asarray, typed)))


def _grouped_masks(words: GroupedWords, spec: GroupedFormat) -> Masks:
    codes, scales = words
    zero = (scales & 0x7FFF == 0)[..., None] & (split_groups(jnp.asarray(codes), spec.group_size) != 0)
    return {
        "code_out_of_range": ("codes", (codes < spec.qmin) | (codes > spec.qmax)),
        **_scale_masks(scales, infinity=0x7C00),
        "zero_scale_nonzero_code": ("codes", join_groups(zero, codes.shape[-1])),
    }


def _nvfp4_masks(words: NVFP4Words) -> Masks:
    codes, scales, divisor = words
    nan = scales & 0x7F == 0x7F
    return {
        "code_out_of_range": ("codes", codes > 15),
        "scale_negative": ("scales", (scales > 0x80) & ~nan),
        "scale_minus_zero": ("scales", scales == 0x80),
        "scale_nan": ("scales", nan),
        "divisor_not_finite_positive": ("divisor", (divisor == 0) | (divisor >= 0x7F800000)),
    }


def _row_scaled_masks(words: RowScaledWords) -> Masks:
    codes, scales = words
    zero = (scales & 0x7FFF == 0)[..., None]
    return {
        "code_nan": ("codes", codes & 0x7F == 0x7F),
        **_scale_masks(scales, infinity=0x7F80),
        "zero_scale_nonzero_code": ("codes", zero & (codes & 0x7F != 0)),
    }


def _scale_masks(scales: AnyArray, infinity: int) -> Masks:
    """Rules of 16-bit floating-point scales; each illegal word breaks exactly one."""
    magnitude = scales & 0x7FFF
    return {
        "scale_negative": ("scales", (scales > 0x8000) & (magnitude < infinity)),
        "scale_minus_zero": ("scales", scales == 0x8000),
        "scale_infinite": ("scales", magnitude == infinity),
        "scale_nan": ("scales", magnitude > infinity),
    }
