"""The MiniLM sentence encoder (BERT) on dense or packed weights.

`embedding = normalize(mean over tokens of BERT(tokens))`, as the sentence-transformers model `all-MiniLM-L6-v2` defines
it. Weights come from an artifact through `ninfer_jax.arrays.load`; the tokenizer and the configuration are resources of
the same artifact. Training, pooler head and token types other than 0 are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ninfer_jax.errors import ArtifactError
from ninfer_jax.models._artifact import load_weights, read_json, read_tokenizer
from ninfer_jax.models._layers import Weight, embed, layer_norm, project

MAX_TOKENS = 256  # the length the published model was trained and evaluated with
LENGTH_STEP = 32  # batches are padded to a multiple of this, so that few lengths are compiled


@dataclass(frozen=True)
class MiniLMConfig:
    """Dimensions of a BERT encoder, named as in config.json."""

    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    layer_norm_eps: float

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> "MiniLMConfig":
        """Read the fields from a parsed config.json.

        Raises:
            ArtifactError: not a BERT configuration, or a field is missing.
        """
        if config.get("model_type") != "bert":
            raise ArtifactError(f"config.json has model_type {config.get('model_type')!r}; this model needs 'bert'")
        try:
            return cls(
                num_hidden_layers=int(config["num_hidden_layers"]),
                num_attention_heads=int(config["num_attention_heads"]),
                hidden_size=int(config["hidden_size"]),
                layer_norm_eps=float(config["layer_norm_eps"]),
            )
        except KeyError as error:
            raise ArtifactError(f"config.json has no field {error.args[0]!r}") from error


class Projection(NamedTuple):
    """An affine map: weight [out, in], dense or packed, and bias [out]."""

    weight: Weight
    bias: jax.Array


class Norm(NamedTuple):
    """Scale and offset of a layer norm."""

    weight: jax.Array
    bias: jax.Array


class MiniLMLayer(NamedTuple):
    """One transformer layer."""

    query: Projection
    key: Projection
    value: Projection
    attention_output: Projection
    attention_norm: Norm
    intermediate: Projection
    output: Projection
    output_norm: Norm


class MiniLMParams(NamedTuple):
    """All weights of the encoder."""

    word_embeddings: Weight
    position_embeddings: Weight
    token_type_embeddings: Weight
    embedding_norm: Norm
    layers: tuple[MiniLMLayer, ...]


def params_from_names(weights: Mapping[str, Any], config: MiniLMConfig) -> MiniLMParams:
    """Arrange tensors, named as in the checkpoint, into the model's parameters.

    Raises:
        ArtifactError: a tensor of the model is missing.
    """

    def tensor(name: str) -> Any:
        if name not in weights:
            raise ArtifactError(f"the artifact has no tensor {name!r}, which a BERT encoder needs")
        return weights[name]

    def projection(prefix: str) -> Projection:
        return Projection(tensor(f"{prefix}.weight"), tensor(f"{prefix}.bias"))

    def norm(prefix: str) -> Norm:
        return Norm(tensor(f"{prefix}.weight"), tensor(f"{prefix}.bias"))

    def layer(prefix: str) -> MiniLMLayer:
        return MiniLMLayer(
            query=projection(f"{prefix}.attention.self.query"),
            key=projection(f"{prefix}.attention.self.key"),
            value=projection(f"{prefix}.attention.self.value"),
            attention_output=projection(f"{prefix}.attention.output.dense"),
            attention_norm=norm(f"{prefix}.attention.output.LayerNorm"),
            intermediate=projection(f"{prefix}.intermediate.dense"),
            output=projection(f"{prefix}.output.dense"),
            output_norm=norm(f"{prefix}.output.LayerNorm"),
        )

    return MiniLMParams(
        word_embeddings=tensor("embeddings.word_embeddings.weight"),
        position_embeddings=tensor("embeddings.position_embeddings.weight"),
        token_type_embeddings=tensor("embeddings.token_type_embeddings.weight"),
        embedding_norm=norm("embeddings.LayerNorm"),
        layers=tuple(layer(f"encoder.layer.{index}") for index in range(config.num_hidden_layers)),
    )


def _attention(x: Array, mask: Array, layer: MiniLMLayer, heads: int) -> Array:
    batch, length, width = x.shape
    query, key, value = (
        project(x, p.weight, p.bias).reshape(batch, length, heads, width // heads)
        for p in (layer.query, layer.key, layer.value)
    )
    attended = jax.nn.dot_product_attention(query, key, value, mask=mask[:, None, None, :])
    return project(attended.reshape(x.shape), layer.attention_output.weight, layer.attention_output.bias)


def encode_tokens(
    params: MiniLMParams, config: MiniLMConfig, ids: Int[Array, "batch length"], mask: Array
) -> Float[Array, "batch hidden"]:
    """Unit-length sentence embeddings of padded token ids.

    `e = normalize(sum_t mask_t h_t / sum_t mask_t)`, h = the last hidden states.

    Args:
        params: weights, dense or packed.
        config: dimensions.
        ids: token ids, padded to one length.
        mask: True where a token is real.
    """
    x = embed(params.word_embeddings, ids, jnp.float32)
    x = x + embed(params.position_embeddings, jnp.arange(ids.shape[1]), jnp.float32)
    x = x + embed(params.token_type_embeddings, jnp.zeros((1,), jnp.int32), jnp.float32)
    x = layer_norm(x, *params.embedding_norm, config.layer_norm_eps)
    for layer in params.layers:
        attended = _attention(x, mask, layer, config.num_attention_heads)
        x = layer_norm(x + attended, *layer.attention_norm, config.layer_norm_eps)
        hidden = jax.nn.gelu(project(x, *layer.intermediate), approximate=False)
        x = layer_norm(x + project(hidden, *layer.output), *layer.output_norm, config.layer_norm_eps)
    weights = mask[:, :, None].astype(jnp.float32)
    pooled = jnp.sum(x * weights, axis=1) / jnp.sum(weights, axis=1)
    return pooled / jnp.linalg.norm(pooled, axis=-1, keepdims=True)


_encode_tokens = jax.jit(encode_tokens, static_argnames="config")


class MiniLM:
    """A loaded encoder: parameters, configuration and tokenizer of one artifact."""

    def __init__(self, params: MiniLMParams, config: MiniLMConfig, tokenizer: Any):
        self.params = params
        self.config = config
        self.tokenizer = tokenizer

    @classmethod
    def from_artifact(cls, path: Any) -> "MiniLM":
        """Load an artifact that carries `config.json` and `tokenizer.json` as resources.

        Raises:
            ArtifactError: not an artifact, or a tensor or resource of the model is missing.
        """
        config = MiniLMConfig.from_json(read_json(path, "config.json"))
        return cls(params_from_names(load_weights(path), config), config, read_tokenizer(path))

    def __call__(self, sentences: Sequence[str]) -> Float[np.ndarray, "batch hidden"]:
        """Embed sentences; rows have length 1, so their dot products are cosine similarities."""
        if not sentences:
            return np.zeros((0, self.config.hidden_size), np.float32)
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MAX_TOKENS)
        rows = [encoding.ids for encoding in self.tokenizer.encode_batch(list(sentences))]
        length = -(-max(map(len, rows)) // LENGTH_STEP) * LENGTH_STEP
        ids = np.zeros((len(rows), length), np.int32)
        mask = np.zeros((len(rows), length), bool)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row
            mask[index, : len(row)] = True
        return np.asarray(_encode_tokens(self.params, self.config, jnp.asarray(ids), jnp.asarray(mask)))
