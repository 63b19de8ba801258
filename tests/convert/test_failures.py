"""Conversions that must fail: before anything is written, or with tensor and coordinate named; nothing is published."""

import os
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest

from ninfer_jax.convert import Settings, convert, verify_against
from ninfer_jax.errors import CastError, ConversionError, EncodeError, NinferError, RecipeError
from tests.checkpoints.files import write_checkpoint
from tests.convert.conftest import Sample
from tests.convert.samples import SMALL_BLOCK

HEADER = '[identity]\nmodel_id = "m"\nweights_id = "w"\n'


def attempt(folder: Path, rule: str, values: np.ndarray, settings: Settings | None = None) -> None:
    """Convert one tensor `w` by one rule."""
    write_checkpoint(folder / "checkpoint", {"w": values})
    (folder / "recipe.toml").write_text(f'{HEADER}[[rule]]\nmatch = "w"\n{rule}\n')
    convert(folder / "checkpoint", folder / "out.ninfer", folder / "recipe.toml", settings)


def left(folder: Path) -> set[str]:
    """What a failed conversion left beside its inputs."""
    return {path.name for path in folder.iterdir()} - {"checkpoint", "recipe.toml"}


ADVICE = r"; correct the source, or store the tensor otherwise, and start again$"
"""Resuming would meet the same value again."""


@pytest.mark.parametrize("format", ["Q4G64_F16S", "W8G32_F16S", "FP8_E4M3FN_ROW_BF16S", "NVFP4"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_value_that_cannot_be_encoded_is_named_and_nothing_is_left(tmp_path: Path, format: str, dtype: type):
    values = np.ones((512, 256), dtype)
    values[399, 17] = np.inf
    with pytest.raises(EncodeError, match=rf"^tensor 'w': {format}: x\[399, 17\] is inf; .*{ADVICE}"):
        attempt(tmp_path, f'format = "{format}"', values, Settings(block_bytes=SMALL_BLOCK))
    assert left(tmp_path) == set()


@pytest.mark.parametrize(
    ("rule", "values", "place"),
    [
        ('format = "BF16"\ncast = "exact"', np.full((300, 64), 1 + 2**-20, np.float32), [299, 1]),
        ('format = "FP32"\ncast = "round"', np.full((300, 64), 1e300), [299, 1]),
        ('format = "I32"\ncast = "exact"', np.full(70_000, 2**31, np.int64), [69_999]),
        ('format = "I32"\ncast = "exact"', np.full((70, 30, 20), 0.5, np.float32), [69, 29, 19]),
    ],
)
def test_a_value_that_cannot_be_cast_is_named(tmp_path: Path, rule: str, values: np.ndarray, place: list[int]):
    one = np.zeros_like(values)
    one[tuple(place)] = values[tuple(place)]
    with pytest.raises(CastError, match=rf"^tensor 'w': x\[{', '.join(map(str, place))}\] = .*{ADVICE}"):
        attempt(tmp_path, rule, one, Settings(block_bytes=SMALL_BLOCK))
    assert left(tmp_path) == set()


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ('format = "BF16"', np.ones((2, 2), np.float32)),
        ('format = "NVFP4"', np.ones((100, 64), np.float32)),
        ('format = "Q4G64_F16S"', np.ones(64, np.float32)),
        ('format = "q4"', np.ones((2, 64), np.float32)),
        ('format = "source"\n[[rule]]\nmatch = "v"\nformat = "source"', np.ones((2, 2), np.float32)),
    ],
)
def test_a_recipe_that_does_not_fit_fails_before_anything_is_written(tmp_path: Path, rule: str, values: np.ndarray):
    with pytest.raises(NinferError):
        attempt(tmp_path, rule, values)
    assert left(tmp_path) == set()


def test_a_tensor_without_a_rule_is_named(tmp_path: Path):
    write_checkpoint(tmp_path / "checkpoint", {"w": np.ones(2, np.float32), "v": np.ones(2, np.float32)})
    (tmp_path / "recipe.toml").write_text(f'{HEADER}[[rule]]\nmatch = "w"\nformat = "source"\n')
    with pytest.raises(RecipeError, match="'v'"):
        convert(tmp_path / "checkpoint", tmp_path / "out.ninfer", tmp_path / "recipe.toml")
    assert left(tmp_path) == set()


def test_an_existing_destination_is_kept(sample: Sample, tmp_path: Path):
    out = tmp_path / "out.ninfer"
    out.write_bytes(b"precious")
    with pytest.raises(ConversionError, match=r"exists.*--force"):
        convert(sample.checkpoint, out, sample.recipe)
    assert out.read_bytes() == b"precious"
    convert(sample.checkpoint, out, sample.recipe, Settings(overwrite=True))
    assert out.stat().st_size == sample.artifact.stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["out.ninfer"]


def test_a_missing_folder_is_named(sample: Sample, tmp_path: Path):
    with pytest.raises(ConversionError, match="create it first"):
        convert(sample.checkpoint, tmp_path / "absent" / "out.ninfer", sample.recipe)


def test_a_full_disk_is_found_before_anything_is_written(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("ninfer_jax.convert.preflight.shutil.disk_usage", lambda _: usage)
    with pytest.raises(ConversionError, match=r"needs \d+ bytes.*1000 free"):
        convert(sample.checkpoint, tmp_path / "out.ninfer", sample.recipe)
    assert list(tmp_path.iterdir()) == []


def test_a_block_or_budget_that_is_too_small_is_refused(sample: Sample, tmp_path: Path):
    with pytest.raises(ConversionError, match="too small"):
        convert(sample.checkpoint, tmp_path / "out.ninfer", sample.recipe, Settings(block_bytes=100))
    with pytest.raises(ConversionError, match="budget"):
        convert(sample.checkpoint, tmp_path / "out.ninfer", sample.recipe, Settings(memory_budget=1 << 20))


@pytest.mark.parametrize("settings", [{"block_bytes": "4MiB"}, {"memory_budget": 1.5e9}, {"block_bytes": True}])
def test_a_size_that_is_no_whole_number_is_refused(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user, whom no annotation check guards
    with pytest.raises(ConversionError, match="an integer number of bytes or None is needed"):
        Settings(**settings)


def test_what_would_do_nothing_is_refused(sample: Sample, tmp_path: Path):
    with pytest.raises(ConversionError, match="names no device"):
        convert(sample.checkpoint, tmp_path / "out.ninfer", sample.recipe, Settings(devices=()))
    with pytest.raises(ConversionError, match=r"destination \. is a folder"):
        convert(sample.checkpoint, "", sample.recipe)
    for count in (0, -1):
        with pytest.raises(ConversionError, match="would compare nothing"):
            verify_against(sample.artifact, sample.checkpoint, sample.recipe, sample=count)
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_exceeds_the_budget_is_named(tmp_path: Path):
    budget = 500 << 20
    values = np.zeros((2, 3 << 20), np.float32)
    with pytest.raises(ConversionError, match=r"tensor 'w': its smallest block of rows"):
        attempt(tmp_path, 'format = "W8G32_F16S"', values, Settings(memory_budget=budget))
    assert left(tmp_path) == set()


def test_a_name_that_is_not_text_is_no_identity(tmp_path: Path):
    folder = write_checkpoint(tmp_path / os.fsdecode(b"model\xff"), {"w": np.ones((2, 64), np.float32)})
    with pytest.raises(RecipeError, match=r"name of the checkpoint, 'model.*udcff'.*rename it"):
        convert(folder, tmp_path / "out.ninfer", "uniform-q4")
    assert list(tmp_path.iterdir()) == [folder]
