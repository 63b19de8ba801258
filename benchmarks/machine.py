"""What the machine itself does: copy bandwidth and matrix rate, which every figure is a fraction of.

On a GPU the clock is CUPTI's and the second level cache is got out of the way (gpu_timing); elsewhere it is the wall.
On a CPU the fastest of several ways counts, on buffers far larger than a cache, and short calls, because other
processes disturb long ones. A run measures before and after each benchmark and keeps the better figure of each.
Also whether a case fits in its memory.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import gpu_timing
from benchmarks.harness import host_copy, time_in_turns

_CPU_COPY_NBYTES = 1 << 27
_CPU_PRODUCTS = ((512, 512, 512), (256, 2048, 2048))
_GPU_COPY_NBYTES = 1 << 29
_GPU_MATRIX = 8192


def measure_machine(rounds: int = 8) -> dict[str, float]:
    """`copy_bytes_per_second` (read plus written) and `matrix_flops` of the default device, now.

    Args:
        rounds: how often each is timed; the best counts.
    """
    if jax.default_backend() == "gpu":
        clock = gpu_timing.device_clock(rounds)
        return {
            "copy_bytes_per_second": gpu_timing.copy_bandwidth(clock, _GPU_COPY_NBYTES),
            "matrix_flops": gpu_timing.matrix_rate(clock, _GPU_MATRIX),
        }
    copies = {"numpy": host_copy(_CPU_COPY_NBYTES), "xla": _increment(_CPU_COPY_NBYTES)}
    products = {(*shape, name): _product(*shape, name) for shape in _CPU_PRODUCTS for name in ("float32", "bfloat16")}
    copy = min(timing.best for timing in time_in_turns(copies, rounds).values())
    named = time_in_turns({str(key): call for key, call in products.items()}, rounds)
    rates = [2.0 * m * n * k / named[str((m, n, k, name))].best for m, n, k, name in products]
    return {"copy_bytes_per_second": 2 * _CPU_COPY_NBYTES / copy, "matrix_flops": max(rates)}


def too_large(nbytes: float) -> str | None:
    """Why a case that needs so many bytes at once is left out, or None: it may take half of the memory that is free."""
    free = _free_bytes()
    if free is None or nbytes <= free / 2:
        return None
    return f"needs {nbytes / 1e9:.1f} GB at once, and may take half of the {free / 1e9:.1f} GB that are free"


def _free_bytes() -> int | None:
    """Memory of the default device that is free; None where nothing says."""
    if jax.default_backend() == "cpu":
        try:
            lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
    stats = jax.devices()[0].memory_stats() or {}
    return stats["bytes_limit"] - stats["bytes_in_use"] if {"bytes_limit", "bytes_in_use"} <= stats.keys() else None


def better_of(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """The larger figure of each."""
    return {name: max(first[name], second[name]) for name in first}


def _increment(nbytes: int) -> Callable[[], jax.Array]:
    """Reads and writes a buffer on all cores; in place, because fresh pages cost more than the copy."""
    add_one = jax.jit(lambda x: x + 1, donate_argnums=0)
    held = [jnp.zeros(nbytes // 4, jnp.uint32)]

    def call() -> jax.Array:
        held[0] = add_one(held[0])
        return held[0]

    return call


def _product(m: int, n: int, k: int, dtype: str) -> Callable[[], Any]:
    product = jax.jit(lambda x, w: jnp.einsum("mk,nk->mn", x, w, preferred_element_type=jnp.float32))
    x, w = jnp.ones((m, k), dtype), jnp.ones((n, k), dtype)
    return lambda: product(x, w)
