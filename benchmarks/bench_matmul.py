"""Packed matmul on a CPU beside the dense float32 products of XLA and NumPy, in one run.

    python -m benchmarks.bench_matmul [--n 4096] [--k 4096] [--tokens 1] [--repeats 30] [--json results.json]
    python -m benchmarks.bench_matmul --device gpu [arguments of benchmarks.bench_matmul_gpu]

For every format: the median time, its ratio to XLA's `x @ w.T` and to XLA's fastest spelling of the same product
(`einsum`, which transposes nothing), the relative L2 error to that product on the dequantized weight, and temporary
memory beside the packed weight's own size. All programs take turns within a repeat, so that a slow moment of the
machine meets all of them. `--device gpu` hands over to benchmarks.bench_matmul_gpu. Judges no time. Source:
ops-and-criteria.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.formats import FORMATS, DirectFormat
from ninfer_jax.ops import dequantize, explain_matmul, matmul

_MEBIBYTE = 1 << 20
_TIMES = "XLA x @ w.T", "XLA einsum", "NumPy x @ w.T"


@dataclasses.dataclass(frozen=True)
class Row:
    """One product, measured.

    Attributes:
        name: format, or the dense product.
        tokens: rows of x.
        milliseconds: median time of a call.
        fastest: shortest time of a call, milliseconds.
        over_matmul: median over that of XLA's `x @ w.T`.
        over_einsum: median over that of XLA's einsum.
        temporary_bytes: temporaries of the compiled program; None for NumPy.
        weight_bytes: bytes of the weight as it is kept.
        relative_l2: against NumPy's float64 product with the dequantized weight; None for dense products.
        how: how the program multiplies.
    """

    name: str
    tokens: int
    milliseconds: float
    fastest: float
    over_matmul: float
    over_einsum: float
    temporary_bytes: int | None
    weight_bytes: int
    relative_l2: float | None
    how: str


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Something to time: a call, and what is known of it beforehand."""

    name: str
    call: Callable[[], Any]
    temporary_bytes: int | None
    weight_bytes: int
    relative_l2: float | None = None
    how: str = ""


def dense_candidates(x: np.ndarray, w: np.ndarray) -> list[Candidate]:
    """XLA's two spellings of the float32 product, and NumPy's."""
    x_device, w_device = jnp.asarray(x), jnp.asarray(w)
    candidates = []
    spellings = (lambda x, w: x @ w.T, lambda x, w: jnp.einsum("mk,nk->mn", x, w))
    for name, product in zip(_TIMES, spellings, strict=False):
        compiled = jax.jit(product).lower(x_device, w_device).compile()
        call = lambda compiled=compiled: compiled(x_device, w_device)
        candidates.append(Candidate(name, call, _temporaries(compiled), w.nbytes))
    candidates.append(Candidate(_TIMES[2], lambda: x @ w.T, None, w.nbytes))
    return candidates


def packed_candidate(format: str, x: np.ndarray, w: np.ndarray) -> Candidate:
    """The packed product of one format, compiled and checked."""
    packed = QuantizedTensor.quantize(w, format)
    x_device = jnp.asarray(x)
    compiled = jax.jit(matmul).lower(x_device, packed).compile()
    reference = x.astype(np.float64) @ np.asarray(dequantize(packed)).astype(np.float64).T
    error = np.linalg.norm(np.asarray(compiled(x_device, packed)) - reference) / np.linalg.norm(reference)
    how = explain_matmul(x_device, packed).how
    return Candidate(
        format, lambda: compiled(x_device, packed), _temporaries(compiled), packed.nbytes, float(error), how
    )


def _temporaries(compiled: Any) -> int:
    return int(compiled.memory_analysis().temp_size_in_bytes)


def measure(candidates: Sequence[Candidate], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of every repeat; the candidates take turns, and the first turn is not counted."""
    times: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    for repeat in range(repeats + 1):
        for candidate in candidates:
            start = time.perf_counter()
            jax.block_until_ready(candidate.call())
            if repeat:
                times[candidate.name].append(1e3 * (time.perf_counter() - start))
    return times


def bench(n: int, k: int, tokens: int, repeats: int) -> list[Row]:
    """All products of one shape."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((tokens, k), np.float32)
    w = rng.standard_normal((n, k), np.float32)
    names = [spec.name for spec in FORMATS.values() if not isinstance(spec, DirectFormat)]
    if n % 128 or k % 64:
        names.remove("NVFP4")
    candidates = dense_candidates(x, w) + [packed_candidate(name, x, w) for name in names]
    times = measure(candidates, repeats)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return [
        Row(
            c.name,
            tokens,
            medians[c.name],
            min(times[c.name]),
            medians[c.name] / medians[_TIMES[0]],
            medians[c.name] / medians[_TIMES[1]],
            c.temporary_bytes,
            c.weight_bytes,
            c.relative_l2,
            c.how,
        )
        for c in candidates
    ]


def _print(rows: Sequence[Row], n: int, k: int) -> None:
    print(f"[{n}, {k}], M = {rows[0].tokens}, jax {jax.__version__}, {jax.devices()[0].device_kind}")
    print(
        f"{'product':22}{'median ms':>10}{'min ms':>9}{'/ x@w.T':>9}{'/ einsum':>9}{'temp MiB':>10}{'weight MiB':>11}"
    )
    for row in rows:
        temporary = "-" if row.temporary_bytes is None else f"{row.temporary_bytes / _MEBIBYTE:.2f}"
        print(
            f"{row.name:22}{row.milliseconds:10.3f}{row.fastest:9.3f}{row.over_matmul:9.3f}{row.over_einsum:9.3f}"
            f"{temporary:>10}{row.weight_bytes / _MEBIBYTE:11.2f}"
        )


def main() -> None:
    """Measure, print and optionally write JSON."""
    device = argparse.ArgumentParser(add_help=False)
    device.add_argument(
        "--device", choices=("cpu", "gpu"), default="cpu", help="gpu: the kernels; see bench_matmul_gpu"
    )
    chosen, rest = device.parse_known_args()
    if chosen.device == "gpu":
        from benchmarks import bench_matmul_gpu  # needs a newer jax than the CPU benchmark

        bench_matmul_gpu.main(rest)
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[device]
    )
    parser.add_argument("--n", type=int, default=4096, help="rows of the weight")
    parser.add_argument("--k", type=int, default=4096, help="columns of the weight")
    parser.add_argument("--tokens", default="1", help="rows of x, separated by commas")
    parser.add_argument("--repeats", type=int, default=30, help="timed calls of every product")
    parser.add_argument("--json", type=pathlib.Path, help="also write the rows to this file")
    options = parser.parse_args(rest)
    rows: list[Row] = []
    for tokens in map(int, options.tokens.split(",")):
        rows += (found := bench(options.n, options.k, tokens, options.repeats))
        _print(found, options.n, options.k)
    if options.json is not None:
        header = {"jax": jax.__version__, "n": options.n, "k": options.k, "repeats": options.repeats}
        document = header | {"rows": [dataclasses.asdict(row) for row in rows]}
        options.json.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
