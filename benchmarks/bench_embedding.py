"""Rows gathered from a packed embedding: microseconds and bytes per second of `take_rows`, beside `jnp.take` on bf16.

A gather reads the packed bytes of the rows asked for and writes them in bfloat16; nothing else need move. Part of
`python -m benchmarks embedding`.
"""

from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import EMBEDDING_CASES, EMBEDDING_TOKENS, WeightCase
from benchmarks.harness import time_in_turns
from benchmarks.random_weights import FORMATS_OF_KINDS, random_dense, random_weight
from benchmarks.records import OURS, Record, timed_record
from benchmarks.suite import Settings
from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.ops import take_rows

QUICK_ROWS = 32768
_CALLS = 8


def run(settings: Settings) -> Iterator[Record]:
    """Records of every table and number of tokens; quick runs cut tables to `QUICK_ROWS` rows."""
    for case in EMBEDDING_CASES[-2:] if settings.quick else EMBEDDING_CASES:
        n = min(case.n, QUICK_ROWS) if settings.quick else case.n
        w = random_weight(FORMATS_OF_KINDS[case.kind], n, case.k)
        dense = random_dense(n, case.k)
        for tokens in EMBEDDING_TOKENS:
            yield from _records(case, w, dense, tokens, settings.rounds)


def _records(case: WeightCase, w: QuantizedTensor, dense: jax.Array, tokens: int, rounds: int) -> Iterator[Record]:
    n, k = w.shape
    # Other rows every call, so that few are found in a cache.
    ids = [jnp.asarray(np.random.default_rng(i).integers(0, n, tokens), jnp.int32) for i in range(_CALLS)]
    packed = jax.jit(partial(take_rows, dtype=jnp.bfloat16))
    plain = jax.jit(lambda table, ids: jnp.take(table, ids, axis=0))
    timings = time_in_turns({OURS: _several(packed, w, ids), "xla-bf16": _several(plain, dense, ids)}, rounds)
    written = 2 * tokens * k
    read = {OURS: tokens * w.nbytes // n, "xla-bf16": 2 * tokens * k}
    for name, timing in timings.items():
        one = timing._replace(median=timing.median / _CALLS, best=timing.best / _CALLS)
        nbytes = read[name] + written
        yield timed_record(
            "embedding",
            f"{case.name} [{n},{k}] {case.kind} tokens={tokens}",
            name,
            one,
            nbytes=nbytes,
            work=nbytes / 1e9,
            unit="GB/s",
        )


def _several(gather: Callable, table: QuantizedTensor | jax.Array, ids: list[jax.Array]) -> Callable[[], list]:
    return lambda: [gather(table, one) for one in ids]
