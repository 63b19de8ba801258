"""The golden vectors of tests/golden as plain objects (tests/golden/README.md describes every field).

Words stay integers; nothing here decodes or checks them. NumPy and the standard library only, so that the oracle's own
tests may use it. Arrays are read-only, because every suite shares them.
"""

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden"
GROUPED_FORMATS = ("Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S")
_FLOAT_WORDS = {"bf16": np.uint16, "f16": np.uint16, "f32": np.uint32}


@dataclass(frozen=True)
class Case:
    """One golden case: its name, format, logical shape and note, and its arrays by field name.

    Attributes:
        source_dtype: `bf16`, `f16` or `f32` where the case has a `source`, else None.
        arrays: fields of the case; `case["codes"]` reads one.
        rows: for row views, the rows of the parent that make up the selection.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    note: str = ""
    source_dtype: str | None = None
    rows: tuple[int, ...] = ()
    arrays: dict[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    @property
    def source_f32(self) -> np.ndarray:
        """The source widened exactly to binary32 values."""
        return widen(self["source"], str(self.source_dtype))

    @property
    def id(self) -> str:
        """A test id, unique over all formats."""
        return self.name if self.name.startswith(self.format) else f"{self.format}-{self.name}"


def widen(words: np.ndarray, dtype: str) -> np.ndarray:
    """Exact binary32 values of `bf16`, `f16` or `f32` words."""
    words = np.ascontiguousarray(words, _FLOAT_WORDS[dtype])
    if dtype == "bf16":
        return (words.astype(np.uint32) << 16).view(np.float32)
    return words.view(np.float16).astype(np.float32) if dtype == "f16" else words.view(np.float32)


@cache
def index() -> dict:
    """The parsed golden index."""
    return json.loads((GOLDEN / "index.json").read_text(encoding="utf-8"))


@cache
def _arrays(file: str) -> dict[str, dict[str, np.ndarray]]:
    cases: dict[str, dict[str, np.ndarray]] = {}
    with np.load(GOLDEN / file) as archive:
        for key in archive.files:
            case, _, name = key.rpartition("/")
            array = archive[key]
            array.flags.writeable = False
            cases.setdefault(case, {})[name] = array
    return cases


def _cases(section: str, format: str | None = None) -> tuple[Case, ...]:
    return tuple(
        Case(
            name=entry["case"],
            format=entry.get("format", format),
            shape=tuple(entry["shape"]),
            note=entry.get("note", ""),
            source_dtype=entry.get("source_dtype"),
            rows=tuple(entry.get("rows", ())),
            arrays=_arrays(entry["file"])[entry["case"]],
        )
        for entry in index()[section]
        if format in (None, entry.get("format", format))
    )


@cache
def grouped_cases(format: str | None = None) -> tuple[Case, ...]:
    """Cases with `source codes scales payload decoded`, of one grouped format or of all four."""
    return _cases("grouped", format)


def grouped_fail_cases(format: str | None = None) -> tuple[Case, ...]:
    """Cases whose `source` every encoder must refuse."""
    return _cases("grouped_fail", format)


def row_view_cases(format: str | None = None) -> tuple[Case, ...]:
    """Cases whose `payload` is the selection `rows` of the case `rows_parent` of the same format."""
    return _cases("row_views", format)


def grouped_case(format: str, name: str) -> Case:
    """The one grouped case with this name."""
    (case,) = (case for case in grouped_cases(format) if case.name == name)
    return case


def scale_probe(format: str) -> dict[str, np.ndarray]:
    """Arrays `amax scale inv ok`: one entry per group maximum."""
    return _arrays(f"grouped_{format}.npz")["scale_probe"]


@cache
def direct_cases(format: str | None = None) -> tuple[Case, ...]:
    """Cases with `words payload`; I32 words are int32, and `BF16_all` (not stored in the file) is completed here."""
    cases = []
    for entry in index()["direct"]:
        if format in (None, entry["format"]):
            arrays = dict(_arrays(entry["file"]).get(entry["case"], {}))
            if entry["case"] == "BF16_all":
                arrays["words"] = np.arange(65536, dtype=np.uint16)
                arrays["payload"] = np.arange(65536, dtype="<u2").view(np.uint8)
            if entry["format"] == "I32":
                arrays["words"] = arrays["words"].view(np.int32)
            cases.append(Case(entry["case"], entry["format"], tuple(entry["shape"]), arrays=arrays))
    return tuple(cases)


@cache
def nvfp4_cases() -> tuple[Case, ...]:
    """Cases with `codes scales divisor payload decoded`."""
    return _cases("nvfp4", "NVFP4")


def nvfp4_fail_cases() -> tuple[Case, ...]:
    """Cases with `codes scales divisor`, one of them illegal."""
    return _cases("nvfp4_fail", "NVFP4")


@cache
def fp8_cases() -> tuple[Case, ...]:
    """Cases with `codes scales payload decoded`."""
    return _cases("fp8_row", "FP8_E4M3FN_ROW_BF16S")


def fp8_fail_cases() -> tuple[Case, ...]:
    """Cases with `codes scales`, one of them illegal."""
    return _cases("fp8_row_fail", "FP8_E4M3FN_ROW_BF16S")


def table(name: str) -> np.ndarray:
    """`e2m1_f32`, `e4m3fn_f32` or `f16_scale_f32`: binary32 words indexed by code word."""
    with np.load(GOLDEN / "tables.npz") as archive:
        return archive[name]


@cache
def container_index() -> dict:
    """The parsed index of the containers: `valid` files and `cases` with verdicts."""
    return json.loads((GOLDEN / "containers" / "index.json").read_text(encoding="utf-8"))


def container_images() -> dict[str, bytes]:
    """Complete file images by case name, for the `cases` of `container_index`."""
    with np.load(GOLDEN / "containers" / "cases.npz") as archive:
        return {name: archive[name].tobytes() for name in archive.files}
