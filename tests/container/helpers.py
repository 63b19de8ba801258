"""File images and golden contents for the container tests."""

import json
from pathlib import Path
from typing import Any

from ninfer_jax.container import ArtifactPlan, ResourceEntry, TensorEntry, plan_artifact
from tests.golden_cases import GOLDEN, container_index
from tests.oracle import container as oracle

VALID = tuple(entry["file"] for entry in container_index()["valid"])
VALID_V2 = tuple(entry["file"] for entry in container_index()["valid"] if entry["version"] == 2)


def valid_entry(file: str) -> dict[str, Any]:
    """What the golden index says of one valid file."""
    (entry,) = (entry for entry in container_index()["valid"] if entry["file"] == file)
    return entry


def valid_path(file: str) -> Path:
    """Where one valid file is."""
    return GOLDEN / "containers" / file


def valid_oracle(file: str) -> oracle.Artifact:
    """One valid file as the oracle reads it."""
    return oracle.read(valid_path(file).read_bytes())


def plan_of(file: str) -> ArtifactPlan:
    """A plan of the same objects as one valid file of revision 2, from names, shapes, formats and sizes alone."""
    entry = valid_entry(file)
    entries = [
        TensorEntry(item["name"], tuple(item["shape"]), item["format"])
        if item["kind"] == "tensor"
        else ResourceEntry(item["name"], item["bytes"])
        for item in entry["objects"]
    ]
    return plan_artifact((entry["model_id"], entry["weights_id"]), entries)


def frame(raw: bytes, payload: bytes = b"", revision: int = 2) -> bytes:
    """A file image around a directory text."""
    head = b"NINFER\0" + bytes([revision]) + len(raw).to_bytes(8, "little") + raw
    return head + bytes(-len(head) % 4096) + payload


def directory(objects: Any, **root: Any) -> bytes:
    """The directory text of revision 2 with these objects."""
    return json.dumps({"identity": {"model_id": "m", "weights_id": "w"}, "objects": objects, **root}).encode()


def resource(name: str, offset: int, nbytes: int) -> dict[str, Any]:
    """A resource entry."""
    return {"name": name, "kind": "resource", "encoding": "raw-bytes-v1", "offset": offset, "bytes": nbytes}
