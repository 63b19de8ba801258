"""Text generation and perplexity with the Llama-architecture decoder, each under one `jax.jit`.

Prefill and every decoding step run in one compiled program; prompts are padded on the left to a multiple of
`PROMPT_STEP`, so that few prompt lengths are compiled. Beam search and streaming are left out.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ninfer_jax.errors import UnsupportedError
from ninfer_jax.models._artifact import load_weights, read_json, read_tokenizer
from ninfer_jax.models.llama import (
    LlamaConfig,
    LlamaParams,
    empty_cache,
    hidden_states,
    logits,
    params_from_names,
)

PROMPT_STEP = 64


def sample(scores: Float[Array, "batch vocab"], temperature: Float[Array, ""], key: PRNGKeyArray) -> Array:
    """`argmax(scores)` at temperature 0, else a draw from `softmax(scores / temperature)`."""
    drawn = jax.random.categorical(key, scores / jnp.maximum(temperature, 1e-6), axis=-1)
    return jnp.where(temperature > 0, drawn, jnp.argmax(scores, axis=-1)).astype(jnp.int32)


class _State(NamedTuple):
    """What one decoding step hands to the next."""

    step: Array
    token: Array
    cache: Any
    finished: Array
    produced: Array
    key: Array


def generate_tokens(
    params: LlamaParams,
    config: LlamaConfig,
    prompt: Int[Array, "batch padded"],
    prompt_lengths: Int[Array, " batch"],
    stop_token: Int[Array, ""],
    temperature: Float[Array, ""],
    key: PRNGKeyArray,
    max_new_tokens: int,
    dtype: Any,
) -> Int[Array, "batch max_new_tokens"]:
    """Continue left-padded prompts; places after the stop token hold the stop token.

    Args:
        params: weights, dense or packed.
        config: dimensions.
        prompt: token ids, padded on the left.
        prompt_lengths: real tokens of each prompt.
        stop_token: generation of a sequence ends when this token is produced.
        temperature: 0 for greedy decoding.
        key: random key, unused when greedy.
        max_new_tokens: most tokens to produce per sequence.
        dtype: dtype of activations and cache.
    """
    batch, padded = prompt.shape
    slots = padded + max_new_tokens
    valid = jnp.arange(slots)[None, :] >= (padded - prompt_lengths)[:, None]
    positions = jnp.maximum(jnp.arange(padded)[None, :] - (padded - prompt_lengths)[:, None], 0)
    cache = empty_cache(config, batch, slots, dtype)
    hidden, cache = hidden_states(params, config, prompt, cache, valid, positions, dtype)
    key, first_key = jax.random.split(key)
    first = sample(logits(params, hidden[:, -1]), temperature, first_key)

    def body(state: _State) -> _State:
        produced = jax.lax.dynamic_update_slice_in_dim(state.produced, state.token[:, None], state.step, axis=1)
        finished = state.finished | (state.token == stop_token)
        position = (prompt_lengths + state.step)[:, None]
        hidden, cache = hidden_states(params, config, state.token[:, None], state.cache, valid, position, dtype)
        key, step_key = jax.random.split(state.key)
        token = sample(logits(params, hidden[:, -1]), temperature, step_key)
        return _State(state.step + 1, jnp.where(finished, stop_token, token), cache, finished, produced, key)

    def unfinished(state: _State) -> Array:
        return (state.step < max_new_tokens) & ~jnp.all(state.finished)

    produced = jnp.full((batch, max_new_tokens), stop_token, jnp.int32)
    start = _State(jnp.zeros((), jnp.int32), first, cache, jnp.zeros((batch,), bool), produced, key)
    return jax.lax.while_loop(unfinished, body, start).produced


_generate_tokens = jax.jit(generate_tokens, static_argnames=("config", "max_new_tokens", "dtype"))


def window_nll(
    params: LlamaParams, config: LlamaConfig, tokens: Int[Array, "batch length"], dtype: Any
) -> Float[Array, "batch length_less_one"]:
    """Negative log-likelihood of each token after the first: `-log p(tokens[t+1] | tokens[..t])`, in nats."""
    batch, length = tokens.shape
    cache = empty_cache(config, batch, length, dtype)
    positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
    hidden, _ = hidden_states(params, config, tokens, cache, jnp.ones((batch, length), bool), positions, dtype)

    def one(row: tuple[Array, Array]) -> Array:
        states, targets = row
        scores = jax.nn.log_softmax(logits(params, states), axis=-1)
        return -jnp.take_along_axis(scores, targets[:, None], axis=-1)[:, 0]

    return jax.lax.map(one, (hidden[:, :-1], tokens[:, 1:]))


_window_nll = jax.jit(window_nll, static_argnames=("config", "dtype"))


class TextModel:
    """A loaded decoder: parameters, configuration and tokenizer of one artifact."""

    def __init__(
        self,
        params: LlamaParams,
        config: LlamaConfig,
        tokenizer: Any,
        stop_token: int,
        dtype: Any,
        context: int | None = None,
    ):
        self.params = params
        self.config = config
        self.tokenizer = tokenizer
        self.stop_token = stop_token
        self.dtype = jnp.dtype(dtype)
        self.context = context

    @classmethod
    def from_artifact(cls, path: Any, dtype: Any = jnp.float32) -> "TextModel":
        """Load an artifact that carries `config.json` and `tokenizer.json` as resources.

        Raises:
            ArtifactError: not an artifact, or a tensor or resource of the model is missing.
        """
        raw = read_json(path, "config.json")
        config = LlamaConfig.from_json(raw)
        stop = raw.get("eos_token_id", 0)
        stop = stop[0] if isinstance(stop, list) else stop
        params, tokenizer = params_from_names(load_weights(path), config), read_tokenizer(path)
        return cls(params, config, tokenizer, int(stop), dtype, raw.get("max_position_embeddings"))

    def generate(self, prompt: str, *, max_new_tokens: int = 64, temperature: float = 0.0, seed: int = 0) -> str:
        """Continue a prompt; greedy at temperature 0.

        Raises:
            UnsupportedError: a temperature that is negative or not finite, no new tokens, or more tokens in all than
                the context that the model was trained for.
        """
        if not (np.isfinite(temperature) and temperature >= 0) or max_new_tokens < 1:
            raise UnsupportedError(
                f"temperature {temperature} and {max_new_tokens} new tokens; allowed: a finite temperature, 0 for"
                " greedy or more, and at least 1 token"
            )
        ids = self.tokenizer.encode(prompt, add_special_tokens=False).ids or [self.stop_token]
        if self.context is not None and len(ids) + max_new_tokens > self.context:
            raise UnsupportedError(
                f"the prompt's {len(ids)} tokens and {max_new_tokens} new ones exceed the model's context of"
                f" {self.context}; shorten the prompt or ask for fewer"
            )
        padded = -(-len(ids) // PROMPT_STEP) * PROMPT_STEP
        row = np.zeros((1, padded), np.int32)
        row[0, padded - len(ids) :] = ids
        produced = _generate_tokens(
            self.params,
            self.config,
            jnp.asarray(row),
            jnp.asarray([len(ids)], jnp.int32),
            jnp.asarray(self.stop_token, jnp.int32),
            jnp.asarray(temperature, jnp.float32),
            jax.random.key(seed),
            max_new_tokens=max_new_tokens,
            dtype=self.dtype,
        )
        tokens = np.asarray(produced)[0].tolist()
        if self.stop_token in tokens:
            tokens = tokens[: tokens.index(self.stop_token)]
        return self.tokenizer.decode(tokens)

    def perplexity(self, text: str, *, window: int = 256) -> tuple[float, int]:
        """`exp(mean nll)` over non-overlapping windows, and the number of tokens scored.

        Every window starts without context; a last window that is not full is left out.

        Raises:
            ValueError: the text is shorter than one window.
        """
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        rows = len(ids) // window
        if rows == 0:
            raise ValueError(f"the text has {len(ids)} tokens; at least one window of {window} is needed")
        tokens = jnp.asarray(np.asarray(ids[: rows * window], np.int32).reshape(rows, window))
        nll = np.asarray(_window_nll(self.params, self.config, tokens, dtype=self.dtype), np.float64)
        return float(np.exp(nll.mean())), nll.size
