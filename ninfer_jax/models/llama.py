"""A Llama-architecture decoder on dense or packed weights: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Tensors are those of the built-in recipe `llama`: query, key and value rows in one parent, gate and up rows in another.
Layers are stacked along a leading axis and run by `jax.lax.scan`, so compile time does not grow with depth and packed
weights stay packed. The head may be tied to the embedding. Sampling is in `ninfer_jax.models.generation`; rotary
scaling variants, attention biases and mixtures of experts are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ninfer_jax.errors import ArtifactError, UnsupportedError
from ninfer_jax.models._layers import Weight, embed, project, project_gated, rms_norm, rotate


@dataclass(frozen=True)
class LlamaConfig:
    """Dimensions of a decoder, named as in config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> "LlamaConfig":
        """Read the fields from a parsed config.json.

        Raises:
            ArtifactError: not a Llama configuration, or a field is missing.
            UnsupportedError: rotary scaling or attention biases, which this decoder does not implement.
        """
        if config.get("model_type") != "llama":
            raise ArtifactError(f"config.json has model_type {config.get('model_type')!r}; this model needs 'llama'")
        for field in ("rope_scaling", "attention_bias", "mlp_bias"):
            if config.get(field):
                raise UnsupportedError(f"config.json sets {field} = {config[field]!r}, which this decoder lacks")
        try:
            heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
            return cls(
                vocab_size=int(config["vocab_size"]),
                hidden_size=hidden,
                num_hidden_layers=int(config["num_hidden_layers"]),
                num_attention_heads=heads,
                num_key_value_heads=int(config.get("num_key_value_heads", heads)),
                head_dim=int(config.get("head_dim") or hidden // heads),
                rope_theta=float(config.get("rope_theta", 10000.0)),
                rms_norm_eps=float(config["rms_norm_eps"]),
            )
        except KeyError as error:
            raise ArtifactError(f"config.json has no field {error.args[0]!r}") from error


class LlamaLayer(NamedTuple):
    """One decoder layer, or all of them stacked along a leading axis of every leaf.

    The rows of `query_key_value` are [query; key; value], those of `gate_up` [gate; up].
    """

    input_norm: jax.Array
    query_key_value: Weight
    output: Weight
    post_attention_norm: jax.Array
    gate_up: Weight
    down: Weight


class LlamaParams(NamedTuple):
    """All weights; `head` is None when tied to the embedding."""

    embedding: Weight
    layers: LlamaLayer
    final_norm: jax.Array
    head: Weight | None


class KVCache(NamedTuple):
    """Keys and values of past tokens; `length` of the slots are filled."""

    keys: Float[Array, "layers batch slots kv_heads head_dim"]
    values: Float[Array, "layers batch slots kv_heads head_dim"]
    length: Int[Array, ""]


# Stored name of each field of LlamaLayer, in the order of its fields.
_LAYER_PARTS = (
    "input_norm",
    "attention/query_key_value",
    "attention/output",
    "post_attention_norm",
    "mlp/gate_up",
    "mlp/down",
)


def params_from_names(weights: Mapping[str, Any], config: LlamaConfig) -> LlamaParams:
    """Arrange tensors, named as the recipe `llama` stores them, into stacked parameters.

    Raises:
        ArtifactError: a tensor of the model is missing, or the layers differ in format and cannot be stacked.
    """

    def tensor(name: str) -> Any:
        if name not in weights:
            raise ArtifactError(
                f"the artifact has no tensor {name!r}, which a Llama decoder needs; convert with --recipe llama"
            )
        return weights[name]

    layers = [
        LlamaLayer(*(tensor(f"text/layers/{index}/{part}") for part in _LAYER_PARTS))
        for index in range(config.num_hidden_layers)
    ]
    structures = {jax.tree.structure(layer) for layer in layers}
    if len(structures) != 1:
        raise ArtifactError("the decoder layers differ in format; every layer must store a role in the same format")
    return LlamaParams(
        embedding=tensor("text/token_embedding"),
        layers=jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers),
        final_norm=tensor("text/final_norm"),
        head=weights.get("text/output_head"),
    )


def empty_cache(config: LlamaConfig, batch: int, slots: int, dtype: Any) -> KVCache:
    """A cache with room for `slots` tokens per sequence."""
    shape = (config.num_hidden_layers, batch, slots, config.num_key_value_heads, config.head_dim)
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros((), jnp.int32))


def _layer(
    x: Array, layer: LlamaLayer, keys: Array, values: Array, start: Array, positions: Array, mask: Array, c: LlamaConfig
) -> tuple[Array, Array, Array]:
    """One decoder layer; returns the new residual stream and this layer's updated cache."""
    batch, length, _ = x.shape
    normed = rms_norm(x, layer.input_norm, c.rms_norm_eps)
    heads, kv_heads = c.num_attention_heads, c.num_key_value_heads
    rows = project(normed, layer.query_key_value).reshape(batch, length, heads + 2 * kv_heads, c.head_dim)
    query, key, value = jnp.split(rows, [heads, heads + kv_heads], axis=2)
    keys = jax.lax.dynamic_update_slice_in_dim(keys, rotate(key, positions, c.rope_theta), start, axis=1)
    values = jax.lax.dynamic_update_slice_in_dim(values, value, start, axis=1)
    attended = jax.nn.dot_product_attention(rotate(query, positions, c.rope_theta), keys, values, mask=mask)
    x = project(attended.reshape(batch, length, -1), layer.output, residual=x)
    normed = rms_norm(x, layer.post_attention_norm, c.rms_norm_eps)
    hidden = project_gated(normed, layer.gate_up)
    return project(hidden, layer.down, residual=x), keys, values


def hidden_states(
    params: LlamaParams,
    config: LlamaConfig,
    tokens: Int[Array, "batch length"],
    cache: KVCache,
    valid: Bool[Array, "batch slots"],
    positions: Int[Array, "batch length"],
    dtype: Any,
) -> tuple[Float[Array, "batch length hidden"], KVCache]:
    """Run new tokens through all layers, appending to the cache.

    Token t of the call sits in slot `cache.length + t` and attends to slots s <= its own where `valid[s]`.

    Args:
        params: weights, dense or packed, layers stacked.
        config: dimensions.
        tokens: new token ids.
        cache: past keys and values.
        valid: slots that hold real tokens (padding of short prompts is False).
        positions: rotary position of each new token.
        dtype: dtype of activations and cache.
    """
    slots, length = cache.keys.shape[2], tokens.shape[1]
    own = cache.length + jnp.arange(length)
    mask = (jnp.arange(slots)[None, None, :] <= own[None, :, None]) & valid[:, None, :]

    def step(x: Array, scanned: tuple[LlamaLayer, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        layer, keys, values = scanned
        x, keys, values = _layer(x, layer, keys, values, cache.length, positions, mask[:, None], config)
        return x, (keys, values)

    x = embed(params.embedding, tokens, dtype)
    x, (keys, values) = jax.lax.scan(step, x, (params.layers, cache.keys, cache.values))
    return rms_norm(x, params.final_norm, config.rms_norm_eps), KVCache(keys, values, cache.length + length)


def logits(params: LlamaParams, hidden: Float[Array, "*batch hidden"]) -> Float[Array, "*batch vocab"]:
    """`hidden @ head.T` in float32; the embedding serves as the head when tied."""
    head = params.embedding if params.head is None else params.head
    return project(hidden, head).astype(jnp.float32)
