"""Several processes and virtual devices: the same bytes, and what happens when one of them stops."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_jax.convert import Settings, convert
from ninfer_jax.convert.resume import partial_path
from tests.checkpoints.files import Random, write_checkpoint
from tests.cli.commands import ROOT, environment, start
from tests.convert.dying import PEER_TIMEOUT
from tests.convert.samples import sha256

RECIPE = """
[identity]
model_id = "m"
weights_id = "w"

[[rule]]
match = "nv"
format = "NVFP4"

[[rule]]
match = "*"
rank = 2
format = "Q6G64_F16S"

[[rule]]
match = "*"
format = "source"
"""
PLAIN_RECIPE = """
[identity]
model_id = "m"
weights_id = "w"

[[rule]]
match = "*"
format = "Q6G64_F16S"
"""
BLOCK = "64KiB"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    tensors = {
        "a": Random((900, 200), "F32", 1),
        "nv": Random((1152, 128), "F32", 2),
        "b": Random((300, 1920), "F32", 3),
        "ids": np.arange(100_000, dtype=np.int32),
        "scalar": np.array(2, np.float32),
    }
    write_checkpoint(folder / "checkpoint", tensors, shards=2)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> str:
    out = folder / "expected.ninfer"
    convert(folder / "checkpoint", out, folder / "recipe.toml", Settings(1 << 17, hash_sources=False))
    return sha256(out)


Group = list["subprocess.Popen[str]"]


@pytest.fixture
def launch(folder: Path) -> Iterator[Callable[..., Group]]:
    """Start a group of processes; whatever still runs at the end of the test is killed."""
    started: Group = []

    def begin(
        out: Path, count: int, *options: str, devices: int = 1, inputs: Path = folder, differing: tuple[str, ...] = ()
    ) -> Group:
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            address = f"localhost:{probe.getsockname()[1]}"
        flags = f"--xla_force_host_platform_device_count={devices}"
        command = ("convert", inputs / "checkpoint", out, "--recipe", inputs / "recipe.toml", "--block-size", BLOCK)
        for index in range(count):
            place = ("--coordinator", address, "--processes", str(count), "--process-id", str(index))
            own = (*(place if count > 1 else ()), *(differing if index else ()))
            started.append(start(*command, *options, *own, XLA_FLAGS=flags))
        return started

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize(("count", "devices"), [(1, 8), (2, 2), (4, 1)])
def test_bytes_do_not_depend_on_processes_and_devices(
    folder: Path, expected: str, tmp_path: Path, launch: Callable[..., Group], count: int, devices: int
):
    report = tmp_path / "report.json"
    group = launch(tmp_path / "out.ninfer", count, "--report", str(report), devices=devices)
    for process in group:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    assert sha256(tmp_path / "out.ninfer") == expected
    assert {path.name for path in tmp_path.iterdir()} == {"out.ninfer", "report.json"}
    body = json.loads(report.read_text())
    assert (body["processes"], body["devices"]) == (count, devices)
    measured = {tensor["name"]: tensor["sqnr_db"] for tensor in body["tensors"]}
    assert 25 < measured["b"] < 40
    assert 15 < measured["nv"] < 30


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs of groups of which a process dies, and `whole.ninfer` as it should be."""
    folder = tmp_path_factory.mktemp("doomed")
    write_checkpoint(folder / "checkpoint", {"b": Random((2400, 640), "F32", 4)})
    (folder / "recipe.toml").write_text(PLAIN_RECIPE)
    convert(folder / "checkpoint", folder / "whole.ninfer", folder / "recipe.toml", Settings(hash_sources=False))
    return folder


SIGN_OF_LIFE = f"process {{}} died, or gave no sign of life for {PEER_TIMEOUT} seconds"
BY_SIGKILL = "process {} was ended by SIGKILL"
KEPT, COMPLETE = "--resume", "is complete"
DEATHS = {
    "0 before assembly": (BY_SIGKILL, "cannot join", None),
    "1 before assembly": ("cannot join", BY_SIGKILL, None),
    "0 at assembly": (BY_SIGKILL, SIGN_OF_LIFE, None),
    "1 at assembly": (SIGN_OF_LIFE, None, None),
    "0 at work": (BY_SIGKILL, SIGN_OF_LIFE, KEPT),
    "1 at work": (SIGN_OF_LIFE, None, KEPT),
    "0 hangs": (SIGN_OF_LIFE, SIGN_OF_LIFE, KEPT),
    "1 hangs": (SIGN_OF_LIFE, SIGN_OF_LIFE, KEPT),
    "1 interrupted": ("process {} stopped: interrupted; ", "interrupted; ", KEPT),
    "1 terminated": ("process {} stopped: interrupted; ", "interrupted; ", KEPT),
    "0 finished": (None, SIGN_OF_LIFE, KEPT),
    "1 finished": (SIGN_OF_LIFE, BY_SIGKILL, KEPT),
    "0 published": (BY_SIGKILL, SIGN_OF_LIFE, COMPLETE),
    "1 published": (SIGN_OF_LIFE, BY_SIGKILL, COMPLETE),
}
"""Scenarios of `tests.convert.dying`: what the two processes say, None for a command that was killed itself; and what
they say is left."""


@pytest.fixture(scope="module")
def played(doomed: Path) -> dict[str, dict[str, Any]]:
    """What became of every scenario."""
    command = [sys.executable, "-m", "tests.convert.dying", str(doomed), *DEATHS]
    done = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=480, check=False
    )
    assert done.returncode == 0, done.stderr
    return {result["name"]: result for result in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", DEATHS)
def test_a_process_that_dies_stops_the_others_with_one_line(doomed: Path, played: dict[str, dict[str, Any]], name: str):
    *expected, left = DEATHS[name]
    for index, text in enumerate(expected):
        code, printed = played[name]["codes"][index], played[name]["printed"][index]
        if text is None:
            assert (code, printed) == (-signal.SIGKILL, "")
            continue
        assert code == 1
        assert printed.startswith("error: ")
        assert printed.count("\n") == 1
        who = index if text == BY_SIGKILL else 1 - index
        assert text.format(who) in printed
        assert left is None or left in printed
    out = doomed / f"{name.replace(' ', '-')}.ninfer"
    assert out.exists() == (left == COMPLETE)
    assert partial_path(out).exists() == (left == KEPT)
    if left == KEPT:
        settings = Settings(1 << 16, resume=True, hash_sources=False)
        convert(doomed / "checkpoint", out, doomed / "recipe.toml", settings)
    assert left is None or sha256(out) == sha256(doomed / "whole.ninfer")


def test_an_error_in_one_process_is_told_by_all(tmp_path: Path, launch: Callable[..., Group]):
    values = np.ones((4000, 200), np.float32)
    values[3999, 7] = np.nan
    write_checkpoint(tmp_path / "checkpoint", {"b": values})
    (tmp_path / "recipe.toml").write_text(PLAIN_RECIPE)
    out = tmp_path / "out.ninfer"
    group = launch(out, 2, inputs=tmp_path)
    texts = [process.communicate(timeout=240)[1] for process in group]
    assert [process.returncode for process in group] == [1, 1], texts
    assert all("tensor 'b'" in text and "x[3999, 7] is nan" in text for text in texts), texts
    assert all("start again with --force" in text and "--resume" not in text for text in texts), texts
    assert "process 1 stopped" in texts[0]
    assert not out.exists()


def test_processes_with_different_commands_stop(folder: Path, tmp_path: Path, launch: Callable[..., Group]):
    group = launch(tmp_path / "out.ninfer", 2, differing=("--block-size", "128KiB"))
    texts = [process.communicate(timeout=240)[1] for process in group]
    assert [process.returncode for process in group] == [1, 1], texts
    assert any("start the same command on every host" in text for text in texts), texts
    assert list(tmp_path.iterdir()) == []
