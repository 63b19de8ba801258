"""Exporting an artifact as one safetensors file: quantized tensors dequantized to float32, direct words as they are.

The `safetensors` package writes whole tensors from memory, so the file, a length, a JSON header and the data, is
streamed here by row block. Resources are left out: the format holds tensors only. Specification: tensor-formats §3,
§5.
"""

import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ninfer_jax.container import Artifact, open_artifact
from ninfer_jax.convert.blocks import DEFAULT_BLOCK_BYTES
from ninfer_jax.convert.devices import DeviceMesh, Devices
from ninfer_jax.convert.outputs import check_output
from ninfer_jax.convert.programs import decode_program
from ninfer_jax.convert.progress import Progress, silent
from ninfer_jax.convert.settings import PathLike
from ninfer_jax.convert.stages import Pipeline
from ninfer_jax.convert.stored import StoredRows
from ninfer_jax.errors import ConversionError

_DIRECT_NAMES = {"BF16": "BF16", "FP32": "F32", "I32": "I32"}
_HEADER_ALIGNMENT = 8


@dataclass(frozen=True)
class Exported:
    """What was exported: tensors written, resources left out, bytes of the file."""

    tensors: int
    skipped_resources: tuple[str, ...]
    nbytes: int


def export_safetensors(
    path: PathLike,
    out: PathLike,
    *,
    overwrite: bool = False,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    devices: Devices | None = None,
    progress: Progress = silent,
) -> Exported:
    """Write `out[name] = dequantize(words(name))` for every tensor.

    Args:
        path: the artifact.
        out: the safetensors file; it appears complete or not at all.
        overwrite: replace an existing file.
        block_bytes: payload bytes decoded together.
        devices: devices to use; all local ones where None.
        progress: called after every block.

    Returns:
        What was written.

    Raises:
        ArtifactError: the file is not a valid artifact.
        ConversionError: the file exists or cannot be written.
    """
    target = Path(out)
    check_output(target, "destination", overwrite=overwrite, inputs=(Path(path),))
    # A name of its own: that of another run to the same destination, or of an unfinished conversion, is not taken.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    with open_artifact(Path(path)) as artifact:
        header = _header(artifact)
        try:
            output = open(temporary, "xb")  # noqa: SIM115 (a file that exists is another's and stays)
        except OSError as error:
            raise _not_written(target, error) from error
        try:
            with output as file:
                file.write(header)
                _write_tensors(artifact, file, DeviceMesh(devices), block_bytes, progress)
                file.flush()
                os.fsync(file.fileno())
                nbytes = file.tell()
            os.replace(temporary, target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise _not_written(target, error) from error
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return Exported(len(artifact.tensors), tuple(artifact.resources), nbytes)


def _not_written(target: Path, error: OSError) -> ConversionError:
    return ConversionError(f"{target.name} cannot be written: {error.strerror}")


def _header(artifact: Artifact) -> bytes:
    """Length and JSON header, padded with spaces as the format allows."""
    entries: dict[str, Any] = {}
    if artifact.identity.weights_id:
        metadata = {"model_id": artifact.identity.model_id, "weights_id": artifact.identity.weights_id}
        entries["__metadata__"] = metadata
    cursor = 0
    for stored in artifact.tensors.values():
        kind = _DIRECT_NAMES.get(stored.format, "F32")
        nbytes = prod(stored.shape) * (2 if kind == "BF16" else 4)
        entries[stored.name] = {
            "dtype": kind,
            "shape": list(stored.shape),
            "data_offsets": [cursor, cursor + nbytes],
        }
        cursor += nbytes
    if "__metadata__" in artifact.tensors:
        raise ConversionError("a tensor named '__metadata__' cannot be stored in a safetensors file")
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _write_tensors(artifact: Artifact, file: BinaryIO, mesh: DeviceMesh, block_bytes: int, progress: Progress) -> None:
    total = sum(stored.nbytes for stored in artifact.tensors.values())
    done = 0

    def write(item: tuple[StoredRows, int, int], values: np.ndarray) -> None:
        nonlocal done
        rows, start, stop = item
        file.write(np.ascontiguousarray(values).data)
        done += (stop - start) * rows.stored.nbytes // rows.rows
        progress(done, total, rows.stored.name)

    items = (
        (rows, start, stop)
        for rows in (StoredRows(artifact, stored, mesh, block_bytes) for stored in artifact.tensors.values())
        for start, stop in rows.ranges()
    )
    Pipeline(_read, _launch, _collect, write).run(items)


def _read(item: tuple[StoredRows, int, int]) -> Any:
    rows, start, stop = item
    return rows.padded(start, stop)


def _launch(item: tuple[StoredRows, int, int], planes: Any) -> Any:
    rows = item[0]
    return planes if rows.direct else decode_program(rows.mesh, rows.stored.format, rows.program_columns)(planes)


def _collect(item: tuple[StoredRows, int, int], decoded: Any) -> np.ndarray:
    rows, start, stop = item
    if rows.direct:
        return np.asarray(decoded)
    return rows.values(decoded, start, stop).astype("<f4", copy=False)
