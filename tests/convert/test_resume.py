"""Interrupted conversions: kept, resumed to the same bytes, refused where something changed, damage found."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_jax.convert import Settings, convert
from ninfer_jax.convert.resume import partial_path
from ninfer_jax.convert.workspace import Workspace
from ninfer_jax.errors import ConversionError, NinferError, SourceChangedError, SourceError
from tests.checkpoints.files import Random, write_checkpoint
from tests.cli.commands import ROOT, environment
from tests.convert.samples import SMALL_BLOCK, sha256

RECIPE = """
[identity]
model_id = "m"
weights_id = "w"

[[rule]]
match = "*"
rank = 2
format = "Q5G64_F16S"

[[rule]]
match = "*"
format = "source"
"""


def write_inputs(folder: Path) -> Path:
    """A checkpoint of about 180 small blocks in two shards, and a recipe."""
    tensors = {
        "a": Random((2000, 640), "F32", 1),
        "b": Random((640, 1920), "F32", 2),
        "c": Random((100,), "F32", 3),
        "ids": np.arange(100_000, dtype=np.int32),
    }
    write_checkpoint(folder / "checkpoint", tensors, shards=2)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_inputs(tmp_path)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """SHA-256 of the artifact of an uninterrupted conversion."""
    folder = write_inputs(tmp_path_factory.mktemp("expected"))
    return sha256(run(folder))


def run(folder: Path, *, resume: bool = False, stop: Callable[[int], None] = lambda blocks: None, **more) -> Path:
    """Convert with a call after every block."""
    done = []

    def progress(*_: object) -> None:
        done.append(1)
        stop(len(done))

    out = folder / "out.ninfer"
    settings = Settings(SMALL_BLOCK, resume=resume, flush_seconds=0.0, progress=progress, **more)
    convert(folder / "checkpoint", out, folder / "recipe.toml", settings)
    return out


def interrupt_after(count: int, error: type[BaseException] = KeyboardInterrupt) -> Callable[[int], None]:
    def stop(blocks: int) -> None:
        if blocks == count:
            raise error(28, "No space left on device") if error is OSError else error

    return stop


def interrupted(folder: Path, count: int = 50) -> Path:
    """Interrupt a conversion after some blocks; its partial file."""
    with pytest.raises(ConversionError, match=r"interrupted.*--resume"):
        run(folder, stop=interrupt_after(count))
    return partial_path(folder / "out.ninfer")


def test_an_interrupted_conversion_is_kept_and_resumed_to_the_same_bytes(folder: Path, expected: str):
    partial = interrupted(folder)
    assert not (folder / "out.ninfer").exists()
    with pytest.raises(ConversionError, match=r"interrupted conversion.*--resume.*--force"):
        run(folder)
    blocks: list[int] = []
    out = run(folder, resume=True, stop=blocks.append)
    assert 100 < len(blocks) <= 135
    assert sha256(out) == expected
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint", "out.ninfer", "recipe.toml"]
    assert not partial.exists()


def test_a_resumed_report_covers_the_whole_conversion(folder: Path):
    interrupted(folder)
    settings = Settings(SMALL_BLOCK, resume=True)
    report = convert(folder / "checkpoint", folder / "out.ninfer", folder / "recipe.toml", settings)
    whole = Settings(SMALL_BLOCK, overwrite=True)
    again = convert(folder / "checkpoint", folder / "out.ninfer", folder / "recipe.toml", whole)
    assert report.resumed
    for one, other in zip(report.tensors, again.tensors, strict=True):
        assert one.max_error == other.max_error
        assert one.sqnr_db == (None if other.sqnr_db is None else pytest.approx(other.sqnr_db, rel=1e-12))


def test_a_resumed_run_may_use_other_blocks(folder: Path, expected: str):
    interrupted(folder)
    settings = Settings(5 * SMALL_BLOCK, resume=True)
    convert(folder / "checkpoint", folder / "out.ninfer", folder / "recipe.toml", settings)
    assert sha256(folder / "out.ninfer") == expected


def test_starting_again_discards_what_was_there(folder: Path, expected: str):
    interrupted(folder)
    assert sha256(run(folder, overwrite=True)) == expected
    assert not partial_path(folder / "out.ninfer").exists()


@pytest.mark.parametrize(
    ("error", "message"), [(OSError, r"No space left on device; .*--resume"), (MemoryError, r"out of memory.*--resume")]
)
def test_system_errors_keep_the_partial_file(folder: Path, expected: str, error: type[BaseException], message: str):
    with pytest.raises(ConversionError, match=message):
        run(folder, stop=interrupt_after(20, error))
    assert sha256(run(folder, resume=True)) == expected


def test_a_read_error_keeps_the_partial_file(folder: Path, expected: str, monkeypatch: pytest.MonkeyPatch):
    real, calls = os.preadv, []

    def preadv(*arguments):
        calls.append(1)
        if len(calls) == 40:
            raise OSError(5, "Input/output error")
        return real(*arguments)

    monkeypatch.setattr("ninfer_jax.sources.tensor.os.preadv", preadv)
    with pytest.raises(SourceError, match=r"Input/output error.*--resume"):
        run(folder)
    assert sha256(run(folder, resume=True)) == expected


def last_shard(folder: Path) -> Path:
    return max((folder / "checkpoint").glob("*.safetensors"))


@pytest.mark.parametrize("hashed", [True, False])
def test_a_source_that_is_written_to_stops_the_conversion(folder: Path, expected: str, hashed: bool):
    path = last_shard(folder)
    whole, status = path.read_bytes(), path.stat()

    def overwrite(blocks: int) -> None:
        if blocks == 20:
            path.write_bytes(whole[:-8] + bytes(8))

    with pytest.raises(
        SourceChangedError, match=rf"^{path.name} was written to.*; restore it and continue with --resume"
    ):
        run(folder, stop=overwrite, hash_sources=hashed)
    assert not (folder / "out.ninfer").exists()
    with pytest.raises(ConversionError, match="cannot resume: a source file"):
        run(folder, resume=True)
    path.write_bytes(whole)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert sha256(run(folder, resume=True)) == expected


def test_a_source_that_is_replaced_or_removed_by_name_is_read_on_as_it_was(folder: Path, expected: str):
    path = last_shard(folder)
    digest = sha256(path)
    out = folder / "out.ninfer"

    def remove(*_: object) -> None:
        path.unlink(missing_ok=True)

    settings = Settings(SMALL_BLOCK, progress=remove)
    report = convert(folder / "checkpoint", out, folder / "recipe.toml", settings)
    assert report.sources[-1]["sha256"] == digest
    assert sha256(out) == expected


@pytest.mark.parametrize("name", ["out.ninfer.partial", "out.ninfer"])
def test_other_hands_in_the_folder_are_not_taken_for_success(folder: Path, name: str):
    def meddle(blocks: int) -> None:
        if blocks == 100:
            (folder / name).unlink(missing_ok=True)
            if name == "out.ninfer":
                (folder / name).write_bytes(b"precious")

    with pytest.raises(NinferError) as caught:
        run(folder, stop=meddle)
    assert "complete" not in str(caught.value)
    if name == "out.ninfer":
        assert "continue with --resume" in str(caught.value)
        assert (folder / name).read_bytes() == b"precious"
    else:
        assert "--resume" not in str(caught.value)
        assert not (folder / "out.ninfer").exists()


@pytest.mark.parametrize("changed", ["recipe", "source", "time"])
def test_a_changed_recipe_or_source_is_refused(folder: Path, changed: str):
    partial = interrupted(folder)
    if changed == "recipe":
        (folder / "recipe.toml").write_text(RECIPE.replace("Q5G64", "Q6G64"))
    else:
        path = next((folder / "checkpoint").glob("*.safetensors"))
        status = path.stat()
        if changed == "source":
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        else:
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    kept = partial.read_bytes()
    with pytest.raises(ConversionError, match=r"cannot resume: .*changed"):
        run(folder, resume=True)
    assert partial.read_bytes() == kept


def test_damaged_last_blocks_are_found_and_done_again(folder: Path, expected: str):
    partial = interrupted(folder)
    record = json.loads(Path(f"{partial}.journal-0").read_text().splitlines()[-3])
    assert record["crc"]
    data = bytearray(partial.read_bytes())
    start = 4096 + 640 // 64 * 32 * record["start"]  # the base plane of the first tensor
    data[start : start + 8] = bytes(8)
    partial.write_bytes(data)
    assert sha256(run(folder, resume=True)) == expected


@pytest.mark.parametrize("again", [{"overwrite": True}, {"resume": True}])
def test_a_conversion_that_still_runs_is_left_alone(folder: Path, expected: str, again: dict[str, Any]):
    met: list[str] = []

    def second_run(blocks: int) -> None:
        if blocks == 30:
            with pytest.raises(NinferError, match="another process is writing") as caught:
                run(folder, **again)
            met.append(str(caught.value))

    assert sha256(run(folder, stop=second_run)) == expected
    assert len(met) == 1


def test_there_must_be_something_to_resume(folder: Path):
    with pytest.raises(ConversionError, match="no interrupted conversion"):
        run(folder, resume=True)


def test_an_artifact_cannot_be_resumed_as_a_partial_file(folder: Path):
    partial = interrupted(folder)
    partial.write_bytes(partial.read_bytes()[:-1])
    with pytest.raises(NinferError):
        run(folder, resume=True)
    assert not (folder / "out.ninfer").exists()


def test_stopped_right_after_publication_nothing_is_left_to_resume(
    folder: Path, expected: str, monkeypatch: pytest.MonkeyPatch
):
    def stop(_: Workspace) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Workspace, "_remove_journals", stop)
        with pytest.raises(ConversionError, match=r"out\.ninfer was published before that and is complete"):
            run(folder)
    assert sha256(folder / "out.ninfer") == expected
    with pytest.raises(ConversionError, match=r"nothing is left to resume: out\.ninfer exists.*--force instead"):
        run(folder, resume=True)
    assert sha256(run(folder, overwrite=True)) == expected
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint", "out.ninfer", "recipe.toml"]


def test_killed_at_random_times_and_resumed_the_bytes_are_the_same(folder: Path, expected: str):
    command = [sys.executable, "-m", "tests.convert.killed", str(folder), "4", "10"]
    done = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["hits"] == 4
    assert counts["found"] >= 1
    assert sha256(folder / "out.ninfer") == expected
