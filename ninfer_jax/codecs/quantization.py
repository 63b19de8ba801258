"""The doors of the codecs: `quantize`, `try_quantize`, `dequantize` and the registry of encoder profiles.

A profile says how source values become words; the formats only say what words mean (tensor-formats §2.3, §7). This
module leaves out the arithmetic (one module an encoder or decoder) and byte layouts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

from ninfer_jax._typing import AnyArray
from ninfer_jax.codecs.boundary import as_words, integer_words
from ninfer_jax.codecs.fp8_row_decoder import decode_fp8_row
from ninfer_jax.codecs.fp8_row_encoder import FP8_ROW_MAXABS_BF16_V1, encode_fp8_row
from ninfer_jax.codecs.grouped_decoder import decode_grouped
from ninfer_jax.codecs.grouped_encoder import MAXABS_F16_RECIP_RNE_V1, encode_grouped
from ninfer_jax.codecs.nvfp4_decoder import decode_nvfp4
from ninfer_jax.codecs.nvfp4_encoder import NVFP4_MAXABS_V1, encode_nvfp4
from ninfer_jax.codecs.refusals import explain_refusal
from ninfer_jax.codecs.sources import device_source, host_source
from ninfer_jax.errors import FormatError, UnsupportedError
from ninfer_jax.formats import BlockScaledFormat, DirectFormat, Format, GroupedFormat, QuantizedFormat, get_format
from ninfer_jax.words import GroupedWords, NVFP4Words, QuantizedWords, RowScaledWords, Words


@dataclass(frozen=True)
class EncoderProfile:
    """A named rule from source values to words.

    Attributes:
        name: profile identity, recorded in reports.
        formats: canonical names of the formats it encodes.
    """

    name: str
    formats: tuple[str, ...]


ENCODERS: Mapping[str, EncoderProfile] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            EncoderProfile(MAXABS_F16_RECIP_RNE_V1, ("Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S")),
            EncoderProfile(FP8_ROW_MAXABS_BF16_V1, ("FP8_E4M3FN_ROW_BF16S",)),
            EncoderProfile(NVFP4_MAXABS_V1, ("NVFP4",)),
        )
    }
)
"""Read-only mapping of encoder profile names; every quantized format has exactly one."""


def get_encoder(format: str | Format, encoder: str | None = None) -> EncoderProfile:
    """Return the profile that encodes `format`: the named one, or the format's own for None.

    Raises:
        FormatError: for a direct format, which has no encoder, or an unknown profile name.
        UnsupportedError: for a profile that does not encode this format.

    Source: tensor-formats §2.3, §7.
    """
    spec = get_format(format)
    if isinstance(spec, DirectFormat):
        raise FormatError(f"{spec.name} is a direct format and has no encoder; use source_words or cast_words")
    if encoder is None:
        return next(profile for profile in ENCODERS.values() if spec.name in profile.formats)
    profile = ENCODERS.get(encoder)
    if profile is None:
        raise FormatError(f"unknown encoder profile {encoder!r}; the profiles are {', '.join(ENCODERS)}")
    if spec.name not in profile.formats:
        raise UnsupportedError(f"{profile.name} does not encode {spec.name}; it encodes {', '.join(profile.formats)}")
    return profile


def try_quantize(
    x: AnyArray, format: str | Format, *, encoder: str | None = None, divisor: AnyArray | np.generic | None = None
) -> tuple[QuantizedWords, Bool[Array, ""]]:
    """`words, ok = encode(x)` without raising on values; jit-able, vmap-able and shardable.

    The words are bit for bit those of the profile, the same eager, under jit, under vmap and sharded. Groups run along
    the last axis; for FP8 and NVFP4 the last two axes are the matrix.

    Args:
        x: source [..., k] (FP8, NVFP4: [..., n, k]), float32, bfloat16 or float16.
        format: canonical name or spec of a quantized format.
        encoder: profile name from `ENCODERS`; None takes the format's own.
        divisor: NVFP4 only: binary32 words of d_w, uint32 [...], to encode a row block with its whole matrix's divisor
            (see `nvfp4_divisor`, `matrix_amax`).

    Returns:
        The words, and one boolean: False where any source value is not finite or any scale cannot be represented. The
        words are then meaningless.

    Raises:
        FormatError: for a wrong dtype, rank, format or encoder.
        UnsupportedError: for an encoder of another format, or a divisor with one other than NVFP4.

    Source: as `quantize`.
    """
    spec = get_format(format)
    get_encoder(spec, encoder)
    if divisor is not None and not isinstance(spec, BlockScaledFormat):
        raise UnsupportedError(f"{spec.name} has no divisor; only NVFP4 takes divisor=")
    if isinstance(spec, GroupedFormat):
        return encode_grouped(device_source(x, 1), spec)
    source = device_source(x, 2)
    if not isinstance(spec, BlockScaledFormat):
        return encode_fp8_row(source)
    if divisor is not None:
        divisor = integer_words(divisor, "uint32", "divisor")
        if divisor.shape != source.shape[:-2]:
            raise FormatError(f"divisor of shape {list(divisor.shape)} for a source of shape {list(source.shape)}")
    return encode_nvfp4(source, divisor)


_try_quantize_jit = jax.jit(try_quantize, static_argnames=("format", "encoder"))


def quantize(
    x: AnyArray, format: str | Format, *, encoder: str | None = None, divisor: AnyArray | np.generic | None = None
) -> QuantizedWords:
    """`words = encode(x)`; eager.

    Args:
        x: source [..., k] (FP8, NVFP4: [..., n, k]), float32, bfloat16, float16, or float64 (rounded to float32 first).
        format: canonical name or spec of a quantized format.
        encoder: profile name from `ENCODERS`; None takes the format's own.
        divisor: NVFP4 only, see `try_quantize`.

    Returns:
        JAX arrays: words of the format.

    Raises:
        EncodeError: naming the first coordinate, in row-major order, that is not finite or whose scale overflows.
        FormatError, UnsupportedError: as `try_quantize`.

    Source: tensor-formats §7 for the four grouped formats; the profile's own rule for FP8 and NVFP4.
    """
    spec = get_format(format)
    source = host_source(x)
    if divisor is not None:
        divisor = integer_words(divisor, "uint32", "divisor")
    words, ok = _try_quantize_jit(source, spec, encoder=encoder, divisor=divisor)
    if not ok:
        given = None if divisor is None else np.asarray(divisor)
        raise explain_refusal(source, cast(QuantizedFormat, spec), given)
    return words


@partial(jax.jit, static_argnames="format")
def _dequantize(words: Words, format: Format) -> Array:
    if isinstance(format, DirectFormat):
        return _decode_direct(cast(AnyArray, words), format)
    if isinstance(format, GroupedFormat):
        return decode_grouped(cast(GroupedWords, words), format)
    if isinstance(format, BlockScaledFormat):
        return decode_nvfp4(cast(NVFP4Words, words))
    return decode_fp8_row(cast(RowScaledWords, words))


def dequantize(words: Words, format: str | Format) -> Float32[Array, "*shape"] | Int32[Array, "*shape"]:
    """`w = decode(words)`, exact in every bit; jit-able.

    Args:
        words: words of `format`; floating-point scalar types are taken by their bits.
        format: canonical name or spec, any of the nine.

    Returns:
        float32 values; int32 for I32. Legal words only: illegal ones decode to unspecified values.

    Raises:
        FormatError: for a words type, dtype or shape that does not belong to the format.

    Source: tensor-formats §3.1, §3.3, §3.4, §6.2.
    """
    spec = get_format(format)
    return _dequantize(as_words(words, spec), spec)


def _decode_direct(words: AnyArray, spec: DirectFormat) -> Array:
    """Bits of the value: BF16 words are the upper half of binary32 words."""
    array = jnp.asarray(words)
    if spec.value_dtype == "int32":
        return array
    if spec.value_dtype == "bfloat16":
        array = array.astype(jnp.uint32) << 16
    return lax.bitcast_convert_type(array, jnp.float32)
