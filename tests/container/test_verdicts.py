"""Every golden file image gets the verdict of the index; the choices it leaves open are pinned."""

import pytest

from ninfer_jax.container import open_artifact
from ninfer_jax.errors import ArtifactError
from tests.golden_cases import container_images, container_index

CHOICES = {
    "json_bom": "reject",  # plain UTF-8 only
    "json_escaped_lone_surrogate": "reject",  # no UTF-8 form, so it could not be written back
    "json_minus_zero": "accept",  # an integer token equal to 0
    "json_duplicate_member": "reject",
    "json_duplicate_root": "reject",
    "nvfp4_128x64": "accept",  # both revisions share the nine formats
    "fp8row_3x7": "accept",
}
# One broken rule of each family: the object and the rule that the message must name.
NAMED = {
    "bool_dim_equal_one": ["object 4 ('alpha/i32')", "dimension 1", "true"],
    "bytes_too_large": ["object 1 ('alpha/bf16')", "'bytes' is 31", "30 bytes"],
    "format_unknown_0": ["object 1 ('alpha/bf16')", "'FP16'", "Q4G64_F16S"],
    "json_bad_utf8": ["not UTF-8"],
    "json_bytes_u64max": ["18446744073709551615", "5136"],
    "json_deep_nesting": ["nests deeper"],
    "json_duplicate_member": ["repeats member 'kind'", "'alpha/res0'"],
    "json_huge_int": ["object 0 ('alpha/res0')", "'offset'", "5000 digits"],
    "json_nan_literal": ["NaN"],
    "layout_unknown_0": ["object 1", "'contiguous'", "contiguous-le-v1"],
    "magic_revision_3": ["revision 3", "revisions 1 and 2"],
    "mismatch_direct_row_split": ["object 1", "row-split-k128-v1", "BF16"],
    "name_duplicate_by_escape": ["object 4", "object 1 has the same name"],
    "nvfp4_bad_shape_0": ["object 0 ('x')", "N % 128"],
    "offset_misaligned": ["object 2 ('alpha/q')", "513", "alignment 256"],
    "offset_overlap": ["object 3 ('alpha/res1')", "775", "776"],
    "offset_plus_bytes_wraps": ["object 4", "beyond", "1040"],
    "resource_encoding_unknown": ["object 0", "'gzip'", "raw-bytes-v1"],
    "root_both_schemas": ["root", "'model_id'"],
    "shape_wraps_u64": ["object 1", "2**64"],
    "tensor_extra_member": ["object 1", "'strides'"],
    "tensor_missing_layout": ["object 1", "lacks layout"],
}


@pytest.fixture(scope="module")
def images():
    return container_images()


@pytest.mark.parametrize("case", container_index()["cases"], ids=lambda case: case["case"])
def test_verdict(case, images, tmp_path):
    path = tmp_path / "case.ninfer"
    path.write_bytes(images[case["case"]])
    verdict = case["verdict"]
    if verdict == "unspecified":
        verdict = CHOICES[case["case"].partition("_")[2]]
    if verdict == "accept":
        with open_artifact(path) as artifact:
            assert artifact.revision == case["version"]
            assert all(artifact.payload(item.name).nbytes == item.nbytes for item in artifact)
    else:
        with pytest.raises(ArtifactError) as error:
            open_artifact(path)
        assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize("name", NAMED)
def test_error_names_object_and_rule(name, images, tmp_path):
    path = tmp_path / "case.ninfer"
    path.write_bytes(images[f"v2_{name}"])
    with pytest.raises(ArtifactError) as error:
        open_artifact(path)
    assert [part for part in NAMED[name] if part not in str(error.value)] == []
