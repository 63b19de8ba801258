"""Encode and decode rates on [4096, 5120]: bf16-source MB/s of quantize + pack and of unpack + dequantize, per format.

Every rate stands next to the copy bandwidth of the same run, and every stage is also timed alone. The row "float32
store" is a bare bf16 to float32 conversion: decoding writes as much, and on CPU the pages of a fresh float32 result are
most of its time. Run as `python -m benchmarks.bench_encode`.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Timing, environment, host_copy, time_in_turns, write_json
from ninfer_jax.codecs import dequantize, try_quantize
from ninfer_jax.formats import FORMATS, DirectFormat
from ninfer_jax.layouts import pack, unpack
from ninfer_jax.planes import Planes

SHAPE = (4096, 5120)
QUANTIZED = [name for name, spec in FORMATS.items() if not isinstance(spec, DirectFormat)]
STAGES = ("quantize + pack", "quantize", "pack", "unpack + dequantize", "unpack", "dequantize")


def encode(x: jax.Array, format: str) -> tuple[Planes, jax.Array]:
    """Planes of `x`, and whether it was encodable."""
    words, ok = try_quantize(x, format)
    return pack(words, format), ok


def decode(planes: Planes, format: str, k: int) -> jax.Array:
    """Float32 values of planes."""
    return dequantize(unpack(planes, format, k), format)


def stages(x: jax.Array, format: str) -> dict[str, Callable[[], Any]]:
    """Each stage under one jit, on inputs made by the stages before it."""
    k = x.shape[-1]
    encode_all = jax.jit(partial(encode, format=format))
    quantize = jax.jit(partial(try_quantize, format=format))
    pack_all = jax.jit(partial(pack, format=format))
    decode_all = jax.jit(partial(decode, format=format, k=k))
    unpack_all = jax.jit(partial(unpack, format=format, k=k))
    decode_words = jax.jit(partial(dequantize, format=format))
    words, _ = quantize(x)
    planes = pack_all(words)
    calls: list[Callable[[], Any]] = [
        lambda: encode_all(x),
        lambda: quantize(x),
        lambda: pack_all(words),
        lambda: decode_all(planes),
        lambda: unpack_all(planes),
        lambda: decode_words(words),
    ]
    return dict(zip(STAGES, calls, strict=True))


def measure(formats: list[str], dtype: str, shape: tuple[int, int], rounds: int) -> dict[str, Any]:
    """Rates in MB/s of bf16 source and shares of copy bandwidth, by format and stage."""
    x = jnp.asarray(0.02 * np.random.default_rng(0).standard_normal(shape, np.float32), dtype)
    nbytes = 2 * x.size
    candidates: dict[str, Callable[[], Any]] = {"copy": host_copy(nbytes)}
    candidates["float32 store"] = partial(jax.jit(lambda x: x.astype(jnp.float32)), x.astype(jnp.bfloat16))
    for format in formats:
        candidates |= {f"{format}/{stage}": call for stage, call in stages(x, format).items()}
    timings = time_in_turns(candidates, rounds)
    copy = timings.pop("copy")
    return {
        "shape": list(shape),
        "source": dtype,
        "rounds": rounds,
        "copy_mb_per_s": _rate(nbytes, copy.best),
        "float32_store": _row(nbytes, timings.pop("float32 store"), copy),
        "formats": {
            format: {stage: _row(nbytes, timings[f"{format}/{stage}"], copy) for stage in STAGES} for format in formats
        },
    }


def _rate(nbytes: int, seconds: float) -> float:
    return round(nbytes / seconds / 1e6, 1)


def _row(nbytes: int, timing: Timing, copy: Timing) -> dict[str, float]:
    return {
        "mb_per_s": _rate(nbytes, timing.best),
        "share_of_copy": round(copy.best / timing.best, 4),
        "share_of_copy_by_medians": round(copy.median / timing.median, 4),
    }


def show(results: dict[str, Any]) -> None:
    """Print one line a format: rates and shares of copy bandwidth, best of all rounds (medians in brackets)."""
    columns, rows = results["shape"][::-1]
    title = f"{results['source']} [{rows}, {columns}], copy {results['copy_mb_per_s']:.0f} MB/s; MB/s of bf16 source"
    table = Table(title=f"{title} = share of copy (by medians)")
    for heading in ("format", *STAGES):
        table.add_column(heading, justify="left" if heading == "format" else "right")
    for format, row in results["formats"].items():
        table.add_row(format, *(_cell(row[stage]) for stage in STAGES))
    table.add_row("float32 store", "", "", "", _cell(results["float32_store"]), "", "")
    Console(width=150).print(table)


def _cell(row: dict[str, float]) -> str:
    return f"{row['mb_per_s']:.0f} = {row['share_of_copy']:.0%} ({row['share_of_copy_by_medians']:.0%})"


def main() -> None:
    """Measure, print and optionally write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="+", choices=QUANTIZED, default=QUANTIZED)
    parser.add_argument("--source", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--shape", nargs=2, type=int, default=SHAPE, metavar=("N", "K"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="also write the results here")
    arguments = parser.parse_args()
    results = measure(arguments.formats, arguments.source, tuple(arguments.shape), arguments.rounds)
    print(" ".join(f"{name} {value}" for name, value in environment().items()))
    show(results)
    if arguments.json:
        write_json(arguments.json, results)


if __name__ == "__main__":
    main()
