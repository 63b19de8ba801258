"""The conversion report: what was stored, how well, from what and how fast; no local path ever enters it.

Written next to an artifact it never takes part in loading. Specification: container (conversion report).
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from ninfer_jax.container import TensorObject
from ninfer_jax.convert.outputs import write_text
from ninfer_jax.convert.plan import ConversionPlan
from ninfer_jax.convert.totals import ErrorTotals
from ninfer_jax.recipes import TensorSpec

REPORT_VERSION = 1


@dataclass(frozen=True)
class TensorReport:
    """One stored tensor.

    Attributes:
        name: stored name.
        shape: logical shape.
        format: canonical format name.
        nbytes: payload bytes.
        bits_per_weight: payload bits over logical elements, padding and scales included.
        encoder: encoder profile, None where words are copied or cast.
        cast: cast of a direct tensor, if any.
        lossy: True where quantized words were decoded and encoded again.
        max_error: largest absolute error; 0 where words are copied, None for a cast or where it is not finite.
        sqnr_db: `10 log10(signal / noise)`; None where there is no error or no signal.
        sources: checkpoint tensors it was made of.
        notes: facts from the recipe.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    nbytes: int
    bits_per_weight: float
    encoder: str | None
    cast: str | None
    lossy: bool
    max_error: float | None
    sqnr_db: float | None
    sources: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class FormatTotals:
    """Sums over the tensors of one format: count, logical elements, payload bytes, bits per weight."""

    tensors: int
    elements: int
    nbytes: int
    bits_per_weight: float


@dataclass
class ConversionReport:
    """What a conversion did.

    Attributes:
        artifact: file name of the artifact.
        identity: model_id and weights_id.
        artifact_bytes: size of the artifact.
        header_sha256: digest of its header: names, shapes, formats, offsets.
        sources: name, size and SHA-256 (None where not computed) of every file read: weights, then resources.
        source_bytes: source bytes read for the stored objects.
        tensors: stored tensors in order.
        resources: stored name and size of every resource.
        recipe: name of the recipe.
        recipe_sha256: digest of its text and options.
        dropped: source tensors left out on purpose.
        notes: facts from the recipe.
        elapsed_seconds: wall time of the last run.
        stage_seconds: busy seconds by stage, summed over processes.
        processes: processes that took part.
        devices: local devices of this process.
        resumed: whether an interrupted run was continued.
        versions: versions of ninfer-jax and jax.
    """

    artifact: str
    identity: tuple[str, str]
    artifact_bytes: int
    header_sha256: str
    sources: tuple[dict[str, Any], ...]
    source_bytes: int
    tensors: tuple[TensorReport, ...]
    resources: tuple[dict[str, Any], ...]
    recipe: str = ""
    recipe_sha256: str = ""
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    elapsed_seconds: float = 0.0
    stage_seconds: dict[str, float] = field(default_factory=dict)
    processes: int = 1
    devices: int = 1
    resumed: bool = False
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def source_rate(self) -> float:
        """Source bytes per second of the last run."""
        return self.source_bytes / max(self.elapsed_seconds, 1e-9)

    def by_format(self) -> dict[str, FormatTotals]:
        """Totals by format, in order of first appearance."""
        return totals_by_format((tensor.format, tensor.shape, tensor.nbytes) for tensor in self.tensors)

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        body = {"report": REPORT_VERSION, **asdict(self)}
        body["source_bytes_per_second"] = self.source_rate
        body["totals"] = {name: asdict(totals) for name, totals in self.by_format().items()}
        return body

    def write(self, path: Path) -> None:
        """Write the report as JSON.

        Raises:
            ConversionError: the file cannot be written.
        """
        write_text(path, json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", "report")


def totals_by_format(tensors: Iterable[tuple[str, tuple[int, ...], int]]) -> dict[str, FormatTotals]:
    """Totals of (format, shape, payload bytes) triples, by format in order of first appearance."""
    sums: dict[str, list[int]] = {}
    for name, shape, nbytes in tensors:
        entry = sums.setdefault(name, [0, 0, 0])
        for index, value in enumerate((1, prod(shape), nbytes)):
            entry[index] += value
    return {
        name: FormatTotals(count, elements, nbytes, 8 * nbytes / elements)
        for name, (count, elements, nbytes) in sums.items()
    }


def tensor_reports(plan: ConversionPlan, errors: Mapping[int, ErrorTotals]) -> tuple[TensorReport, ...]:
    """Reports of all tensors of a plan.

    Args:
        plan: the executed plan.
        errors: error sums by object position.
    """
    reports = []
    for position, (spec, stored) in enumerate(zip(plan.specs, plan.artifact.objects, strict=True)):
        if not isinstance(spec, TensorSpec) or not isinstance(stored, TensorObject):
            continue
        totals = errors.get(position, ErrorTotals())
        measured = spec.cast is None
        reports.append(
            TensorReport(
                name=spec.name,
                shape=tuple(spec.shape),
                format=spec.format,
                nbytes=stored.nbytes,
                bits_per_weight=8 * stored.nbytes / prod(spec.shape),
                encoder=spec.encoder,
                cast=spec.cast,
                lossy=spec.lossy,
                max_error=totals.worst if measured and math.isfinite(totals.worst) else None,
                sqnr_db=totals.sqnr_db,
                sources=tuple(dict.fromkeys(source.tensor for source in spec.rows.sources)),
                notes=tuple(spec.notes),
            )
        )
    return tuple(reports)
