"""Conversion at scale: peak memory, rate beside the copy bandwidth of the same run, stages, kills, processes, devices.

`python -m benchmarks.bench_convert one-tensor` converts a checkpoint with one very large tensor and reports its peak
resident memory over that of the interpreter. `... qwen` converts a sharded Qwen3.6-shaped checkpoint with one
process, with two, and after kills, and compares SHA-256. `... matrix` compares 1, 2 and 4 processes on 1, 2 and 8
virtual devices. `... kills` kills a small conversion many times. Synthetic checkpoints lie in a temporary folder and
are removed.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.synthetic import describe, weight_bytes, write_one_tensor, write_scaled_qwen

_BASELINE = (
    "import jax, jax.numpy as jnp, ninfer_jax.cli; jax.jit(lambda x: x * 2)(jnp.zeros((8, 128))).block_until_ready()"
)


class Finished(NamedTuple):
    """How one process ended: exit code (negative for a signal), seconds, peak resident bytes, standard error."""

    code: int
    seconds: float
    peak: int
    errors: str


def start(arguments: Sequence[str | Path], devices: int = 1) -> "subprocess.Popen[str]":
    """Start `python -m ninfer_jax` on a number of virtual CPU devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, "-m", "ninfer_jax", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait(process: "subprocess.Popen[str]", begun: float) -> Finished:
    """Wait for a process and take its peak memory from the system."""
    errors = process.stderr.read() if process.stderr else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Finished(process.returncode, time.perf_counter() - begun, usage.ru_maxrss * 1024, errors)


def run(arguments: Sequence[str | Path], devices: int = 1) -> Finished:
    """Run a command to its end; it must succeed."""
    begun = time.perf_counter()
    done = wait(start(arguments, devices), begun)
    if done.code:
        raise SystemExit(f"{' '.join(map(str, arguments))}: exit code {done.code}\n{done.errors}")
    return done


def run_group(arguments: Sequence[str | Path], count: int, devices: int = 1) -> list[Finished]:
    """Run one command as several processes on this host; all must succeed."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    begun = time.perf_counter()
    group = [
        start([*arguments, "--coordinator", address, "--processes", str(count), "--process-id", str(index)], devices)
        for index in range(count)
    ]
    finished = [wait(process, begun) for process in group]
    for done in finished:
        if done.code:
            raise SystemExit(f"a process of {count} ended with {done.code}\n{done.errors}")
    return finished


def run_with_kills(arguments: Sequence[str | Path], kills: int, longest: float, seed: int = 0) -> tuple[int, Finished]:
    """Kill a command at random times and resume it every time; how many kills hit it, and how its last run ended."""
    generator = random.Random(seed)
    hits = 0
    resume: list[str] = []
    while True:
        begun = time.perf_counter()
        process = start([*arguments, *resume])
        limit = generator.uniform(0.2, longest) if hits < kills else None
        if wait_some(process, limit):
            done = wait(process, begun)
            if done.code:
                raise SystemExit(f"resumed after {hits} kills: exit code {done.code}\n{done.errors}")
            return hits, done
        os.kill(process.pid, signal.SIGKILL)
        wait(process, begun)
        hits += 1
        journal = Path(f"{arguments[2]}.partial.journal-0")
        resume = ["--resume"] if journal.exists() and b"plan" in journal.read_bytes() else ["--force"]


def wait_some(process: "subprocess.Popen[str]", seconds: float | None) -> bool:
    """Wait at most some seconds; whether the process has ended. It is left to be waited for."""
    end = time.perf_counter() + (seconds if seconds is not None else float("inf"))
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.perf_counter() > end:
            return False
        time.sleep(0.02)
    return True


def sha256(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def memory_bandwidth() -> float:
    """Bytes per second of copying a large array, best of five."""
    source = np.ones(1 << 28, np.uint8)
    target = np.empty_like(source)
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - begun)
    return source.nbytes / min(times)


def file_bandwidth(source: Path, folder: Path) -> float:
    """Bytes per second of copying a file block by block and flushing the copy."""
    target = folder / "copy"
    begun = time.perf_counter()
    with source.open("rb") as reader, target.open("wb") as writer:
        while block := reader.read(1 << 24):
            writer.write(block)
        writer.flush()
        os.fsync(writer.fileno())
    seconds = time.perf_counter() - begun
    nbytes = target.stat().st_size
    target.unlink()
    return nbytes / seconds


def baseline() -> int:
    """Peak resident bytes of an interpreter that has imported the package and run a tiny program."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen([sys.executable, "-c", _BASELINE], env=environment)
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_maxrss * 1024


def print_run(title: str, done: Finished, source: int, floor: int, report: Path) -> None:
    """One line about a run, and the share of each stage."""
    body = json.loads(report.read_text())
    stages = body["stage_seconds"]
    wall = stages["wall"] * body["processes"]
    shares = ", ".join(f"{name} {100 * value / wall:.0f}%" for name, value in stages.items() if name != "wall")
    print(
        f"{title}: {done.seconds:.1f} s, {source / done.seconds / 1e6:.0f} MB/s of source, "
        f"peak {done.peak / 1e6:.0f} MB ({(done.peak - floor) / 1e6:.0f} MB over the interpreter); busy: {shares}",
        flush=True,
    )


def one_tensor(folder: Path, options: argparse.Namespace) -> None:
    """Peak memory of converting one very large tensor."""
    checkpoint = write_one_tensor(folder / "checkpoint", options.gigabytes or 3.0)
    floor = baseline()
    print(f"{describe(checkpoint)}; interpreter {floor / 1e6:.0f} MB", flush=True)
    source = weight_bytes(checkpoint)
    for recipe in options.recipes.split(","):
        out, report = folder / "out.ninfer", folder / "report.json"
        command = ["convert", checkpoint, out, "--recipe", recipe, "--report", report, "--no-digests"]
        if options.budget:
            command += ["--memory-budget", options.budget]
        print_run(recipe, run(command), source, floor, report)
        out.unlink()
    copied = file_bandwidth(checkpoint / "model.safetensors", folder)
    print(f"memory copy {memory_bandwidth() / 1e6:.0f} MB/s, file copy with flush {copied / 1e6:.0f} MB/s")


def qwen(folder: Path, options: argparse.Namespace) -> None:
    """A sharded Qwen3.6-shaped checkpoint: one process, two processes, after kills."""
    checkpoint = write_scaled_qwen(folder / "checkpoint", options.gigabytes or 4.0, 15)
    floor, source = baseline(), weight_bytes(checkpoint)
    print(f"{describe(checkpoint)}; interpreter {floor / 1e6:.0f} MB", flush=True)
    out, report = folder / "out.ninfer", folder / "report.json"
    counts = f"draft_counts={checkpoint / 'counts.i64'}"
    command = ["convert", checkpoint, out, "--recipe", "qwen3.6-27b", "--set", counts]
    measured = [*command, "--report", report, "--no-digests", "--memory-budget", options.budget or "2GiB"]
    done = run(measured)
    print_run("1 process", done, source, floor, report)
    digests = {"1 process": sha256(out)}
    out.unlink()
    group = run_group(measured, 2)
    print_run("2 processes", max(group, key=lambda one: one.peak), source, floor, report)
    digests["2 processes"] = sha256(out)
    out.unlink()
    hits, done = run_with_kills(measured, options.kills or 4, done.seconds * 0.25)
    print_run(f"after {hits} kills, last run", done, source, floor, report)
    digests[f"after {hits} kills"] = sha256(out)
    for title, digest in digests.items():
        print(f"SHA-256 {title}: {digest}")
    print("equal" if len(set(digests.values())) == 1 else "DIFFERENT")
    copied = file_bandwidth(next(checkpoint.glob("*.safetensors")), folder)
    print(f"memory copy {memory_bandwidth() / 1e6:.0f} MB/s, file copy with flush {copied / 1e6:.0f} MB/s")


def matrix(folder: Path, options: argparse.Namespace) -> None:
    """SHA-256 over processes and virtual devices."""
    checkpoint = write_scaled_qwen(folder / "checkpoint", options.gigabytes or 0.02, 3)
    print(describe(checkpoint), flush=True)
    found = {}
    for processes in (1, 2, 4):
        for devices in (1, 2, 8):
            out = folder / f"{processes}-{devices}.ninfer"
            command = ["convert", checkpoint, out, "--recipe", "qwen3.6-27b", "--block-size", "256KiB"]
            if processes == 1:
                run(command, devices)
            else:
                run_group(command, processes, devices)
            found[processes, devices] = sha256(out)
            print(f"{processes} process(es), {devices} device(s): {found[processes, devices]}", flush=True)
            out.unlink()
    print("equal" if len(set(found.values())) == 1 else "DIFFERENT")


def kills(folder: Path, options: argparse.Namespace) -> None:
    """Many kills of one small conversion."""
    checkpoint = write_scaled_qwen(folder / "checkpoint", options.gigabytes or 0.3, 3)
    out = folder / "out.ninfer"
    command = ["convert", checkpoint, out, "--recipe", "qwen3.6-27b", "--block-size", "256KiB"]
    done = run(command)
    expected = sha256(out)
    print(f"{describe(checkpoint)}; {done.seconds:.1f} s without kills", flush=True)
    total, rounds, same = 0, 0, True
    while total < (options.kills or 20):
        out.unlink()
        hits, _ = run_with_kills(command, 5, done.seconds * 0.5, seed=rounds)
        total, rounds = total + hits, rounds + 1
        same &= sha256(out) == expected
        print(f"{total} kills, {rounds} conversions finished, all equal: {same}", flush=True)


def main() -> None:
    """Parse the command line and run one benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=("one-tensor", "qwen", "matrix", "kills"))
    parser.add_argument("--gigabytes", type=float, help="size of the checkpoint, 10^9 bytes")
    parser.add_argument("--recipes", default="uniform-q4,uniform-w8", help="recipes of one-tensor")
    parser.add_argument("--budget", help="memory budget, such as 2GiB")
    parser.add_argument("--kills", type=int, help="how often to kill")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    options = parser.parse_args()
    benchmarks = {"one-tensor": one_tensor, "qwen": qwen, "matrix": matrix, "kills": kills}
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="ninfer-bench-") as folder:
        benchmarks[options.benchmark](Path(folder), options)


if __name__ == "__main__":
    main()
