"""Signals and full disks, as the system delivers them: one line, exit code 1, and the work can be continued."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints.files import Random, write_checkpoint
from tests.cli.commands import environment, run
from tests.convert.samples import sha256


def _python(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program that prepares something and then runs the command line with the arguments."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interruption")
    tensors = {"w": Random((3000, 1280), "F32"), "ids": np.arange(500_000, dtype=np.int32)}
    return write_checkpoint(folder / "model", tensors)


# A signal after some writes, as from a keyboard or a batch system; later writes are slow, so that the conversion cannot
# end before it. The handlers are set because a job that a script put into the background inherits an ignored interrupt.
_SIGNALLED = """
import os, runpy, signal, sys, time
number, handler = getattr(signal, sys.argv.pop(1)), getattr(signal, sys.argv.pop(1))
signal.signal(number, handler)
write, count = os.pwrite, 0
def pwrite(*arguments):
    global count
    count += 1
    if count == 100:
        os.kill(os.getpid(), number)
    if count >= 100:
        time.sleep(0.02)
    return write(*arguments)
os.pwrite = pwrite
runpy.run_module("ninfer_jax", run_name="__main__")
"""


def interrupted(name: str, handler: str, *command: str | Path) -> None:
    """Convert to `out.ninfer` until a signal comes."""
    done = _python(_SIGNALLED, name, handler, *command)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == (
        "error: interrupted; the finished part is kept in out.ninfer.partial; continue with --resume"
    )
    assert "Traceback" not in done.stderr


def test_ctrl_c_keeps_the_work_and_resume_finishes_it(model: Path, tmp_path: Path):
    out = tmp_path / "out.ninfer"
    command = ("convert", model, out, "--recipe", "uniform-q6", "--block-size", "64KiB")
    interrupted("SIGINT", "default_int_handler", *command)
    assert not out.exists()
    again = run(*command)
    assert again.returncode == 1
    assert "--resume" in again.stderr
    done = run(*command, "--resume")
    assert done.returncode == 0, done.stderr
    whole = run("convert", model, tmp_path / "whole.ninfer", "--recipe", "uniform-q6", "--quiet")
    assert whole.returncode == 0
    assert sha256(out) == sha256(tmp_path / "whole.ninfer")
    assert {path.name for path in tmp_path.iterdir()} == {"out.ninfer", "whole.ninfer"}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_other_signals_that_ask_to_end_keep_the_work_too(model: Path, tmp_path: Path, name: str):
    out = tmp_path / "out.ninfer"
    interrupted(name, "SIG_DFL", "convert", model, out, "--recipe", "uniform-q6", "--block-size", "64KiB")
    assert {path.name for path in tmp_path.iterdir()} == {"out.ninfer.partial", "out.ninfer.partial.journal-0"}


def test_a_signal_that_the_caller_ignores_ends_nothing(model: Path, tmp_path: Path):
    out = tmp_path / "out.ninfer"
    done = _python(_SIGNALLED, "SIGHUP", "SIG_IGN", "convert", model, out, "--recipe", "uniform-q6", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert out.exists()


def test_an_export_that_is_ended_leaves_nothing(model: Path, tmp_path: Path):
    out = tmp_path / "out.ninfer"
    assert run("convert", model, out, "--recipe", "word-exact", "--quiet").returncode == 0
    program = _ENDED_AT_FSYNC
    done = _python(program, "export", out, tmp_path / "out.safetensors", "--quiet")
    assert (done.returncode, done.stderr) == (1, "error: interrupted\n")
    assert {path.name for path in tmp_path.iterdir()} == {"out.ninfer"}


_ENDED_AT_FSYNC = """
import os, runpy, signal
signal.signal(signal.SIGTERM, signal.SIG_DFL)
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGTERM)
runpy.run_module("ninfer_jax", run_name="__main__")
"""


_LIMITED = """
import resource, runpy, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
runpy.run_module("ninfer_jax", run_name="__main__")
"""


def test_a_file_that_cannot_grow_is_one_line_and_leaves_nothing(model: Path, tmp_path: Path):
    done = _python(_LIMITED, "convert", model, tmp_path / "out.ninfer", "--recipe", "uniform-q6")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: cannot reserve")
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [("2>/dev/full", 0, ""), (">/dev/full", 1, "cannot be printed: No space left on device; o.ninfer is complete")],
)
def test_a_conversion_outlives_its_messages(model: Path, tmp_path: Path, redirection: str, code: int, message: str):
    command = f"{sys.executable} -m ninfer_jax convert {model} o.ninfer --recipe uniform-q6 {redirection}"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["o.ninfer"]


@pytest.mark.parametrize(
    ("redirection", "code", "lines"),
    [
        ("--help >/dev/full", 1, 1),
        ("support --json >/dev/full", 1, 1),
        ("--help >&-", 0, 0),
        ("--help 2>&-", 0, 0),
    ],
)
def test_output_that_cannot_be_written_is_one_line_or_none(redirection: str, code: int, lines: int):
    command = f"{sys.executable} -m ninfer_jax {redirection}"
    done = subprocess.run(
        command, shell=True, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (code, lines), done.stderr
    assert "Traceback" not in done.stderr
