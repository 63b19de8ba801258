"""Which weight files make up a checkpoint: one safetensors file, or the shards of `model.safetensors.index.json`.

Every inconsistency between the index and its shards is an error here, before any weight is read. Leaves out file
headers (`safetensors_file`) and dialects. Specification: checkpoint-sources.
"""

import re
from pathlib import Path

from ninfer_jax.errors import SourceError
from ninfer_jax.sources.json_file import read_json_object
from ninfer_jax.sources.safetensors_file import read_tensors
from ninfer_jax.sources.tensor import PositionedFile, StoredTensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_NUMBERED = re.compile(r"(.*)-\d+-of-(\d+)\.safetensors")


def is_plain_filename(name: str) -> bool:
    """True for a file name without a folder, which cannot lead out of its checkpoint."""
    return bool(name) and name not in (".", "..") and not set(name) & {"/", "\\", "\0"}


def checkpoint_name(folder: Path) -> str:
    """The model's name by its folder; in a Hugging Face cache, that is not the folder of the revision."""
    folder = folder.resolve()
    cache = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cache.startswith("models--"):
        return cache.rpartition("--")[2]
    return folder.name or "model"


def weight_map(folder: Path) -> dict[str, str] | None:
    """Tensor name to shard name, in index order; None where the folder has one weight file only.

    Raises:
        SourceError: the index is malformed, names a file outside the folder, or leaves out one that belongs to it.
    """
    index, single = folder / INDEX_FILE, (folder / SINGLE_FILE).is_file()
    if not index.is_file():
        return None
    mapping = read_json_object(index).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise SourceError(f"{INDEX_FILE} needs a nonempty object weight_map")
    for tensor, file in mapping.items():
        if not isinstance(file, str) or not is_plain_filename(file):
            raise SourceError(f"{INDEX_FILE} puts tensor {tensor!r} into {file!r}; a plain file name is needed")
    files = set(mapping.values())
    if single and SINGLE_FILE not in files:
        raise SourceError(
            f"{folder.name} holds both {SINGLE_FILE} and the {len(files)} shards of {INDEX_FILE}; move one away, or "
            f"name {SINGLE_FILE} itself"
        )
    _check_siblings(folder, files)
    return mapping


def _check_siblings(folder: Path, files: set[str]) -> None:
    """Refuse an index that leaves out a shard of the series whose others it names: half a model would be missing."""
    series = {match.groups() for file in files if (match := _NUMBERED.fullmatch(file))}
    for path in sorted(folder.iterdir()):
        match = _NUMBERED.fullmatch(path.name)
        if match and match.groups() in series and path.name not in files:
            raise SourceError(
                f"{INDEX_FILE} names no tensor of {path.name}, but other shards of its series; complete the index, or "
                "move that file away"
            )


def single_weight_file(folder: Path) -> Path:
    """The one weight file of a folder without an index.

    Raises:
        SourceError: there is none, or there are several and nothing says which belong together.
    """
    if (folder / SINGLE_FILE).is_file():
        return folder / SINGLE_FILE
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if len(found) == 1:
        return found[0]
    if found:
        raise SourceError(f"{folder.name} holds {len(found)} safetensors files but no {INDEX_FILE}; name one file")
    raise SourceError(f"{folder.name} holds neither {SINGLE_FILE} nor {INDEX_FILE} nor another .safetensors file")


def read_shards(shards: dict[str, PositionedFile], mapping: dict[str, str]) -> dict[str, StoredTensor]:
    """Return all tensors in index order, after checking that index and shards agree.

    Raises:
        SourceError: a tensor is missing from its shard, or a shard holds a tensor that the index puts elsewhere.
    """
    found = {file: read_tensors(handle) for file, handle in shards.items()}
    for tensor, file in mapping.items():
        if tensor not in found[file]:
            raise SourceError(f"{INDEX_FILE} puts tensor {tensor!r} into {file}, which does not hold it")
    for file, tensors in found.items():
        for tensor in tensors:
            if mapping.get(tensor) != file:
                where = f"puts it into {mapping[tensor]}" if tensor in mapping else "does not name it"
                raise SourceError(f"{file} holds tensor {tensor!r}, but {INDEX_FILE} {where}")
    return {tensor: found[file][tensor] for tensor, file in mapping.items()}
