"""Verification, comparison with the source, sampling: what is right passes, every planted fault is found and named."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ninfer_jax.container import TensorObject, open_artifact
from ninfer_jax.convert import Settings, planned, verify_against, verify_artifact
from ninfer_jax.convert.compare import sampled_blocks
from ninfer_jax.errors import ArtifactError, VerifyError
from tests.convert.conftest import Sample
from tests.convert.samples import SMALL_BLOCK

SETTINGS = Settings(block_bytes=SMALL_BLOCK)
VERIFY_BLOCK = 1 << 13


@pytest.fixture
def damage(sample: Sample, tmp_path: Path) -> Callable[[str, str, int, int], Path]:
    """Copy the sample artifact and overwrite one byte of a plane of a tensor."""

    def change(name: str, plane: str, index: int, value: int) -> Path:
        copy = tmp_path / "damaged.ninfer"
        shutil.copy(sample.artifact, copy)
        with open_artifact(copy) as artifact:
            stored = artifact[name]
            assert isinstance(stored, TensorObject)
            position = artifact.payload_offset + stored.offset + stored.geometry.plane(plane).offset + index
        with copy.open("r+b") as file:
            file.seek(position)
            assert file.read(1) != bytes([value])
            file.seek(position)
            file.write(bytes([value]))
        return copy

    return change


def test_a_sound_artifact_passes(sample: Sample):
    done = verify_artifact(sample.artifact, block_bytes=VERIFY_BLOCK)
    assert done.objects == 17
    assert done.blocks > 3 * done.objects
    compared = verify_against(sample.artifact, sample.checkpoint, sample.recipe, SETTINGS)
    assert compared.nbytes == sample.report.source_bytes


@pytest.mark.parametrize(
    ("name", "plane", "index", "value", "message"),
    [
        ("W8.f32", "base", 256 * 140 + 5, 0x80, r"'W8.f32': .*codes\[140, 5\]"),
        ("Q4.f32", "scales", 8 * 9 + 1, 0xFC, r"'Q4.f32': .*scales\[9, 0\]"),
        ("Q6.bf16", "scales", 8 * 250 + 1, 0x7C, r"'Q6.bf16': .*scales\[250, 0\]"),
        ("fp8.f32", "codes", 200 * 8 + 3, 0x7F, r"'fp8.f32': .*codes\[8, 3\]"),
        ("nvfp4.f32", "scales", 0, 0xFF, r"'nvfp4.f32': .*scales\[0, 0\]"),
        ("nvfp4.f32", "divisor", 3, 0xFF, r"'nvfp4.f32': .*divisor"),
        ("Q4.f32", "base", 128 * 3 + 110, 0x01, r"'Q4.f32': columns past 200"),
        ("Q4.f16", "scales", 2, 0x01, r"'Q4.f16': columns past 33"),
        ("Q5.f32", "scales", -1, 0x01, r"'Q5.f32': byte 24063 .*, between high and scales, must be zero"),
        ("fp8.f32", "scales", -208, 0x80, r"'fp8.f32': byte 30000 .*, between codes and scales, must be zero"),
    ],
)
def test_illegal_words_and_padding_are_named(
    damage: Callable[[str, str, int, int], Path], name: str, plane: str, index: int, value: int, message: str
):
    with pytest.raises(VerifyError, match=message):
        verify_artifact(damage(name, plane, index, value), block_bytes=VERIFY_BLOCK)


@pytest.mark.parametrize(
    ("name", "plane", "index", "message"),
    [
        (
            "Q5.f32",
            "high",
            140 * 32 + 1,
            r"tensor 'Q5.f32' differs from its source: codes\[140, (8|9|1[0-5])\]",
        ),
        ("W8.bf16", "base", 259 * 256 + 255, r"codes\[259, 255\] is -?\d+, expected -?\d+"),
        ("fp8.f32", "scales", 2 * 149, r"scales\[149\] is 0x[0-9a-f]{4}, expected 0x[0-9a-f]{4}"),
        ("nvfp4.f32", "codes", 96 * 300, r"codes\[300, [01]\]"),
        ("kept/ids", "words", 4 * 62, r"words\[1, 1\]"),
        ("kept/scalar", "words", 0, r"words\[0\]"),
    ],
)
def test_the_first_word_that_differs_from_the_source_is_named(
    sample: Sample,
    damage: Callable[[str, str, int, int], Path],
    name: str,
    plane: str,
    index: int,
    message: str,
):
    with open_artifact(sample.artifact) as artifact:
        stored = artifact[name]
        assert isinstance(stored, TensorObject)
        byte = int(artifact.payload(name)[stored.geometry.plane(plane).offset + index])
    with pytest.raises(VerifyError, match=message):
        verify_against(damage(name, plane, index, byte ^ 1), sample.checkpoint, sample.recipe, SETTINGS)


def test_a_sample_too_finds_what_lies_between_planes(sample: Sample, damage: Callable[[str, str, int, int], Path]):
    with pytest.raises(VerifyError, match="between codes and scales"):
        verify_against(damage("fp8.f32", "scales", -1, 1), sample.checkpoint, sample.recipe, SETTINGS, sample=1)


def test_another_recipe_is_named(sample: Sample):
    with pytest.raises(VerifyError, match="identity"):
        verify_against(sample.artifact, sample.checkpoint, "uniform-q4")


def test_a_sample_is_seeded_and_covers_every_object(sample: Sample):
    with planned(sample.checkpoint, sample.recipe, SETTINGS) as (plan, _, _):
        first, again, other = (sampled_blocks(plan, 2, seed) for seed in (1, 1, 2))
        assert first == again
        assert first != other
        assert {block.position for block in first} == set(range(len(plan.specs)))
        assert len(sampled_blocks(plan, 10**6, 0)) == len(plan.blocks)
    done = verify_against(sample.artifact, sample.checkpoint, sample.recipe, SETTINGS, sample=1, seed=3)
    assert done.blocks == done.objects


def test_a_truncated_artifact_is_refused(sample: Sample, tmp_path: Path):
    short = tmp_path / "short.ninfer"
    short.write_bytes(sample.artifact.read_bytes()[:-1])
    with pytest.raises(ArtifactError):
        verify_artifact(short)


def test_every_block_of_a_tensor_can_be_sampled(sample: Sample):
    with planned(sample.checkpoint, sample.recipe, SETTINGS) as (plan, _, _):
        seen = {block for seed in range(60) for block in sampled_blocks(plan, 1, seed)}
    assert seen == set(plan.blocks)
    assert np.unique([block.position for block in plan.blocks]).size < len(plan.blocks)
