"""What every benchmark shares: interleaved timing, copy bandwidth of the same run, JSON.

Other processes disturb a run, so times of all candidates are taken in turns and only ratios within one run are quoted.
This module leaves out what is measured.
"""

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np


class Timing(NamedTuple):
    """Seconds of repeated calls.

    Attributes:
        median: over all rounds.
        best: shortest round, the figure least disturbed by other processes.
    """

    median: float
    best: float


def time_in_turns(candidates: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """Call every candidate once a round, after one round that compiles; wait for JAX results."""
    for call in candidates.values():
        jax.block_until_ready(call())
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            seconds[name].append(time.perf_counter() - start)
    return {name: Timing(statistics.median(taken), min(taken)) for name, taken in seconds.items()}


def host_copy(nbytes: int) -> Callable[[], None]:
    """A copy of `nbytes` between two touched host buffers: the yardstick of CPU benchmarks (bytes counted once)."""
    source = np.ones(nbytes, np.uint8)
    target = np.zeros(nbytes, np.uint8)
    return lambda: np.copyto(target, source)


def commit() -> str:
    """The commit of the working tree, with "+" after it where tracked files differ; "unknown" outside a repository."""
    root = Path(__file__).resolve().parent.parent
    try:
        head, changed = (
            subprocess.run(("git", *words), cwd=root, capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
        )
        return head + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def environment() -> dict[str, str | int]:
    """Commit, versions and device of this run."""
    device = jax.devices()[0]
    return {
        "commit": commit(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "platform": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
    }


def write_json(path: Path, results: Mapping[str, Any]) -> None:
    """Write results with the environment they were measured in."""
    path.write_text(json.dumps({"environment": environment(), **results}, indent=2) + "\n", encoding="utf-8")
