"""bench_convert's one-tensor conversion as records: rate, share of each stage and peak memory over the interpreter.

The whole command runs in a process of its own, imports and compilation included, as a user meets it. Part of
`python -m benchmarks convert`; kills, processes and devices are `python -m benchmarks.bench_convert`.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench_convert import baseline, run as run_command
from benchmarks.harness import Timing
from benchmarks.records import OURS, Record, timed_record
from benchmarks.suite import Settings
from benchmarks.synthetic import weight_bytes, write_one_tensor

RECIPES = ("uniform-q4", "uniform-w8")
_QUICK_GIGABYTES, _FULL_GIGABYTES = 0.2, 3.0


def run(settings: Settings) -> Iterator[Record]:
    """A record for each recipe, of one conversion."""
    with tempfile.TemporaryDirectory(prefix="ninfer-bench-") as name:
        folder = Path(name)
        checkpoint = write_one_tensor(folder / "checkpoint", _QUICK_GIGABYTES if settings.quick else _FULL_GIGABYTES)
        source, interpreter = weight_bytes(checkpoint), baseline()
        for recipe in RECIPES:
            out, report = folder / "out.ninfer", folder / "report.json"
            done = run_command(["convert", checkpoint, out, "--recipe", recipe, "--report", report, "--no-digests"])
            stages = json.loads(report.read_text())["stage_seconds"]
            figures = {f"{stage}_seconds": seconds for stage, seconds in stages.items()}
            figures["peak_bytes_over_interpreter"] = done.peak - interpreter
            yield timed_record(
                "convert",
                f"one tensor of {source / 1e9:.2f} GB, {recipe}",
                OURS,
                Timing(done.seconds, done.seconds),
                work=source / 1e6,
                unit="MB/s of source",
                nbytes=source + out.stat().st_size,
                figures=figures,
            )
            out.unlink()
