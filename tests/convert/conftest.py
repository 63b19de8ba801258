"""The sample checkpoint and its artifact, converted once for all tests that only read them."""

from pathlib import Path
from typing import NamedTuple

import pytest

from ninfer_jax.convert import ConversionReport, Settings, convert
from tests.convert.samples import SMALL_BLOCK, write_sample


class Sample(NamedTuple):
    """Paths of the sample checkpoint, its recipe and its artifact, and the report of the conversion."""

    checkpoint: Path
    recipe: Path
    artifact: Path
    report: ConversionReport


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    folder = tmp_path_factory.mktemp("sample")
    checkpoint, recipe = write_sample(folder)
    artifact = folder / "sample.ninfer"
    report = convert(checkpoint, artifact, recipe, Settings(block_bytes=SMALL_BLOCK))
    return Sample(checkpoint, recipe, artifact, report)
