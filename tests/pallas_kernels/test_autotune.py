"""Tables of measured configurations: what goes in comes back, and nothing malformed gets in."""

import copy
import json
import pathlib
from types import MappingProxyType

import pytest

from pallas_kernels import autotune
from pallas_kernels.autotune import Measurement, Problem, TuningTable, TuningTableError
from pallas_kernels.tiling import PrefillConfig, StreamConfig

DEVICE = "NVIDIA H200"
PREFILL = Problem("prefill_sm90", "q4", 1024, 7168, 5120)
DECODE = Problem("decode_sm90", "w8", 1, 5120, 10240, out_bytes=4)


def table(*problems):
    config = {"prefill_sm90": PrefillConfig(), "decode_sm90": StreamConfig()}
    measured = {p: Measurement(p, config[p.kernel], 12.5) for p in problems}
    return TuningTable(DEVICE, "0.12.0.1", MappingProxyType(measured))


@pytest.fixture
def path(tmp_path) -> pathlib.Path:
    """A valid table."""
    where = autotune.table_path(DEVICE, tmp_path)
    autotune.save_table(table(PREFILL, DECODE), where)
    return where


def test_a_table_comes_back(path):
    assert path.name == "nvidia-h200.json"
    assert autotune.load_table(path) == table(PREFILL, DECODE)


def test_saving_is_reproducible(path, tmp_path):
    again = tmp_path / "again.json"
    autotune.save_table(table(DECODE, PREFILL), again)
    assert again.read_text() == path.read_text()


@pytest.mark.parametrize(("m", "found"), [(1024, 1024), (513, 1024), (512, None), (1025, None), (300, 512)])
def test_lookup_takes_the_next_more_tokens_up_to_twice_as_many(m, found):
    measured = Problem("prefill_sm90", "q4", 512, 64, 64), Problem("prefill_sm90", "q4", 1024, 7168, 5120)
    n, k = (64, 64) if found == 512 else (7168, 5120)
    result = table(*measured).lookup(Problem("prefill_sm90", "q4", m, n, k))
    assert (result.problem.m if result else None) == found


@pytest.mark.parametrize("change", [{"kind": "q5"}, {"n": 7169}, {"gated": True}, {"out_bytes": 4}, {"k": 64}])
def test_lookup_needs_everything_else_the_same(change):
    fields = {"kernel": "prefill_sm90", "kind": "q4", "m": 1024, "n": 7168, "k": 5120} | change
    assert table(PREFILL).lookup(Problem(**fields)) is None


def test_a_device_without_a_table_has_no_measurements():
    assert autotune.measured_config(PREFILL, "no such device") is None


def set_entry(name, value):
    def change(document):
        document["entries"][0][name] = value

    return change


def set_config(name, value):
    def change(document):
        document["entries"][0]["config"][name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema=2), "schema 2 is not 1"),
        (lambda d: d.update(device_kind="NVIDIA H100"), "must be called nvidia-h100.json"),
        (lambda d: d.update(comment="x"), r"unknown \['comment'\]"),
        (lambda d: d.pop("jax"), r"missing \['jax'\]"),
        (lambda d: d.update(entries={}), "entries is {}, it must be of type list"),
        (lambda d: d["entries"].append(copy.deepcopy(d["entries"][0])), "is there twice"),
        (lambda d: d["entries"].append(7), "entry 2: must be an object, it is int"),
        (set_entry("kernel", "prefill_sm80"), "kernel is 'prefill_sm80', it must be one of decode_sm90"),
        (set_entry("kind", "q3"), "kind is 'q3', it must be one of q4"),
        (set_entry("m", 0), "m is 0, it must be positive and finite"),
        (set_entry("m", True), "m is True, it must be of type int"),
        (set_entry("m", 1.0), "m is 1.0, it must be of type int"),
        (set_entry("gated", 1), "gated is 1, it must be of type bool"),
        (set_entry("out_bytes", 3), "out_bytes is 3, it must be 2 or 4"),
        (set_entry("microseconds", "fast"), "microseconds is 'fast', it must be of type float"),
        (set_entry("microseconds", float("nan")), "microseconds is nan, it must be positive and finite"),
        (set_entry("microseconds", float("inf")), "microseconds is inf, it must be positive and finite"),
        (set_config("stages", 99), "entry 0: config: stages=99 is not allowed"),
        (set_config("threads", 2), r"entry 0: config: missing nothing, unknown \['threads'\]"),
    ],
)
def test_a_malformed_table_is_refused(path, change, message):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(TuningTableError, match=message) as caught:
        autotune.load_table(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 1, "schema": 1}'])
def test_what_is_no_table_is_refused(path, text):
    path.write_text(text)
    with pytest.raises(TuningTableError, match=path.name):
        autotune.load_table(path)


def test_the_package_holds_only_well_formed_tables():
    files = sorted(autotune.CONFIGS.iterdir())
    assert "README.md" in [file.name for file in files]
    for file in files:
        assert file.name == "README.md" or autotune.load_table(file).measurements
