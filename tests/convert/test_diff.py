"""Differences between artifacts: identity, objects, formats and words."""

from pathlib import Path

import numpy as np
import pytest

from ninfer_jax.container import ArtifactWriter, ResourceEntry, TensorEntry, plan_artifact
from ninfer_jax.convert import diff_artifacts
from tests.convert.conftest import Sample


def write(path: Path, *, weights_id: str = "w", ids: tuple[int, ...] = (1, 2, 3, 4), notes: bytes = b"notes") -> Path:
    """A small artifact of one tensor and one resource."""
    entries = [TensorEntry("ids", (len(ids),), "I32"), ResourceEntry("notes", len(notes))]
    with ArtifactWriter(path, plan_artifact(("m", weights_id), entries)) as writer:
        writer.write_rows("ids", 0, np.array(ids, np.int32))
        writer.write("notes", 0, notes)
        writer.publish()
    return path


def texts(first: Path, second: Path) -> list[str]:
    return [f"{one.name}: {one.what}" for one in diff_artifacts(first, second)]


def test_an_artifact_equals_itself(sample: Sample):
    assert diff_artifacts(sample.artifact, sample.artifact) == ()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"weights_id": "v"}, [": identity m/v, first has m/w"]),
        ({"ids": (1, 2, 9, 4)}, ["ids: words[2] is 9, expected 3"]),
        ({"ids": (1, 2, 3)}, ["ids: I32 [3], first has I32 [4]"]),
        ({"notes": b"nodes"}, ["notes: differs from byte 2"]),
        ({"notes": b"no"}, ["notes: 2 bytes, first has 5"]),
    ],
)
def test_a_difference_is_named(tmp_path: Path, changes: dict, expected: list[str]):
    first, second = write(tmp_path / "a.ninfer"), write(tmp_path / "b.ninfer", **changes)
    assert texts(first, second) == expected


def test_missing_objects_are_named(sample: Sample, tmp_path: Path):
    found = texts(sample.artifact, write(tmp_path / "b.ninfer"))
    assert "Q4.f32: only in the first" in found
    assert "notes: only in the second" in found
