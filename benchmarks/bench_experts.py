"""A bank of experts times rows sorted by expert: `grouped_matmul`, beside XLA's ragged product and tokamax's.

Every token visits 8 experts; a row's expert is drawn at random. The floor counts each expert that any row visits once.
tokamax multiplies the same dense bank quantized by qwix to the nearest of its types. Part of `python -m benchmarks
experts`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import EXPERT_CASES, EXPERTS, EXPERTS_A_TOKEN, WeightCase
from benchmarks.harness import time_in_turns
from benchmarks.peers import accepted, load
from benchmarks.random_weights import FORMATS_OF_KINDS, random_dense, random_weight
from benchmarks.records import OURS, Record, timed_record
from benchmarks.suite import Settings
from ninfer_jax.ops import grouped_matmul

QUICK_EXPERTS = 16
TOKENS = (1, 64)
_TOKAMAX_TYPES = {"q4": ("int4", 64), "w8": ("int8", 32)}


def run(settings: Settings) -> Iterator[Record]:
    """Records of every bank and number of tokens; quick runs take a sixteenth of the experts of two banks."""
    experts = QUICK_EXPERTS if settings.quick else EXPERTS
    for case in EXPERT_CASES[:2] if settings.quick else EXPERT_CASES:
        for tokens in TOKENS:
            yield from _records(case, experts, tokens, settings)


def group_sizes(experts: int, rows: int) -> np.ndarray:
    """Rows of each expert, drawn evenly: int32 [experts], adding up to `rows`."""
    drawn = np.random.default_rng(rows).integers(0, experts, rows)
    return np.bincount(drawn, minlength=experts).astype(np.int32)


def _records(case: WeightCase, experts: int, tokens: int, settings: Settings) -> Iterator[Record]:
    rows = tokens * EXPERTS_A_TOKEN
    counts = group_sizes(experts, rows)
    sizes = jnp.asarray(counts)
    x = jax.random.normal(jax.random.key(rows), (rows, case.k), jnp.bfloat16)
    bank = random_weight(FORMATS_OF_KINDS[case.kind], case.n, case.k, experts)
    dense = jnp.swapaxes(random_dense(case.n, case.k, experts), 1, 2)  # [experts, k, n], as ragged products take it
    packed = jax.jit(grouped_matmul)
    plain = jax.jit(jax.lax.ragged_dot)
    calls: dict[str, Callable[[], Any]] = {
        OURS: lambda: packed(x, bank, sizes),
        "xla-bf16": lambda: plain(x, dense, sizes),
    }
    title = f"{case.name} {experts} x [{case.n},{case.k}] {case.kind} tokens={tokens}"
    peers = _tokamax(case.kind, x, dense, sizes) if {"qwix", "tokamax"} <= set(settings.peers) else {}
    calls |= accepted(peers, title, settings.refusals)
    visited = int(np.count_nonzero(counts))
    for name, timing in time_in_turns(calls, settings.rounds).items():
        bank_bytes = dense.nbytes if name == "xla-bf16" else bank.nbytes
        flops = 2.0 * rows * case.n * case.k
        yield timed_record(
            "experts",
            title,
            name,
            timing,
            nbytes=bank_bytes // experts * visited + 2 * rows * (case.n + case.k),
            flops=flops,
            work=flops / 1e9,
            unit="GFLOP/s",
        )


def _tokamax(kind: str, x: jax.Array, dense: jax.Array, sizes: jax.Array) -> dict[str, Callable[[], Any]]:
    if kind not in _TOKAMAX_TYPES:
        return {}
    qtype, group = _TOKAMAX_TYPES[kind]
    qwix, tokamax = load("qwix"), load("tokamax")
    bank = jax.jit(lambda w: qwix.quantize(w, qtype, channelwise_axes=(0, 2), tiled_axes={1: group}))(dense)
    ragged = jax.jit(lambda x, w, sizes: tokamax.ragged_dot(x, w, sizes))
    return {f"tokamax {qtype}": lambda: ragged(x, bank, sizes)}
