"""Exact decoder of the four grouped formats: `w = scale * code` in binary32 (tensor-formats §6.2)."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32

from ninfer_jax.codecs.grouping import join_groups, split_groups
from ninfer_jax.formats import GroupedFormat
from ninfer_jax.words import GroupedWords


def decode_grouped(words: GroupedWords, spec: GroupedFormat) -> Float32[Array, "*lead k"]:
    """`w[..., i] = binary32(scale[..., i // group_size]) * code[..., i]`; the product is exact and never subnormal."""
    codes = jnp.asarray(words.codes)
    scales = lax.bitcast_convert_type(jnp.asarray(words.scales), jnp.float16).astype(jnp.float32)
    values = split_groups(codes, spec.group_size).astype(jnp.float32) * scales[..., None]
    return join_groups(values, codes.shape[-1])
