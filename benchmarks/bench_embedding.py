"""Rows gathered from a packed embedding: seconds and bytes per second of `take_rows`, beside `jnp.take` on bf16.

A gather reads the packed bytes of the rows asked for and writes them in bfloat16; nothing else need move. The columns
are the default (`xla`), each kernel by its name, and the dense table. Every packed gather has to give the exact bits
before any is timed: rows against exactly decoded ones, all of them against each other. A kernel that cannot run is
named once, with the reason.

On a GPU the clock is gpu_timing's, and the second level cache is swept between runs; elsewhere it is the wall's. Part
of `python -m benchmarks embedding`; bench_embedding_gpu is for a session on a GPU. The kernels have not run on one.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from benchmarks import gpu_timing
from benchmarks.cases import EMBEDDING_CASES, EMBEDDING_TOKENS, WeightCase
from benchmarks.harness import Timing, time_in_turns
from benchmarks.packed_weights import decode_rows
from benchmarks.peers import first_line
from benchmarks.random_weights import FORMATS_OF_KINDS, random_dense, random_host_planes
from benchmarks.records import OURS, Record, timed_record
from benchmarks.suite import Settings
from ninfer_jax.arrays import QuantizedTensor
from ninfer_jax.ops import take_rows
from ninfer_jax.ops.gathers import GATHERS, Gather
from ninfer_jax.ops.mosaic_gpu import kernel_planes
from pallas_kernels import hardware_of

QUICK_ROWS = 32768
#: Calls of a run: of the wall's clock, and of a GPU's, which has a run end with a sweep.
CALLS, GPU_CALLS = 8, 16
_CHECKED_ROWS = 256
_DENSE = "xla-bf16"


@dataclasses.dataclass(frozen=True)
class Table:
    """What rows are gathered from.

    Attributes:
        case: its name and kind.
        host: its planes in host memory, which exact rows are decoded from.
        packed: the same on the device.
        dense: bfloat16 [n, k] of other values.
    """

    case: WeightCase
    host: Any
    packed: QuantizedTensor
    dense: jax.Array

    def title(self, tokens: int) -> str:
        """How a record calls a number of its rows."""
        n, k = self.packed.shape
        return f"{self.case.name} [{n},{k}] {self.case.kind} tokens={tokens}"


def make_table(case: WeightCase, n: int) -> Table:
    """The first `n` rows of a case, packed and dense."""
    name = FORMATS_OF_KINDS[case.kind]
    host = random_host_planes(name, n, case.k)
    packed = QuantizedTensor(jax.tree.map(jnp.asarray, host), name, case.k)
    return Table(case, host, packed, random_dense(n, case.k))


def gathers_of(table: Table, tokens: int, refusals: dict[str, str]) -> dict[str, Callable]:
    """Packed gathers by name, `(w, ids) -> rows`: the default, and each kernel that runs here.

    Args:
        table: what rows are taken from.
        tokens: how many.
        refusals: gets "NAME, embedding" -> why a kernel cannot run.
    """
    take = functools.partial(take_rows, dtype=jnp.bfloat16)
    found: dict[str, Callable] = {OURS: take}
    n, k = table.packed.shape
    asked = Gather(table.packed.format, tokens, n, k, "bfloat16")
    for name, gather in GATHERS.items():
        if not gather.by_name_only:
            continue
        reason = gather.supports(asked, jax.devices()[0])
        if reason is None:
            found[name] = functools.partial(take, implementation=name)
        else:
            refusals[f"{name}, embedding"] = reason
    return found


def fault_of(rows: jax.Array, table: Table, ids: jax.Array, expected: jax.Array | None) -> str:
    """What is wrong with gathered rows; empty where nothing is.

    Args:
        rows: bfloat16 [tokens, k].
        table: what they were taken from.
        ids: int32 [tokens].
        expected: rows of another implementation, or None.
    """
    some = np.unique(np.linspace(0, len(ids) - 1, min(len(ids), _CHECKED_ROWS)).astype(np.int64))
    exact = decode_rows(kernel_planes(table.host), table.case.kind, table.case.k, np.asarray(ids)[some])
    # As the specification has it: a float32, then rounded once more.
    exact = exact.astype(np.float32).astype(ml_dtypes.bfloat16)
    wrong = np.flatnonzero((np.asarray(rows[some]).view(np.uint16) != exact.view(np.uint16)).any(axis=1))
    if wrong.size:
        return (
            f"{wrong.size} of {some.size} rows checked differ from the exact ones, first row {int(ids[some[wrong[0]]])}"
        )
    if expected is not None and not bool(_equal_bits(rows, expected)):
        return "rows outside of those checked differ from the xla implementation's"
    return ""


@jax.jit
def _equal_bits(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.array_equal(jax.lax.bitcast_convert_type(a, jnp.uint16), jax.lax.bitcast_convert_type(b, jnp.uint16))


def right_gathers(
    table: Table, ids: Sequence[jax.Array], gathers: dict[str, Callable], refusals: dict[str, str]
) -> dict[str, Callable]:
    """The gathers whose every row is right, compiled; the others are noted in `refusals`.

    Raises:
        ValueError: the default one is wrong, which leaves nothing to compare with.
    """
    right, where = {}, table.title(len(ids[0]))
    expected: list[jax.Array | None] = [None] * len(ids)
    for name, gather in gathers.items():
        call = jax.jit(gather)
        try:
            gpu_timing.poison(2 * len(ids[0]) * table.case.k)
            rows = [call(table.packed, one) for one in ids]
            faults = [fault_of(*each) for each in zip(rows, [table] * len(ids), ids, expected, strict=True)]
            fault = next(filter(None, faults), "")
        except Exception as error:  # whatever a compiler or a device says against a kernel: the others go on
            rows, fault = [], first_line(error)
        if not fault:
            right[name] = call
            expected = list(rows) if name == OURS else expected
        elif name == OURS:
            raise ValueError(f"{where}: {fault}")
        else:
            refusals[f"{name}, {where}"] = fault
    return right


def records_of(table: Table, tokens: int, gathers: dict[str, Callable], time_all: Callable, refusals: dict[str, str],
               calls: int = CALLS) -> Iterator[Record]:  # fmt: skip
    """Records of one table and number of rows, each gather checked before any is timed.

    Args:
        table: what rows are taken from.
        tokens: how many.
        gathers: packed gathers by name.
        time_all: ({name: (function, table)}, ids) -> {name: `Timing` of a call, or why there is none}.
        refusals: gets what is wrong with the gathers that are left out.
        calls: how often rows are taken, other ones each time, so that few are found in a cache.
    """
    n, k = table.packed.shape
    ids = [jnp.asarray(np.random.default_rng(i).integers(0, n, tokens), jnp.int32) for i in range(calls)]
    right = right_gathers(table, ids, gathers, refusals)
    timed: dict[str, tuple[Callable, Any]] = {name: (call, table.packed) for name, call in right.items()}
    timed[_DENSE] = jax.jit(lambda dense, ids: jnp.take(dense, ids, axis=0)), table.dense
    for name, timing in time_all(timed, ids).items():
        if isinstance(timing, str):
            refusals[f"{name}, {table.title(tokens)}"] = timing
            continue
        read = 2 * tokens * k if name == _DENSE else tokens * table.packed.nbytes // n
        nbytes = read + 2 * tokens * k
        yield timed_record(
            "embedding", table.title(tokens), name, timing, nbytes=nbytes, work=nbytes / 1e9, unit="GB/s"
        )


def by_the_wall(timed: dict[str, tuple[Callable, Any]], ids: Sequence[jax.Array], rounds: int) -> dict[str, Timing]:
    """Wall times of a call, dispatch included; the candidates take turns."""
    several = lambda call, table: lambda: [call(table, one) for one in ids]
    timings = time_in_turns({name: several(*one) for name, one in timed.items()}, rounds)
    return {name: Timing(t.median / len(ids), t.best / len(ids)) for name, t in timings.items()}


def by_the_device(
    timed: dict[str, tuple[Callable, Any]], ids: Sequence[jax.Array], clock: gpu_timing.Clock, sweep: int
) -> dict[str, Timing | str]:
    """Kernel times of a call, a sweep of so many bytes between runs taken off; or why the clock gives none."""
    found: dict[str, Timing | str] = {}
    for name, (call, table) in timed.items():
        try:
            seconds = gpu_timing.seconds_between_sweeps(clock, call, table, list(ids), sweep)
        except RuntimeError as error:
            found[name] = first_line(error)
        else:
            found[name] = Timing(seconds, seconds)
    return found


def run(settings: Settings) -> Iterator[Record]:
    """Records of every table and number of tokens; quick runs cut tables to `QUICK_ROWS` rows."""
    time_all: Callable = functools.partial(by_the_wall, rounds=settings.rounds)
    calls = CALLS
    if jax.default_backend() == "gpu":
        sweep = 2 * hardware_of(jax.devices()[0]).l2_bytes
        time_all = functools.partial(by_the_device, clock=gpu_timing.device_clock(settings.rounds), sweep=sweep)
        calls = GPU_CALLS
    for case in EMBEDDING_CASES[-2:] if settings.quick else EMBEDDING_CASES:
        table = make_table(case, min(case.n, QUICK_ROWS) if settings.quick else case.n)
        for tokens in EMBEDDING_TOKENS:
            gathers = gathers_of(table, tokens, settings.refusals)
            yield from records_of(table, tokens, gathers, time_all, settings.refusals, calls)
