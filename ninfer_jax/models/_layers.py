"""Layers the models share: projections and embeddings of dense or packed weights, norms, rotary positions.

Activations are [..., features]; weights are [out, in]. Nothing here knows an architecture.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.ops import gated_linear, linear, take_rows

Weight = QuantizedTensor | jax.Array


def project(
    x: Float[Array, "*batch k"],
    weight: Weight,
    bias: Float[Array, " n"] | None = None,
    *,
    residual: Float[Array, "*batch n"] | None = None,
) -> Array:
    """`y[..., n] = sum_k x[..., k] * w[n, k] + b[n] + r[..., n]`, rounded once, for dense and packed weights alike."""
    if isinstance(weight, QuantizedTensor):
        return linear(x, weight, bias, residual=residual)
    y = jnp.einsum("...k,nk->...n", x, weight.astype(x.dtype), preferred_element_type=jnp.float32)
    y = y if bias is None else y + bias
    return (y if residual is None else y + residual).astype(x.dtype)


def project_gated(x: Float[Array, "*batch k"], gate_up: Weight) -> Array:
    """`silu(x @ gate.T) * (x @ up.T)` over a [gate; up] parent, for dense and packed weights alike."""
    if isinstance(gate_up, QuantizedTensor):
        return gated_linear(x, gate_up)
    gate, up = jnp.split(project(x, gate_up), 2, axis=-1)
    return jax.nn.silu(gate) * up


def embed(table: Weight, ids: Int[Array, "*batch"], dtype: Any) -> Array:
    """`y[..., k] = table[ids[...], k]`; a packed table dequantizes only the rows asked for."""
    if isinstance(table, QuantizedTensor):
        return take_rows(table, ids, dtype)
    return jnp.take(table, ids, axis=0).astype(dtype)


def layer_norm(x: Float[Array, "*batch d"], weight: Float[Array, " d"], bias: Float[Array, " d"], eps: float) -> Array:
    """`(x - mean) / sqrt(var + eps) * weight + bias` over the last axis, computed in float32."""
    wide = x.astype(jnp.float32)
    centered = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
    y = centered * jax.lax.rsqrt(variance + eps) * weight.astype(jnp.float32) + bias.astype(jnp.float32)
    return y.astype(x.dtype)


def rms_norm(x: Float[Array, "*batch d"], weight: Float[Array, " d"], eps: float) -> Array:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis, computed in float32."""
    wide = x.astype(jnp.float32)
    y = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return (y * weight.astype(jnp.float32)).astype(x.dtype)


def rotate(x: Float[Array, "b t h d"], positions: Int[Array, "b t"], theta: float) -> Array:
    """Rotary position embedding: lanes i and i + d/2 of a head turn by `position * theta^(-2i/d)`."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles)[:, :, None, :], jnp.sin(angles)[:, :, None, :]
    low, high = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(x.dtype)
