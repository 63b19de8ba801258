"""bench_encode's stages as records, beside peers that encode in the same run: gguf, qwix, and the same rule in torch.

Rates count bytes of bfloat16 source. The peers' formats are their own: gguf's Q4_0 and Q8_0 (blocks of 32) and qwix's
int4 and int8 (groups of 64 and 32, not packed); torch runs max-abs groups of 64 and packs nibbles, one operation after
another. Part of `python -m benchmarks encode`; every stage by itself is `python -m benchmarks.bench_encode`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.bench_encode import QUANTIZED, SHAPE, stages
from benchmarks.harness import time_in_turns
from benchmarks.peers import accepted, load
from benchmarks.records import OURS, Record, timed_record
from benchmarks.suite import Settings
from ninfer_jax.layouts import encoded_size

QUICK_SHAPE = (1024, 4096)
_STAGES = ("quantize + pack", "unpack + dequantize")


def run(settings: Settings) -> Iterator[Record]:
    """Records of both directions for every format, and of the peers' encoders."""
    shape = QUICK_SHAPE if settings.quick else SHAPE
    host = (0.02 * np.random.default_rng(0).standard_normal(shape, np.float32)).astype(jnp.bfloat16)
    x = jnp.asarray(host)
    ours = {f: stages(x, f) for f in QUANTIZED}
    candidates = {(f, stage): ours[f][stage] for f in QUANTIZED for stage in _STAGES}
    peers: dict[str, Callable[[], Any]] = {}
    for peer in settings.peers:
        peers |= {"gguf": _gguf, "qwix": _qwix, "torch": _torch}[peer](host)
    names = {f"{format}/{stage}": (format, stage) for format, stage in candidates}
    calls = {name: candidates[key] for name, key in names.items()}
    calls |= accepted(peers, "encode", settings.refusals)
    case = f"[{shape[0]},{shape[1]}]"
    for name, timing in time_in_turns(calls, settings.rounds).items():
        source, figure = 2 * x.size, {"work": 2 * x.size / 1e6, "unit": "MB/s of bf16 source"}
        if name in names:
            format, stage = names[name]
            # Encoding reads bfloat16; decoding writes float32.
            moved = encoded_size(format, shape) + (source if stage == _STAGES[0] else 2 * source)
            yield timed_record("encode", f"{case} {format} {stage}", OURS, timing, nbytes=moved, **figure)
        else:
            project, what = name.split(" ", 1)
            yield timed_record("encode", f"{case} {what}", project, timing, **figure)


def _gguf(host: np.ndarray) -> dict[str, Callable[[], Any]]:
    gguf = load("gguf")
    wide = host.astype(np.float32)
    types = {"Q4_0": gguf.GGMLQuantizationType.Q4_0, "Q8_0": gguf.GGMLQuantizationType.Q8_0}
    return {f"gguf {name}": lambda kind=kind: gguf.quantize(wide, kind) for name, kind in types.items()}


def _qwix(host: np.ndarray) -> dict[str, Callable[[], Any]]:
    qwix = load("qwix")
    x = jnp.asarray(host)

    def encoder(qtype: str, group: int) -> Callable[[], Any]:
        jitted = jax.jit(lambda x: qwix.quantize(x, qtype, channelwise_axes=(0,), tiled_axes={1: group}))
        return lambda: jitted(x)

    return {"qwix int4 groups of 64": encoder("int4", 64), "qwix int8 groups of 32": encoder("int8", 32)}


def _torch(host: np.ndarray) -> dict[str, Callable[[], Any]]:
    torch = load("torch")
    x = torch.from_numpy(host.astype(np.float32)).to(torch.bfloat16)

    def encode() -> Any:
        groups = x.to(torch.float32).reshape(x.shape[0], -1, 64)
        scales = (groups.abs().amax(dim=-1, keepdim=True) / 7).to(torch.float16)
        inverse = torch.where(scales == 0, 0.0, 1.0 / scales.to(torch.float32))
        codes = torch.clamp(torch.round(groups * inverse), -7, 7).to(torch.int8).reshape(x.shape[0], -1, 2)
        return (codes[..., 0] & 15) | (codes[..., 1] << 4), scales

    return {"torch int4 groups of 64": encode}
