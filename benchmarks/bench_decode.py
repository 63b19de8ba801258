"""Tokens per second of the Llama-architecture decoder on random packed weights, against the memory floor.

One jitted program decodes a number of tokens greedily, as generation does after the prompt. The floor of a token is
every weight but the embedding, one embedding row and the cache read once, over the copy bandwidth of the run. Weights
are made directly in packed form: an 8B model in full runs, one layer in five of TinyLlama's shapes in quick ones; a
model that takes more than half of the free memory is left out, and a CPU decodes few tokens. Part of
`python -m benchmarks decode`; one format by itself:

    python -m benchmarks.bench_decode --full --formats Q4G64_F16S --json results.json
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.harness import Timing, environment, time_in_turns
from benchmarks.machine import better_of, measure_machine, too_large
from benchmarks.random_weights import random_dense, random_weight
from benchmarks.records import OURS, Record, Results, timed_record, write_results
from benchmarks.suite import Settings
from ninfer_jax.layouts import encoded_size
from ninfer_jax.models.llama import KVCache, LlamaConfig, LlamaLayer, LlamaParams, empty_cache, hidden_states, logits


@dataclasses.dataclass(frozen=True)
class Decoder:
    """A model to decode with.

    Attributes:
        name: how it is called in records.
        config: its dimensions.
        intermediate_size: rows of gate, and of up.
        context: slots of the cache, all of them read for every token.
        tokens: decoded in one timed call.
    """

    name: str
    config: LlamaConfig
    intermediate_size: int
    context: int
    tokens: int


LLAMA_8B = Decoder("8B", LlamaConfig(128256, 4096, 32, 32, 8, 128, 500000.0, 1e-5), 14336, 1024, 64)
QUICK = Decoder("TinyLlama shapes, 4 layers", LlamaConfig(32000, 2048, 4, 32, 4, 64, 10000.0, 1e-5), 5632, 128, 8)
QUICK_FORMATS = ("Q4G64_F16S",)
_CPU_TOKENS = 4
FULL_FORMATS = ("Q4G64_F16S", "Q6G64_F16S", "W8G32_F16S", "NVFP4", "FP8_E4M3FN_ROW_BF16S")
DENSE = "BF16"


def run(settings: Settings, formats: Sequence[str] | None = None) -> Iterator[Record]:
    """A record for each format, and for the same model with dense bfloat16 weights.

    Args:
        settings: of the run.
        formats: those to run instead of all.
    """
    decoder = QUICK if settings.quick else LLAMA_8B
    if not settings.quick and jax.default_backend() == "cpu":
        decoder = dataclasses.replace(decoder, tokens=_CPU_TOKENS)
    for format in formats or (*(QUICK_FORMATS if settings.quick else FULL_FORMATS), DENSE):
        case = f"{decoder.name}, context {decoder.context}" + ("" if format == DENSE else f", {format}")
        reason = too_large(model_bytes(decoder, format))
        if reason is not None:
            settings.refusals[f"decode {case}" + (" BF16" if format == DENSE else "")] = reason
            continue
        params = random_params(decoder, format)
        timing = _time(decoder, params, settings.rounds)
        yield timed_record(
            "decode",
            case,
            "dense-bf16" if format == DENSE else OURS,
            timing,
            work=1,
            unit="tokens/s",
            nbytes=bytes_of_a_token(decoder, params),
            flops=2.0 * weight_count(decoder),
            figures={"weight_bytes": weight_bytes(params)},
        )
        del params  # before the next model is made


def weight_shapes(decoder: Decoder) -> dict[str, tuple[int, int]]:
    """Rows and columns of the weights of a layer, and of the embedding and the head."""
    c = decoder.config
    attention = c.num_attention_heads * c.head_dim
    return {
        "query_key_value": (attention + 2 * c.num_key_value_heads * c.head_dim, c.hidden_size),
        "output": (c.hidden_size, attention),
        "gate_up": (2 * decoder.intermediate_size, c.hidden_size),
        "down": (c.hidden_size, decoder.intermediate_size),
        "vocabulary": (c.vocab_size, c.hidden_size),
    }


def model_bytes(decoder: Decoder, format: str) -> int:
    """Bytes of all weights of a model, norms aside."""
    sizes = {name: encoded_size(format, shape) for name, shape in weight_shapes(decoder).items()}
    vocabulary = sizes.pop("vocabulary")
    return decoder.config.num_hidden_layers * sum(sizes.values()) + 2 * vocabulary


def random_params(decoder: Decoder, format: str) -> LlamaParams:
    """Parameters of random weights, packed in one format or dense bfloat16; the head is not tied."""
    c = decoder.config
    make: Any = random_dense if format == DENSE else partial(random_weight, format)
    norms = jnp.ones((c.num_hidden_layers, c.hidden_size), jnp.bfloat16)
    shapes = weight_shapes(decoder)
    vocabulary = shapes.pop("vocabulary")
    weights = {name: make(*shape, c.num_hidden_layers) for name, shape in shapes.items()}
    layers = LlamaLayer(input_norm=norms, post_attention_norm=norms, **weights)
    embedding, head = (make(*vocabulary, seed=seed) for seed in (1, 2))
    return LlamaParams(embedding, layers, norms[0], head)


def weight_count(decoder: Decoder) -> int:
    """Weights that take part in decoding a token: everything but the embedding table."""
    sizes = {name: n * k for name, (n, k) in weight_shapes(decoder).items()}
    vocabulary = sizes.pop("vocabulary")
    return decoder.config.num_hidden_layers * sum(sizes.values()) + vocabulary


def weight_bytes(params: LlamaParams) -> int:
    """Bytes of all weights read for a token: everything but the embedding table."""
    return _nbytes(params._replace(embedding=None))


def bytes_of_a_token(decoder: Decoder, params: LlamaParams) -> int:
    """Bytes that decoding one token must read: weights, one embedding row, every slot of the cache."""
    c = decoder.config
    cache = jax.eval_shape(partial(empty_cache, c, 1, decoder.context, jnp.bfloat16))
    return weight_bytes(params) + _nbytes(params.embedding) // c.vocab_size + _nbytes((cache.keys, cache.values))


def decode_tokens(params: LlamaParams, first: jax.Array, decoder: Decoder) -> jax.Array:
    """Greedy tokens after `first` [1], from an empty cache: [decoder.tokens]."""
    valid = jnp.ones((1, decoder.context), bool)

    def step(carry: tuple[jax.Array, KVCache], position: jax.Array) -> tuple[tuple[jax.Array, KVCache], jax.Array]:
        token, cache = carry
        places = position[None, None]
        hidden, cache = hidden_states(params, decoder.config, token[:, None], cache, valid, places, jnp.bfloat16)
        following = jnp.argmax(logits(params, hidden[:, -1]), axis=-1).astype(jnp.int32)
        return (following, cache), following[0]

    cache = empty_cache(decoder.config, 1, decoder.context, jnp.bfloat16)
    return jax.lax.scan(step, (first, cache), jnp.arange(decoder.tokens))[1]


def _time(decoder: Decoder, params: LlamaParams, rounds: int) -> Timing:
    """Seconds of one token."""
    program = jax.jit(partial(decode_tokens, decoder=decoder))
    first = jnp.zeros((1,), jnp.int32)
    timing = time_in_turns({"decode": lambda: program(params, first)}, rounds)["decode"]
    return Timing(timing.median / decoder.tokens, timing.best / decoder.tokens)


def _nbytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def main(arguments: Sequence[str] | None = None) -> None:
    """Decode with some formats and write their records."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_decode", description="Tokens/s of a decoder.")
    parser.add_argument("--full", action="store_true", help="an 8B model")
    parser.add_argument("--formats", nargs="+", choices=(*FULL_FORMATS, DENSE), help="only these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, help="also write the results here")
    options = parser.parse_args(arguments)
    settings = Settings(quick=not options.full, rounds=options.rounds)
    machine = measure_machine()
    records = tuple(run(settings, options.formats))
    results = Results(environment(), better_of(machine, measure_machine()), records, refusals=settings.refusals)
    for one in records:
        share = results.share_of_floor(one)
        print(f"{one.case}, {one.implementation}: {one.rate:.3g} {one.unit}, {share:.1%} of the floor")
    for name, reason in settings.refusals.items():
        print(f"left out {name}: {reason}")
    if options.json is not None:
        write_results(options.json, results)


if __name__ == "__main__":
    main()
