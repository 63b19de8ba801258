"""Several processes and virtual devices: the same bytes, and what happens when one of them stops."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ninfer_jax.convert import Settings, convert
from ninfer_jax.convert.journal import journal_path, read_journal
from ninfer_jax.convert.resume import partial_path
from tests.checkpoints.files import Random, write_checkpoint
from tests.cli.commands import start
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

    def begin(out: Path, count: int, *options: str, devices: int = 1, inputs: Path = folder) -> Group:
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            address = f"localhost:{probe.getsockname()[1]}"
        flags = f"--xla_force_host_platform_device_count={devices}"
        command = ("convert", inputs / "checkpoint", out, "--recipe", inputs / "recipe.toml", "--block-size", BLOCK)
        for index in range(count):
            place = ("--coordinator", address, "--processes", str(count), "--process-id", str(index))
            started.append(start(*command, *options, *(place if count > 1 else ()), XLA_FLAGS=flags))
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


def journals(out: Path, count: int) -> list[Path]:
    return [journal_path(partial_path(out), index) for index in range(count)]


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def has_begun(path: Path) -> bool:
    return path.exists() and b"plan" in path.read_bytes()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_stops_the_others_and_the_work_can_be_resumed(
    tmp_path: Path, launch: Callable[..., Group], victim: int
):
    write_checkpoint(tmp_path / "checkpoint", {"b": Random((16_000, 1920), "F32", 4)})  # enough blocks to be under way
    (tmp_path / "recipe.toml").write_text(PLAIN_RECIPE)
    out = tmp_path / "out.ninfer"
    group = launch(out, 2, "--peer-timeout", "3", inputs=tmp_path)
    wait_until(lambda: all(has_begun(path) for path in journals(out, 2)))
    begun = [path.stat().st_mtime_ns for path in journals(out, 2)]
    wait_until(lambda: all(path.stat().st_mtime_ns > old for path, old in zip(journals(out, 2), begun, strict=True)))
    os.kill(group[victim].pid, signal.SIGKILL)
    other = group[1 - victim]
    output, errors = other.communicate(timeout=240)
    assert other.returncode == 1, output + errors
    assert "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if line.startswith("error:")]
    assert f"process {victim} has given no sign of life for 3 seconds" in line
    assert "--resume" in line
    assert not out.exists()
    convert(tmp_path / "checkpoint", out, tmp_path / "recipe.toml", Settings(resume=True, hash_sources=False))
    whole = tmp_path / "whole.ninfer"
    convert(tmp_path / "checkpoint", whole, tmp_path / "recipe.toml", Settings(hash_sources=False))
    assert sha256(out) == sha256(whole)
    assert not partial_path(out).exists()


def test_an_error_in_one_process_is_told_by_all(tmp_path: Path, launch: Callable[..., Group]):
    values = np.ones((4000, 200), np.float32)
    values[3999, 7] = np.nan
    write_checkpoint(tmp_path / "checkpoint", {"b": values})
    (tmp_path / "recipe.toml").write_text(PLAIN_RECIPE)
    out = tmp_path / "out.ninfer"
    group = launch(out, 2, inputs=tmp_path)
    texts = [process.communicate(timeout=240)[1] for process in group]
    assert [process.returncode for process in group] == [1, 1], texts
    assert all("tensor 'b'" in text and "is nan" in text for text in texts), texts
    assert "process 1 stopped" in texts[0]
    assert not out.exists()
    failed = read_journal(journals(out, 2)[1]).failed
    assert failed is not None
    assert "is nan" in failed
