"""The script of a session on a GPU, with stand-ins for the interpreter and for timeout: what it runs, for how long at
most, and that it goes on after a step that fails."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_session.sh"
TIMEOUT = '#!/bin/sh\nshift\necho "$1" >> "$LOG/seconds"\nshift\nexec "$@"\n'
PYTHON = (
    '#!/bin/sh\necho "$@" >> "$LOG/commands"\ncase "$*" in *decode*) echo it is wrong; exit 1;; *q4*) exit 124;; esac\n'
)
SUITES = ["test_decode", "test_prefill", "test_gather"]


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
def test_every_step_is_bounded_and_runs_whatever_became_of_the_others(arguments, tmp_path):
    for name, text in (("timeout", TIMEOUT), ("stand-in", PYTHON)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    own = {"PYTHON": str(tmp_path / "stand-in"), "LOG": str(tmp_path), "RESULTS": str(tmp_path / "results.json")}
    environment = {**os.environ, **own, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, timeout=60)
    commands = (tmp_path / "commands").read_text().splitlines()
    seconds = [int(line) for line in (tmp_path / "seconds").read_text().splitlines()]
    assert len(commands) == len(seconds) > 2
    assert sum(seconds) + 5 * len(seconds) <= 8 * 60
    benchmarks = [command for command in commands if "bench_matmul_gpu" in command]
    kinds = ["q4", "fp8"] if arguments else ["q4", "w8", "nvfp4", "fp8", "q6", "q5"]
    assert [command.split("--kinds ")[1].split()[0] for command in benchmarks] == kinds
    suites = [command for command in commands if "on_the_gpu" in command]
    assert [Path(word).stem for command in suites for word in command.split() if word.endswith(".py")] == SUITES
    assert all((SCRIPT.parents[1] / f"tests/pallas_kernels/{suite}.py").exists() for suite in SUITES)
    assert "bench_embedding_gpu" in commands[-1]
    assert run.returncode == 1
    assert "FAILED: suite decode: exit status 1" in run.stdout
    assert "it is wrong" in (tmp_path / "results.log").read_text()
    assert "FAILED: matmul q4: stopped after" in run.stdout
    assert run.stdout.count("FAILED") == 2
