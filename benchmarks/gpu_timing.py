"""Seconds of a call on a GPU, by CUPTI's kernel records, with the weight out of the second level cache; and what the
machine itself does: copy bandwidth and bfloat16 matrix rate, which every figure is a fraction of.

A timed program calls the function once for each of several copies of the weight, together larger than twice the cache,
so each call finds its own copy in device memory. `WallClock` is for dry runs on a CPU, whose times mean nothing.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.hardware import Hardware


class Clock(Protocol):
    """Times a program that calls a function several times."""

    def __call__(self, program: Callable, arguments: Sequence[Any], calls: int) -> float:
        """Seconds of one of the program's calls."""
        ...


class CuptiClock:
    """Kernel times as the driver records them: no launch overhead, no host."""

    def __init__(self, iterations: int = 7):
        self.iterations = iterations

    def __call__(self, program: Callable, arguments: Sequence[Any], calls: int) -> float:
        """Median over runs of the program of a run's seconds a call, all kernels of the call counted."""
        from jax.experimental.mosaic.gpu import profiler

        _, runs = profiler.measure(program, aggregate=True, iterations=self.iterations)(*arguments)
        if runs is None:
            raise RuntimeError("CUPTI recorded no kernel: is another profiler attached?")
        return statistics.median(runs) / 1e3 / calls


class WallClock:
    """Wall time of a call, for dry runs."""

    def __call__(self, program: Callable, arguments: Sequence[Any], calls: int) -> float:
        """Seconds of one of the program's calls, of a single run after one that compiles."""
        jax.block_until_ready(program(*arguments))
        start = time.perf_counter()
        jax.block_until_ready(program(*arguments))
        return (time.perf_counter() - start) / calls


def copies_to_rotate(nbytes: int, hardware: Hardware) -> int:
    """Copies of a weight that together exceed twice the second level cache; 2 at least, 16 at most."""
    return min(16, max(2, math.ceil(2 * hardware.l2_bytes / nbytes)))


def seconds_of(clock: Clock, function: Callable, x: Any, weight: Any, copies: int) -> float:
    """Median seconds of function(x, weight), each call on the next copy of both.

    Args:
      clock: how to time.
      function: takes x and a pytree of arrays.
      x: activations.
      weight: the pytree, on the host or the device.
      copies: how many copies to make; x is copied too, so that nothing made of it is shared between calls.
    """
    pairs = [jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), (x, weight)) for _ in range(copies)]
    program = jax.jit(lambda pairs: [function(x, w) for x, w in pairs])
    return clock(program, (pairs,), copies)


def poison(nbytes: int) -> None:
    """Fill memory the next results will be given with NaN, so that what a kernel never writes is noticed."""
    jax.block_until_ready(jnp.full((max(1, nbytes // 4),), np.nan, jnp.float32)).delete()


def copy_bandwidth(clock: Clock, nbytes: int) -> float:
    """Bytes per second, read plus written, of a plain elementwise copy of that many bytes."""
    words = jnp.zeros((nbytes // 4,), jnp.uint32)
    seconds = seconds_of(clock, lambda one, buffer: buffer + one, jnp.uint32(1), words, 2)
    return 2 * nbytes / seconds


def matrix_rate(clock: Clock, size: int) -> float:
    """Operations per second of XLA's bfloat16 product of two square matrices, two operations a multiply-add."""
    x, w = (jax.random.normal(jax.random.key(i), (size, size), jnp.bfloat16) for i in range(2))
    seconds = seconds_of(clock, lambda x, w: x @ w.T, x, w, 2)
    return 2.0 * size**3 / seconds
