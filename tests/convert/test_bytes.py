"""The bytes of a converted artifact against the oracles, and their independence of blocks and shards."""

from pathlib import Path

import jax
import numpy as np
import pytest

from ninfer_jax.convert import Settings, convert
from tests.convert.conftest import Sample
from tests.convert.samples import GROUPED, grouped_payload, sha256, tensors, write_sample
from tests.oracle import container, encoders_fp, layouts


@pytest.fixture(scope="module")
def found(sample: Sample) -> container.Artifact:
    return container.read(sample.artifact.read_bytes())


def stored_format(artifact: container.Artifact, name: str) -> str:
    (entry,) = (entry for entry in artifact.objects if entry["name"] == name)
    return entry["format"]


@pytest.mark.parametrize("format_name", GROUPED)
def test_grouped_payloads_equal_the_oracle(found: container.Artifact, format_name: str):
    checked = 0
    for name, values in tensors().items():
        if name.startswith(format_name[:2]):
            assert stored_format(found, name) == format_name
            assert found.payload(name) == grouped_payload(values, format_name), name
            checked += 1
    assert checked >= 2


@pytest.mark.parametrize("name", ["norm", "bias", "ids", "scalar"])
def test_direct_words_survive_bit_for_bit(found: container.Artifact, name: str):
    assert found.payload(f"kept/{name}") == tensors()[name].tobytes()


def test_a_cast_rounds_to_nearest_even(found: container.Artifact):
    words = tensors()["cast.f32"].view(np.uint32).astype(np.uint64)
    rounded = ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype("<u2")
    assert found.payload("cast.f32") == rounded.tobytes()


def test_row_scaled_payloads_equal_the_oracle(found: container.Artifact):
    words = encoders_fp.encode_fp8_row(tensors()["fp8.f32"])
    assert found.payload("fp8.f32") == layouts.pack(words, "FP8_E4M3FN_ROW_BF16S")


def test_block_scaled_payloads_equal_the_oracle_with_the_divisor_of_the_whole_matrix(found: container.Artifact):
    codes, scales, divisor = encoders_fp.encode_nvfp4(tensors()["nvfp4.f32"])
    assert found.payload("nvfp4.f32") == layouts.pack((codes, scales, np.asarray(divisor)), "NVFP4")


def test_dropped_tensors_are_absent_and_named(sample: Sample, found: container.Artifact):
    assert all("unwanted" not in entry["name"] for entry in found.objects)
    assert sample.report.dropped == ("unwanted",)


def test_bytes_do_not_depend_on_shards_and_block_size(sample: Sample, tmp_path: Path):
    checkpoint, recipe = write_sample(tmp_path, shards=1)
    convert(checkpoint, tmp_path / "out.ninfer", recipe)
    assert sha256(tmp_path / "out.ninfer") == sha256(sample.artifact)


def test_bytes_do_not_depend_on_the_memory_budget(sample: Sample, tmp_path: Path):
    out = tmp_path / "budget.ninfer"
    convert(sample.checkpoint, out, sample.recipe, Settings(memory_budget=1 << 30))
    assert sha256(out) == sha256(sample.artifact)


def test_devices_may_be_named(sample: Sample, tmp_path: Path):
    out = tmp_path / "one.ninfer"
    report = convert(sample.checkpoint, out, sample.recipe, Settings(devices=jax.local_devices()[:1]))
    assert report.devices == 1
    assert sha256(out) == sha256(sample.artifact)
