"""The benchmarks by name: what `python -m benchmarks --list` lists and runs.

A benchmark is a function from settings to records; its module is imported when it runs, so that listing is quick and a
missing extra stops only what needs it.
"""

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from benchmarks.records import Record


@dataclasses.dataclass
class Settings:
    """How a run is done.

    Attributes:
        quick: sizes a laptop's CPU does in seconds, instead of the registered ones.
        rounds: how often every candidate is timed, in turns.
        peers: names of the peers that take part.
        refusals: what was left out during the run, with reasons; benchmarks add to it.
    """

    quick: bool = True
    rounds: int = 5
    peers: tuple[str, ...] = ()
    refusals: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """One entry of the list.

    Attributes:
        name: how it is called on the command line.
        summary: one line on what it measures.
        function: "module:function", called with `Settings`.
        peers: peers it takes where they are installed.
        needs_gpu: left out, with a word, where there is no GPU.
    """

    name: str
    summary: str
    function: str
    peers: tuple[str, ...] = ()
    needs_gpu: bool = False

    def run(self, settings: Settings) -> Iterable[Record]:
        """Measure."""
        module, _, name = self.function.partition(":")
        function: Callable[[Any], Iterable[Record]] = getattr(importlib.import_module(module), name)
        return function(settings)


_ALL = (
    Benchmark(
        "matmul",
        "activations times packed weights, beside XLA's dense products",
        "benchmarks.matmul_records:run",
        peers=("qwix", "tokamax"),
    ),
    Benchmark(
        "matmul-gpu",
        "the GPU kernels on the registered weights, each checked before it is timed",
        "benchmarks.matmul_gpu_records:run",
        needs_gpu=True,
    ),
    Benchmark(
        "experts",
        "rows times a packed bank of experts, beside XLA's and tokamax's ragged products",
        "benchmarks.bench_experts:run",
        peers=("qwix", "tokamax"),
    ),
    Benchmark(
        "embedding", "rows gathered from packed tables, beside jnp.take on bf16", "benchmarks.bench_embedding:run"
    ),
    Benchmark(
        "encode",
        "bf16 values to packed bytes and back",
        "benchmarks.encode_records:run",
        peers=("gguf", "qwix", "torch"),
    ),
    Benchmark("load", "an artifact to device arrays, beside safetensors", "benchmarks.bench_load:run", peers=("gguf",)),
    Benchmark("convert", "a checkpoint to an artifact: rate, stages, peak memory", "benchmarks.convert_records:run"),
    Benchmark("decode", "tokens/s of a Llama-architecture model on packed weights", "benchmarks.bench_decode:run"),
)

BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType({one.name: one for one in _ALL})
