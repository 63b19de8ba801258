"""Measured launch configurations: a table a device kind, strictly read, consulted before a kernel's heuristic.

A table is JSON under pallas_kernels/configs, written by `python -m benchmarks.tune` on the device it is named after:

    {"schema": 1, "device_kind": "NVIDIA H200", "jax": "0.12.0.1", "entries": [
      {"kernel": "prefill_sm90", "kind": "q4", "m": 1024, "n": 7168, "k": 5120, "gated": false, "out_bytes": 2,
       "config": {"block_m": 128, ...}, "microseconds": 92.4}]}

Unknown or missing keys, wrong types, duplicates and configurations the kernels refuse are errors that name the file and
the entry. Leaves out measuring (benchmarks.tune) and the heuristics (each kernel's `heuristic_config`).
"""

import dataclasses
import functools
import json
import math
import pathlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pallas_kernels.errors import KernelConfigError
from pallas_kernels.tiling import WEIGHT_KINDS, DecodeConfig, PortableConfig, PrefillConfig, StreamConfig

SCHEMA = 1
CONFIGS = pathlib.Path(__file__).parent / "configs"
#: The configuration each tuned kernel takes.
CONFIG_TYPES: Mapping[str, type] = MappingProxyType(
    {
        "decode_sm90": StreamConfig,
        "prefill_sm90": PrefillConfig,
        "decode_sm100": DecodeConfig,
        "prefill_sm100": PrefillConfig,
        "portable_mma": PortableConfig,
    }
)


class TuningTableError(ValueError):
    """A table of measured configurations that is not what `autotune` describes."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a configuration was measured for.

    Attributes:
      kernel: a name of `CONFIG_TYPES`.
      kind: a name of `WEIGHT_KINDS`.
      m: tokens.
      n: rows of the weight.
      k: columns of the weight.
      gated: whether the product is a gated one.
      out_bytes: bytes of an element of the result, 2 or 4.
    """

    kernel: str
    kind: str
    m: int
    n: int
    k: int
    gated: bool = False
    out_bytes: int = 2


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The fastest configuration of a problem and its time.

    Attributes:
      problem: what was computed.
      config: a `StreamConfig`, `PrefillConfig` or `PortableConfig`.
      microseconds: median time of a call.
    """

    problem: Problem
    config: Any
    microseconds: float


@dataclasses.dataclass(frozen=True)
class TuningTable:
    """Measurements on one kind of device.

    Attributes:
      device_kind: the device as jax spells it.
      jax: version the kernels were compiled with.
      measurements: problem -> measurement.
    """

    device_kind: str
    jax: str
    measurements: Mapping[Problem, Measurement]

    def lookup(self, problem: Problem) -> Measurement | None:
        """The measurement of the problem, or of the same one with the next more tokens, up to twice as many.

        A configuration that suits more tokens is also right for fewer, whose last tile is not full.
        """
        alike = [
            measured
            for key, measured in self.measurements.items()
            if dataclasses.replace(key, m=problem.m) == problem and problem.m <= key.m < 2 * problem.m
        ]
        return min(alike, key=lambda measured: measured.problem.m, default=None)


def table_path(device_kind: str, directory: pathlib.Path = CONFIGS) -> pathlib.Path:
    """Where the table of a device kind is."""
    return directory / f"{re.sub('[^a-z0-9]+', '-', device_kind.lower()).strip('-')}.json"


def measured_config(problem: Problem, device_kind: str) -> Any | None:
    """The configuration the packaged table has for a problem on a device, or None.

    Raises:
      TuningTableError: the table is malformed.
    """
    table = _packaged(device_kind)
    found = table.lookup(problem) if table is not None else None
    return None if found is None else found.config


@functools.cache
def _packaged(device_kind: str) -> TuningTable | None:
    path = table_path(device_kind)
    return load_table(path) if path.exists() else None


def load_table(path: pathlib.Path) -> TuningTable:
    """Read and check a table.

    Args:
      path: a JSON file.

    Returns:
      The table.

    Raises:
      TuningTableError: the file is not JSON, or anything in it is not what it must be.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_no_duplicates)
    except ValueError as error:
        raise TuningTableError(f"{path}: not a table of measured configurations: {error}") from None
    head = _fields(document, {"schema": int, "device_kind": str, "jax": str, "entries": list}, f"{path}")
    if head["schema"] != SCHEMA:
        raise TuningTableError(f"{path}: schema {head['schema']} is not {SCHEMA}: write it again with benchmarks.tune")
    if table_path(head["device_kind"]).name != path.name:
        raise TuningTableError(
            f"{path}: the table of {head['device_kind']!r} must be called {table_path(head['device_kind']).name}"
        )
    measurements: dict[Problem, Measurement] = {}
    for index, entry in enumerate(head["entries"]):
        measured = _measurement(entry, f"{path}: entry {index}")
        if measured.problem in measurements:
            raise TuningTableError(f"{path}: entry {index}: {measured.problem} is there twice: keep one")
        measurements[measured.problem] = measured
    return TuningTable(head["device_kind"], head["jax"], MappingProxyType(measurements))


def save_table(table: TuningTable, path: pathlib.Path) -> None:
    """Write a table so that `load_table` gives it back, entries in a fixed order."""
    order = lambda measured: tuple(str(v).zfill(9) for v in dataclasses.astuple(measured.problem))
    entries = [
        dataclasses.asdict(measured.problem)
        | {"config": dataclasses.asdict(measured.config), "microseconds": measured.microseconds}
        for measured in sorted(table.measurements.values(), key=order)
    ]
    document = {"schema": SCHEMA, "device_kind": table.device_kind, "jax": table.jax, "entries": entries}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _measurement(entry: Any, where: str) -> Measurement:
    types = {field.name: field.type for field in dataclasses.fields(Problem)}
    fields = _fields(entry, types | {"config": dict, "microseconds": float}, where)
    _require(fields["kernel"] in CONFIG_TYPES, where, "kernel", fields["kernel"], f"one of {', '.join(CONFIG_TYPES)}")
    _require(fields["kind"] in WEIGHT_KINDS, where, "kind", fields["kind"], f"one of {', '.join(WEIGHT_KINDS)}")
    _require(fields["out_bytes"] in (2, 4), where, "out_bytes", fields["out_bytes"], "2 or 4")
    for name in ("m", "n", "k", "microseconds"):
        _require(0 < fields[name] < math.inf, where, name, fields[name], "positive and finite")
    config_type = CONFIG_TYPES[fields["kernel"]]
    sizes = _fields(fields.pop("config"), dict.fromkeys(_names(config_type), int), f"{where}: config")
    microseconds = fields.pop("microseconds")
    try:
        config = config_type(**sizes)
    except KernelConfigError as error:
        raise TuningTableError(f"{where}: config: {error}") from None
    return Measurement(Problem(**fields), config, microseconds)


def _names(config_type: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(config_type))


def _require(holds: bool, where: str, name: str, value: Any, allowed: str) -> None:
    if not holds:
        raise TuningTableError(f"{where}: {name} is {value!r}, it must be {allowed}")


def _fields(document: Any, types: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of an object that has exactly these, each of exactly its type."""
    if not isinstance(document, dict):
        raise TuningTableError(f"{where}: must be an object, it is {type(document).__name__}")
    missing, unknown = sorted(set(types) - set(document)), sorted(set(document) - set(types))
    if missing or unknown:
        raise TuningTableError(f"{where}: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}")
    for name, kind in types.items():
        # type() and not isinstance(): True is an int to Python, and no size.
        _require(type(document[name]) is kind, where, name, document[name], f"of type {kind.__name__}")
    return dict(document)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError(f"a key is there twice among {names}")
    return dict(pairs)
