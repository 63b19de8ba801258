"""Planning: golden headers, offsets, and what cannot be planned."""

import hashlib

import pytest
from hypothesis import given, strategies as st

from ninfer_jax.container import Identity, ResourceEntry, TensorEntry, plan_artifact
from ninfer_jax.errors import ArtifactError
from ninfer_jax.formats import NVFP4
from tests.container.helpers import VALID_V2, plan_of, valid_path
from tests.oracle import container as oracle

FORMATS = ("BF16", "FP32", "I32", "Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S", "FP8_E4M3FN_ROW_BF16S")
ENTRIES = st.lists(
    st.tuples(st.sampled_from((*FORMATS, "NVFP4", "raw")), st.integers(1, 300), st.integers(1, 300)),
    min_size=1,
    max_size=6,
)
BAD = {
    "no objects": [[], "nonempty array"],
    "same name": [[ResourceEntry("a", 1), TensorEntry("a", (), "I32")], "same name"],
    "empty name": [[ResourceEntry("", 1)], "'name' is ''"],
    "lone surrogate": [[ResourceEntry("ab\udc80", 1)], "surrogate"],
    "empty resource": [[ResourceEntry("a", 0)], "'bytes' is 0"],
    "negative resource": [[ResourceEntry("a", -4)], "'bytes' is -4"],
    "boolean size": [[ResourceEntry("a", True)], "'bytes' is true"],
    "unknown format": [[TensorEntry("a", (1,), "q4")], "object 0 ('a')"],
    "rank": [[TensorEntry("a", (1, 2, 3), "W8G32_F16S")], "object 0 ('a')"],
    "tiles": [[TensorEntry("a", (64, 64), "NVFP4")], "N % 128"],
    "zero dimension": [[TensorEntry("a", (0, 2), "BF16")], "object 0 ('a')"],
    "boolean dimension": [[TensorEntry("a", (True, 2), "BF16")], "dimension 0 is True"],
    "tensor beyond 64 bits": [[TensorEntry("a", (2**62, 4), "FP32")], "2**64"],
    "file beyond 63 bits": [[TensorEntry("a", (2**61,), "FP32")], "a file holds at most"],
    "sum beyond 63 bits": [[ResourceEntry("a", 2**62), ResourceEntry("b", 2**62)], "a file holds at most"],
}


@pytest.mark.parametrize("file", VALID_V2)
def test_header_is_that_of_the_golden_file(file):
    plan, image = plan_of(file), valid_path(file).read_bytes()
    assert plan.header == image[: len(plan.header)]
    assert not any(image[len(plan.header) : plan.payload_offset])
    assert plan.file_size == len(image)
    assert plan.digest == hashlib.sha256(plan.header).hexdigest()


@given(parts=ENTRIES)
def test_any_plan_satisfies_the_oracle(parts):
    entries = [
        ResourceEntry(f"o{index}", n)
        if kind == "raw"
        else TensorEntry(f"o{index}", (128 * (n % 2 + 1), 64 * (k % 3 + 1)) if kind == "NVFP4" else (n, k), kind)
        for index, (kind, n, k) in enumerate(parts)
    ]
    plan = plan_artifact(Identity("m", "w"), entries)
    image = plan.header + bytes(plan.file_size - len(plan.header))
    held = oracle.read(image)
    assert held.payload_offset == plan.payload_offset
    assert held.objects == [stored.entry() for stored in plan.objects]
    ends = [stored.offset + stored.nbytes for stored in plan.objects]
    assert ends[-1] == plan.file_size - plan.payload_offset
    gaps = [stored.offset - end for stored, end in zip(plan.objects, [0, *ends], strict=False)]
    assert all(0 <= gap < 256 for gap in gaps)


def test_shapes_and_formats_are_normalized():
    plan = plan_artifact(("m", "w"), [TensorEntry("a", [128, 64], NVFP4)])
    assert plan["a"].entry()["shape"] == [128, 64]
    assert plan.by_name["a"] is plan["a"]
    with pytest.raises(ArtifactError, match="no object 'b'"):
        plan["b"]


@pytest.mark.parametrize("bad", BAD)
def test_what_cannot_be_planned(bad):
    entries, fragment = BAD[bad]
    with pytest.raises(ArtifactError) as error:
        plan_artifact(("m", "w"), entries)
    assert fragment in str(error.value)


@pytest.mark.parametrize("identity", [("", "w"), ("m", ""), Identity("m", None), ("m", "\ud800")])
def test_bad_identities(identity):
    with pytest.raises(ArtifactError):
        plan_artifact(identity, [ResourceEntry("a", 1)])


def test_directory_too_large(monkeypatch):
    monkeypatch.setattr("ninfer_jax.container.framing.MAX_JSON_NBYTES", 500)
    with pytest.raises(ArtifactError, match="store fewer objects"):
        plan_artifact(("m", "w"), [ResourceEntry("a" * 600, 1)])
