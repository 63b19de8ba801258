"""Packed products as records, beside XLA's dense products and the quantized products of qwix and tokamax.

Every case is checked against exactly decoded rows before it is timed (the criterion of ops-and-criteria). qwix and
tokamax multiply the same dense weight in the nearest of their own types, which they keep unpacked. Times are of the
wall, dispatch included. Part of `python -m benchmarks matmul`; leaves out kernel times on a GPU (bench_matmul_gpu) and
float32 activations and temporaries (bench_matmul).
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import LLAMA_8B_CASES, WEIGHT_CASES, WeightCase
from benchmarks.harness import time_in_turns
from benchmarks.machine import too_large
from benchmarks.packed_weights import decode_rows
from benchmarks.peers import accepted, load
from benchmarks.random_weights import FORMATS_OF_KINDS, random_dense, random_weight
from benchmarks.records import OURS, Record, timed_record
from benchmarks.suite import Settings
from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.ops import matmul
from ninfer_jax.ops.mosaic_gpu import kernel_planes

QUICK_NAMES = (
    *("27b gdn query_key", "27b attn output", "35b output", "vision patch", "27b nvfp4 output", "27b fp8 output"),
    "llama-8b output",
)
QUICK_TOKENS = (1, 16)
FULL_TOKENS = (1, 16, 64, 1024)
#: The peers' type for a kind, and the columns that share a scale (0: all of a row).
PEER_TYPES = {"q4": ("int4", 64), "w8": ("int8", 32), "fp8": ("float8_e4m3fn", 0)}
_CHECKED_ROWS = 64
#: What a case holds at once for every weight: dense bfloat16 and float32, and what XLA's products write of them.
_BYTES_A_WEIGHT = 14


def run(settings: Settings) -> Iterator[Record]:
    """Records of every weight, number of tokens and implementation."""
    for case in WEIGHT_CASES + LLAMA_8B_CASES:
        if settings.quick and case.name not in QUICK_NAMES:
            continue
        reason = too_large(_BYTES_A_WEIGHT * case.n * case.k)
        if reason is not None:
            settings.refusals[f"matmul {case.name}"] = reason
            continue
        w = random_weight(FORMATS_OF_KINDS[case.kind], case.n, case.k)
        dense = random_dense(case.n, case.k)
        for m in QUICK_TOKENS if settings.quick else FULL_TOKENS:
            yield from _records(case, w, dense, m, settings)


def relative_error(y: jax.Array, x: jax.Array, w: QuantizedTensor, case: WeightCase) -> float:
    """`||y - ref|| / ||ref||` over rows spread through W, ref in float64 from exactly decoded rows.

    Infinite where `max|y - ref| > 1/256 + 2/256 * max|ref|`, or y is not finite.
    """
    rows = np.unique(np.linspace(0, case.n - 1, min(case.n, _CHECKED_ROWS)).astype(np.int64))
    exact = decode_rows(kernel_planes(w.planes), case.kind, case.k, rows)
    reference = np.asarray(x).astype(np.float64) @ exact.T
    difference = np.abs(np.asarray(y).astype(np.float64)[:, rows] - reference)
    if not difference.max() <= 1 / 256 + 2 / 256 * np.abs(reference).max():
        return float("inf")
    return float(np.linalg.norm(difference) / np.linalg.norm(reference))


def _records(case: WeightCase, w: QuantizedTensor, dense: jax.Array, m: int, settings: Settings) -> Iterator[Record]:
    title = f"{case.name} [{case.n},{case.k}] {case.kind} m={m}"
    x = jax.random.normal(jax.random.key(m), (m, case.k), jnp.bfloat16)
    packed = jax.jit(matmul)
    error = relative_error(packed(x, w), x, w, case)
    if error > 1 / 256:
        raise ValueError(f"{title}: relative error {error:.3g} is above 1/256; nothing more is timed")
    plain = jax.jit(lambda x, w: jnp.einsum("mk,nk->mn", x, w, preferred_element_type=jnp.float32).astype(x.dtype))
    calls: dict[str, Callable[[], Any]] = {OURS: lambda: packed(x, w), "xla-bf16": lambda: plain(x, dense)}
    weight = {OURS: w.nbytes, "xla-bf16": dense.nbytes}
    if jax.default_backend() == "cpu":  # where bfloat16 is the slower of the two
        wide_x, wide = x.astype(jnp.float32), dense.astype(jnp.float32)
        calls["xla-f32"], weight["xla-f32"] = lambda: plain(wide_x, wide), wide.nbytes
    calls |= accepted(_peer_calls(case.kind, x, dense, settings.peers), title, settings.refusals)
    activations = 2 * m * (case.n + case.k)
    for name, timing in time_in_turns(calls, settings.rounds).items():
        # A peer's floor is that of the packed bytes its type could take; what it keeps is its own affair.
        nbytes = weight.get(name, w.nbytes) + activations
        flops = 2.0 * m * case.n * case.k
        yield timed_record(
            "matmul",
            title,
            name,
            timing,
            nbytes=nbytes,
            flops=flops,
            work=flops / 1e9,
            unit="GFLOP/s",
            figures={"relative_error": error} if name == OURS else {},
        )


def _peer_calls(kind: str, x: jax.Array, dense: jax.Array, peers: tuple[str, ...]) -> dict[str, Callable[[], Any]]:
    if kind not in PEER_TYPES or "qwix" not in peers:  # tokamax, which brings qwix, multiplies its arrays
        return {}
    qwix = load("qwix")
    qtype, group = PEER_TYPES[kind]
    tiles = {0: group} if group else None
    columns = jnp.transpose(dense)
    weight = jax.jit(lambda w: qwix.quantize(w, qtype, channelwise_axes=(1,), tiled_axes=tiles))(columns)
    dot = jax.jit(lambda x, w: qwix.dot(x, w))
    calls: dict[str, Callable[[], Any]] = {f"qwix {qtype}": lambda: dot(x, weight)}
    if "tokamax" in peers:
        tokamax = load("tokamax")
        stacked = jax.tree.map(lambda leaf: leaf[None], weight)
        sizes = jnp.asarray([x.shape[0]], jnp.int32)
        ragged = jax.jit(lambda x, w, sizes: tokamax.ragged_dot(x, w, sizes))
        calls[f"tokamax {qtype}"] = lambda: ragged(x, stacked, sizes)
    return calls
