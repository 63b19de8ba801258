"""The decoder against a float64 forward pass that shares no code with it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.errors import ArtifactError, UnsupportedError
from ninfer_jax.models.generation import generate_tokens, window_nll
from ninfer_jax.models.llama import LlamaConfig, empty_cache, hidden_states, logits, params_from_names
from ninfer_jax.ops import dequantize
from tests.models import tiny
from tests.oracle.transformers import llama_logits

CONFIG = LlamaConfig.from_json(tiny.CONFIG)
TOKENS = [5, 17, 3, 80, 41, 9, 66]
GENERATE = jax.jit(generate_tokens, static_argnames=("config", "max_new_tokens", "dtype"))


def _dense(weights):
    return params_from_names({name: jnp.asarray(value) for name, value in tiny.stored(weights).items()}, CONFIG)


def _packed(weights, format):
    """Parameters packed as `format`, and the source tensors replaced by what the packed ones decode to."""
    decoded = {
        name: np.asarray(dequantize(QuantizedTensor.quantize(value, format), jnp.float32)) if value.ndim == 2 else value
        for name, value in weights.items()
    }
    tensors = {
        name: QuantizedTensor.quantize(value, format) if value.ndim == 2 else jnp.asarray(value)
        for name, value in tiny.stored(weights).items()
    }
    return params_from_names(tensors, CONFIG), decoded


def _logits(params, tokens):
    length = len(tokens)
    cache = empty_cache(CONFIG, 1, length, jnp.float32)
    valid = jnp.ones((1, length), bool)
    positions = jnp.arange(length)[None]
    hidden, _ = hidden_states(params, CONFIG, jnp.asarray([tokens]), cache, valid, positions, jnp.float32)
    return np.asarray(logits(params, hidden))[0]


def _relative(y, reference):
    return np.linalg.norm(y - reference) / np.linalg.norm(reference)


@pytest.mark.parametrize("tied", [True, False])
def test_dense_logits_match_the_oracle(tied):
    weights = tiny.weights(1, tied=tied)
    assert _relative(_logits(_dense(weights), TOKENS), llama_logits(weights, tiny.CONFIG, TOKENS)) < 1e-5


@pytest.mark.parametrize("format", ["Q5G64_F16S", "FP8_E4M3FN_ROW_BF16S"])
def test_packed_logits_match_the_oracle_on_decoded_weights(format):
    params, decoded = _packed(tiny.weights(2), format)
    assert isinstance(params.layers.query_key_value, QuantizedTensor)
    assert _relative(_logits(params, TOKENS), llama_logits(decoded, tiny.CONFIG, TOKENS)) < 1e-5


def _generate(params, prompt, padded, steps, temperature=0.0, seed=0, stop=-1):
    row = np.zeros((1, padded), np.int32)
    row[0, padded - len(prompt) :] = prompt
    produced = GENERATE(
        params,
        CONFIG,
        jnp.asarray(row),
        jnp.asarray([len(prompt)], jnp.int32),
        jnp.asarray(stop, jnp.int32),
        jnp.asarray(temperature, jnp.float32),
        jax.random.key(seed),
        max_new_tokens=steps,
        dtype=jnp.float32,
    )
    return np.asarray(produced)[0].tolist()


@pytest.mark.parametrize("padded", [7, 16])
def test_greedy_generation_with_cache_and_padding_matches_full_recomputation(padded):
    weights = tiny.weights(3)
    expected = list(TOKENS)
    for _ in range(6):
        expected.append(int(llama_logits(weights, tiny.CONFIG, expected)[-1].argmax()))
    assert _generate(_dense(weights), TOKENS, padded, 6) == expected[len(TOKENS) :]


def test_generation_stops_at_the_stop_token():
    params = _dense(tiny.weights(3))
    free = _generate(params, TOKENS, 7, 6)
    stop = free[2]
    first = free.index(stop)
    assert _generate(params, TOKENS, 7, 6, stop=stop) == free[:first] + [stop] * (6 - first)


def test_sampling_depends_on_the_seed_only():
    params = _dense(tiny.weights(4))
    draws = [tuple(_generate(params, TOKENS, 7, 6, temperature=30.0, seed=seed)) for seed in (0, 0, 1, 2)]
    assert draws[0] == draws[1]
    assert len(set(draws)) > 1


def test_window_nll_is_the_oracles_log_softmax():
    weights = tiny.weights(5)
    nll = np.asarray(window_nll(_dense(weights), CONFIG, jnp.asarray([TOKENS]), jnp.float32))[0]
    scores = llama_logits(weights, tiny.CONFIG, TOKENS)[:-1]
    log_p = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(nll, -log_p[np.arange(len(TOKENS) - 1), TOKENS[1:]], rtol=1e-4)


def test_a_missing_tensor_is_named():
    tensors = tiny.stored(tiny.weights())
    del tensors["text/layers/1/mlp/down"]
    with pytest.raises(ArtifactError, match="text/layers/1/mlp/down"):
        params_from_names(tensors, CONFIG)


def test_layers_of_different_formats_are_refused():
    tensors: dict[str, Any] = {name: jnp.asarray(value) for name, value in tiny.stored(tiny.weights()).items()}
    name = "text/layers/0/mlp/gate_up"
    tensors[name] = QuantizedTensor.quantize(tensors[name], "Q4G64_F16S")
    with pytest.raises(ArtifactError, match="differ in format"):
        params_from_names(tensors, CONFIG)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model_type": "mamba"}, ArtifactError, "'mamba'"),
        ({"rope_scaling": {"factor": 8.0}}, UnsupportedError, "rope_scaling"),
        ({"rms_norm_eps": None}, ArtifactError, "rms_norm_eps"),
    ],
)
def test_other_configurations_are_refused(change, error, message):
    config = {name: value for name, value in {**tiny.CONFIG, **change}.items() if value is not None}
    with pytest.raises(error, match=message):
        LlamaConfig.from_json(config)
