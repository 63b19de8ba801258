"""Seconds of a call on a GPU, by CUPTI's kernel records, with the weight out of the second level cache; and what the
machine itself does: copy bandwidth and matrix rate, which every figure is a fraction of.

A timed program calls the function once for each of several copies of the weight, together larger than twice the cache,
so each call finds its own copy in device memory. `WallClock` is for dry runs on a CPU, whose times mean nothing, and
for a GPU whose CUPTI another tool holds. Leaves out what is timed. Has not run on a GPU.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.hardware import Hardware

_MOST_COPIES = 64


class Clock(Protocol):
    """Times a program that calls a function several times."""

    name: str

    def __call__(self, program: Callable, arguments: Sequence[Any], calls: int) -> float:
        """Seconds of one of the program's calls."""
        ...


class CuptiClock:
    """Kernel times as the driver records them: no launch overhead, no host."""

    name = "cupti"

    def __init__(self, iterations: int = 7):
        self.iterations = max(2, iterations)

    def __call__(self, program: Callable, arguments: Sequence[Any], calls: int) -> float:
        """Median over runs of the program of a run's seconds a call, all kernels of the call counted.

        Raises:
          RuntimeError: CUPTI recorded nothing, or not the same kernels in every run.
        """
        from jax.experimental.mosaic.gpu import profiler

        _, runs = profiler.measure(program, aggregate=True, iterations=self.iterations)(*arguments)
        if runs is None:
            raise RuntimeError("CUPTI recorded no kernel: is another profiler attached?")
        return statistics.median(runs) / 1e3 / calls


class WallClock:
    """Wall time of a call; on a GPU the gaps between kernels are in it, and launching where that takes longer."""

    name = "wall"

    def __init__(self, iterations: int = 1):
        self.iterations = iterations

    def __call__(self, program: Callable, arguments: Sequence[Any], calls: int) -> float:
        """Seconds of one of the program's calls, of runs that follow one another after one that compiles."""
        jax.block_until_ready(program(*arguments))
        start = time.perf_counter()
        for _ in range(self.iterations):
            result = program(*arguments)
        jax.block_until_ready(result)
        return (time.perf_counter() - start) / calls / self.iterations


def launch_singly() -> None:
    """Have XLA launch every kernel by itself; to be called before jax first looks for devices.

    In a CUDA graph independent kernels overlap, and the sum of their times is no time that passes.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_enable_command_buffer" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_enable_command_buffer=".strip()


def device_clock(iterations: int = 7) -> Clock:
    """CUPTI's clock where it records a kernel, else the wall's."""
    clock = CuptiClock(iterations)
    try:
        clock(jax.jit(lambda x: x + 1), (jnp.ones(1 << 20),), 1)
    except (ImportError, AttributeError, RuntimeError) as error:
        print(f"timing by the wall, because CUPTI does not work: {error}", flush=True)
        return WallClock(max(2, iterations))
    return clock


def copies_to_rotate(nbytes: int, hardware: Hardware) -> int:
    """Copies of a weight that together exceed twice the second level cache; 2 at least, 64 at most."""
    return min(_MOST_COPIES, max(2, math.ceil(2 * hardware.l2_bytes / nbytes)))


def copies_of(x: Any, weight: Any, copies: int) -> list[tuple[Any, Any]]:
    """So many copies of activations and a weight; x too, so that nothing made of it is shared between calls."""
    placed = jax.device_put((x, weight))
    return [jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), placed) for _ in range(copies)]


def rotation(function: Callable) -> Callable:
    """A program that calls function(x, weight) for each pair of a list; the function is traced and lowered once."""
    one = jax.jit(function)
    return jax.jit(lambda pairs: [one(x, weight) for x, weight in pairs])


def seconds_of(clock: Clock, function: Callable, x: Any, weight: Any, copies: int) -> float:
    """Median seconds of function(x, weight), each call on the next copy of both.

    Args:
      clock: how to time.
      function: takes x and a pytree of arrays.
      x: activations.
      weight: the pytree, on the host or the device.
      copies: how many copies to make.
    """
    return clock(rotation(function), (copies_of(x, weight, copies),), copies)


def seconds_between_sweeps(
    clock: Clock, function: Callable, table: Any, inputs: Sequence[Any], sweep_bytes: int
) -> float:
    """Median seconds of function(table, one) for each of the inputs, which are few bytes of a table too large to copy.

    A run ends with a pass over so many other bytes, so that the next finds nothing of the table in a cache; the time of
    that pass alone is taken off.

    Raises:
      RuntimeError: the pass alone took as long, so that nothing is known of the calls.
    """
    one, pad = jax.jit(function), jnp.zeros(sweep_bytes // 4, jnp.uint32)
    program = jax.jit(lambda table, inputs, pad: ([one(table, each) for each in inputs], pad + 1))
    together = clock(program, (table, inputs, pad), 1)
    alone = clock(jax.jit(lambda pad: pad + 1), (pad,), 1) if sweep_bytes else 0.0
    if together <= alone:
        raise RuntimeError(f"{len(inputs)} calls and a sweep took {together * 1e6:.1f} us, the sweep alone no less")
    return (together - alone) / len(inputs)


def poison(nbytes: int) -> None:
    """Fill memory the next results will be given with NaN, so that what a kernel never writes is noticed."""
    jax.block_until_ready(jnp.full((max(1, nbytes // 4),), np.nan, jnp.float32)).delete()


def copy_bandwidth(clock: Clock, nbytes: int) -> float:
    """Bytes per second, read plus written, of a plain elementwise copy of that many random bytes."""
    words = jax.random.bits(jax.random.key(0), (nbytes // 4,), jnp.uint32)
    seconds = seconds_of(clock, lambda one, buffer: buffer + one, jnp.uint32(1), words, 2)
    return 2 * nbytes / seconds


def matrix_rate(clock: Clock, size: int) -> float:
    """Operations per second of XLA's bfloat16 product of two square matrices, two operations a multiply-add."""
    x, w = (jax.random.normal(jax.random.key(i), (size, size), jnp.bfloat16) for i in range(2))
    seconds = seconds_of(clock, lambda x, w: x @ w.T, x, w, 2)
    return 2.0 * size**3 / seconds
