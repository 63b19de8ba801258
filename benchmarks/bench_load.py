"""An artifact to arrays on the device: time until every byte is there and was read once, beside safetensors and gguf.

All files hold the same weights' worth of values, lie in the page cache and are loaded whole. On a CPU arrays may be
views of the mapped file, so each candidate also sums its bytes: what is timed is loading and the first use. Part of
`python -m benchmarks load`.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import LLAMA_8B_CASES, WeightCase
from benchmarks.harness import time_in_turns
from benchmarks.peers import load as load_peer
from benchmarks.random_weights import FORMATS_OF_KINDS, random_host_planes
from benchmarks.records import OURS, Record, timed_record
from benchmarks.suite import Settings
from ninfer_jax.arrays import load
from ninfer_jax.container import ArtifactWriter, Identity, TensorEntry, open_artifact, plan_artifact

QUICK_DIVISOR = 4
_QUICK_LAYERS, _FULL_LAYERS = 2, 8


def run(settings: Settings) -> Iterator[Record]:
    """Records of opening an artifact, of loading it, and of loading peers' files of as many values."""
    weights = model_weights(settings.quick)
    with tempfile.TemporaryDirectory(prefix="ninfer-bench-") as folder:
        files = {OURS: write_artifact(Path(folder) / "model.ninfer", weights)}
        files["safetensors-bf16"] = write_dense(Path(folder) / "model.safetensors", weights)
        loaders: dict[str, Callable[[Path], Any]] = {OURS: load, "safetensors-bf16": _load_safetensors}
        if "gguf" in settings.peers:
            files["gguf-q4_0"] = write_gguf(Path(folder) / "model.gguf", weights)
            loaders["gguf-q4_0"] = _load_gguf
        calls = {name: _load_and_read(loaders[name], path) for name, path in files.items()}
        timings = time_in_turns({**calls, "open": lambda: open_artifact(files[OURS]).close()}, settings.rounds)
        values = sum(case.n * case.k for case in weights.values())
        case = f"{len(weights)} weights, {values / 1e6:.0f} M values"
        opened = timings.pop("open")
        yield timed_record("load", f"{case}, structure only", OURS, opened, work=len(weights), unit="objects/s")
        for name, timing in timings.items():
            nbytes = files[name].stat().st_size
            yield timed_record(
                "load", case, name, timing, work=values / 1e9, unit="G values/s", figures={"file_bytes": nbytes}
            )


def model_weights(quick: bool) -> dict[str, WeightCase]:
    """Names and weights of some layers of an 8B Llama; quick runs take a quarter of the rows."""
    layers = [case for case in LLAMA_8B_CASES if "head" not in case.name]
    divisor = QUICK_DIVISOR if quick else 1
    return {
        f"layers/{i}/{case.name.split()[-1]}": WeightCase(case.name, case.kind, case.n // divisor, case.k)
        for i in range(_QUICK_LAYERS if quick else _FULL_LAYERS)
        for case in layers
    }


def write_artifact(path: Path, weights: dict[str, WeightCase]) -> Path:
    """An artifact of random packed weights."""
    formats = {name: FORMATS_OF_KINDS[case.kind] for name, case in weights.items()}
    entries = [TensorEntry(name, (case.n, case.k), formats[name]) for name, case in weights.items()]
    with ArtifactWriter(path, plan_artifact(Identity("benchmark", "random"), entries)) as writer:
        for name, case in weights.items():
            writer.write_rows(name, 0, random_host_planes(formats[name], case.n, case.k))
        writer.publish()
    return path


def write_dense(path: Path, weights: dict[str, WeightCase]) -> Path:
    """A safetensors file of as many bfloat16 values."""
    from safetensors.numpy import save_file

    values = lambda case: np.full((case.n, case.k), 0.5, jnp.bfloat16)
    save_file({name: values(case) for name, case in weights.items()}, path)
    return path


def write_gguf(path: Path, weights: dict[str, WeightCase]) -> Path:
    """A GGUF file of as many Q4_0 values: blocks of 32, 18 bytes each."""
    gguf = load_peer("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for name, case in weights.items():
        blocks = np.full((case.n, case.k // 32 * 18), 0x3C, np.uint8)
        writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _load_safetensors(path: Path) -> Any:
    from safetensors.flax import load_file

    return load_file(path)


def _load_gguf(path: Path) -> Any:
    gguf = load_peer("gguf")
    return {tensor.name: jnp.asarray(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


@jax.jit
def _total(arrays: Any) -> jax.Array:
    """A sum over every array, so that every byte is read."""
    return sum((jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(arrays)), jnp.float32(0))


def _load_and_read(load_file: Callable[[Path], Any], path: Path) -> Callable[[], jax.Array]:
    return lambda: _total(load_file(path))
