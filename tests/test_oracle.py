"""The oracle against the golden vectors; it is trusted elsewhere because it agrees with them here."""

import ast
import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import golden_cases
from tests.oracle import container, fp8_row, grouped, layouts, nvfp4, tensors
from tests.oracle.exact import BF16, E2M1, E4M3FN, F16, F32, round_word, split

FORMATS = golden_cases.GROUPED_FORMATS


def test_oracle_imports_only_standard_library_and_numpy():
    allowed = {*sys.stdlib_module_names, "numpy"}
    for path in (Path(__file__).parent / "oracle").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.split(".")[0] in allowed or name.startswith("tests.oracle"), (path.name, name)


@pytest.mark.parametrize("case", golden_cases.grouped_cases(), ids=lambda case: case.id)
def test_grouped_golden(case):
    codes, scales = grouped.encode(case.source_f32, case.format)
    np.testing.assert_array_equal(codes, case["codes"], strict=True)
    np.testing.assert_array_equal(scales, case["scales"], strict=True)
    np.testing.assert_array_equal(grouped.decode(codes, scales, case.format), case["decoded"], strict=True)
    payload = layouts.pack((codes, scales), case.format)
    assert payload == case["payload"].tobytes()
    for given, wanted in zip(layouts.unpack(payload, case.format, case.shape), (codes, scales), strict=True):
        np.testing.assert_array_equal(given, wanted)


@pytest.mark.parametrize("case", golden_cases.grouped_fail_cases(), ids=lambda case: case.id)
def test_grouped_refusals(case):
    with pytest.raises(ValueError, match="cannot be encoded"):
        grouped.encode(case.source_f32, case.format)


@pytest.mark.parametrize("name", FORMATS)
def test_grouped_scale_probe(name):
    probe = golden_cases.scale_probe(name)
    ok = probe["ok"].astype(bool)
    x = probe["amax"].view(np.float32)[:, None]
    np.testing.assert_array_equal(grouped.encodable(x, name)[:, 0], ok)
    scales = grouped.scale_words(probe["amax"][ok].astype(np.int64), name)
    np.testing.assert_array_equal(scales, probe["scale"][ok])
    positive = scales > 0
    np.testing.assert_array_equal(grouped.inverse_words(scales[positive]), probe["inv"][ok][positive])


def test_direct_golden():
    for case in golden_cases.direct_cases():
        payload = case["payload"].tobytes()
        assert layouts.pack((case["words"],), case.format) == payload
        (words,) = layouts.unpack(payload, case.format, case.shape)
        np.testing.assert_array_equal(words, case["words"])


def test_nvfp4_golden():
    for case in golden_cases.nvfp4_cases():
        words = (case["codes"], case["scales"], case["divisor"])
        np.testing.assert_array_equal(nvfp4.decode(*words), case["decoded"], strict=True)
        payload = layouts.pack(words, "NVFP4")
        assert payload == case["payload"].tobytes()
        for given, wanted in zip(layouts.unpack(payload, "NVFP4", case.shape), words, strict=True):
            np.testing.assert_array_equal(given, wanted)


def test_fp8_golden():
    for case in golden_cases.fp8_cases():
        words = (case["codes"], case["scales"])
        np.testing.assert_array_equal(fp8_row.decode(*words), case["decoded"], strict=True)
        payload = layouts.pack(words, case.format)
        assert payload == case["payload"].tobytes()
        for given, wanted in zip(layouts.unpack(payload, case.format, case.shape), words, strict=True):
            np.testing.assert_array_equal(given, wanted)


def test_tables():
    finite = np.delete(np.arange(256), [0x7F, 0xFF])
    for binary, words, table in (
        (E2M1, np.arange(16), golden_cases.table("e2m1_f32")),
        (E4M3FN, finite, golden_cases.table("e4m3fn_f32")[finite]),
        (F16, np.arange(0x7C00), golden_cases.table("f16_scale_f32")),
    ):
        negative, sig, exp = split(words, binary)
        np.testing.assert_array_equal(round_word(sig, exp, F32) | negative * np.int64(F32.sign), table)


def test_rounding_agrees_with_numpy_conversions():
    """An independent check of `round_word`: NumPy's own float64 to float16 and float32 conversions."""
    rng = np.random.default_rng(7)
    sig = rng.integers(0, 2**53, 20000) >> rng.integers(0, 53, 20000)
    exp = rng.integers(-210, 80, 20000)
    value = np.ldexp(sig.astype(np.float64), exp.astype(np.int32))
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_array_equal(round_word(sig, exp, F32), value.astype(np.float32).view(np.uint32))
        np.testing.assert_array_equal(round_word(sig, exp, F16), value.astype(np.float16).view(np.uint16))


def test_bf16_words_split_and_round_back():
    words = np.arange(0x7F80)
    _, sig, exp = split(words, BF16)
    np.testing.assert_array_equal(round_word(sig, exp, BF16), words)
    np.testing.assert_array_equal(round_word(sig, exp, F32), words << 16)


@pytest.mark.parametrize("entry", golden_cases.container_index()["valid"], ids=lambda entry: Path(entry["file"]).stem)
def test_valid_containers(entry):
    image = (golden_cases.GOLDEN / "containers" / entry["file"]).read_bytes()
    assert hashlib.sha256(image).hexdigest() == entry["file_sha256"]
    artifact = container.read(image)
    assert artifact.revision == entry["version"]
    assert (artifact.model_id, artifact.weights_id) == (entry["model_id"], entry["weights_id"])
    assert artifact.payload_offset == entry["payload_offset"]
    assert [item["name"] for item in artifact.objects] == [item["name"] for item in entry["objects"]]
    for item in entry["objects"]:
        payload = artifact.payload(item["name"])
        assert hashlib.sha256(payload).hexdigest() == item["payload_sha256"]
        if item["kind"] == "tensor":
            decoded = tensors.decode_payload(payload, item["format"], tuple(item["shape"]))
            little = decoded.astype(decoded.dtype.newbyteorder("<"))
            assert hashlib.sha256(little.tobytes()).hexdigest() == item["decoded_sha256"]


def test_container_verdicts():
    images = golden_cases.container_images()
    for case in golden_cases.container_index()["cases"]:
        try:
            container.read(images[case["case"]])
            verdict = "accept"
        except container.Reject:
            verdict = "reject"
        assert case["verdict"] in (verdict, "unspecified"), (case["case"], verdict, case["note"])
