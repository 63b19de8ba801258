"""One record for every benchmark and one file for a run: what the front door writes, `compare` and `roofline` read.

A file is JSON: `environment` (commit, versions, device), `machine` (what the device itself did in the same run),
`records`, and what was left out (`missing_peers`, `refusals`) with reasons. Leaves out measuring.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import Timing

OURS = "ninfer-jax"


@dataclasses.dataclass(frozen=True)
class Record:
    """How one implementation did one case.

    Attributes:
        benchmark: name of the benchmark, as `python -m benchmarks --list` gives it.
        case: name of the case; equal for all implementations that did the same work.
        implementation: "ninfer-jax", or a peer.
        seconds: median of all rounds.
        best_seconds: shortest round.
        nbytes: bytes that any implementation with this storage must read and write once; 0 where that is no limit.
        flops: operations, two a multiply-add; 0 where that is no limit.
        rate: work over best_seconds, in `unit`.
        unit: what `rate` counts, such as "GB/s" or "tokens/s".
        figures: further numbers, by name.
    """

    benchmark: str
    case: str
    implementation: str
    seconds: float
    best_seconds: float
    nbytes: int
    flops: float
    rate: float
    unit: str
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies the record within a file."""
        return self.benchmark, self.case, self.implementation


@dataclasses.dataclass(frozen=True)
class Results:
    """One run.

    Attributes:
        environment: commit, versions and device.
        machine: `copy_bytes_per_second` (read plus written) and `matrix_flops`, measured in the same run.
        records: what was measured.
        missing_peers: peer -> why it did not take part.
        refusals: benchmark, case or peer -> why it was left out.
    """

    environment: Mapping[str, str | int]
    machine: Mapping[str, float]
    records: tuple[Record, ...]
    missing_peers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    refusals: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def floor_seconds(self, record: Record) -> float:
        """`max(nbytes / copy bandwidth, flops / matrix rate)`: no run of the case can be shorter; 0 where unknown."""
        memory = record.nbytes / self.machine["copy_bytes_per_second"]
        return max(memory, record.flops / self.machine["matrix_flops"])

    def share_of_floor(self, record: Record) -> float:
        """The floor over the shortest round: 1 is as fast as the machine can be; 0 where no floor is known."""
        return self.floor_seconds(record) / record.best_seconds


def timed_record(
    benchmark: str,
    case: str,
    implementation: str,
    timing: Timing,
    *,
    work: float,
    unit: str,
    nbytes: int = 0,
    flops: float = 0.0,
    figures: Mapping[str, float] | None = None,
) -> Record:
    """The record of a timing; `rate = work / timing.best`."""
    rate = work / timing.best
    return Record(
        benchmark, case, implementation, timing.median, timing.best, nbytes, flops, rate, unit, dict(figures or {})
    )


def merged(first: Results, second: Results) -> Results:
    """Two runs of one machine as one: what the second has anew counts, and the better figures of the machine."""
    records = {record.key: record for run in (first, second) for record in run.records}
    machine = {name: max(first.machine[name], value) for name, value in second.machine.items()}
    missing = {**first.missing_peers, **second.missing_peers}
    return Results(second.environment, machine, tuple(records.values()), missing, {**first.refusals, **second.refusals})


def write_results(path: Path, results: Results) -> None:
    """Write a run as JSON; a file that is there already is replaced whole, or not at all."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(dataclasses.asdict(results), indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def read_results(path: Path) -> Results:
    """Read a run.

    Raises:
        ValueError: the file is no results file; the message says what is wrong with it.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or not {"environment", "machine", "records"} <= document.keys():
        raise ValueError(
            f"{path} is no results file: it needs environment, machine and records;"
            " write one with python -m benchmarks --json FILE"
        )
    try:
        records = tuple(_record(fields) for fields in document.pop("records"))
        results = Results(records=records, **document)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{path} has a record or field of another shape: {error}") from error
    missing = {"copy_bytes_per_second", "matrix_flops"} - results.machine.keys()
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))} of the machine; measure it again")
    return results


def _record(fields: Any) -> Record:
    return Record(**fields)
