"""Write safetensors files, shards and folders from arrays or from seeded random tensors.

Standard library, numpy and ml_dtypes only; nothing here imports the package under test. Weights are made block by block
from a seed, so that a checkpoint of any size can be written without holding a tensor.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
BLOCK = 1 << 22
"""Elements made at a time."""


@dataclass(frozen=True)
class Random:
    """A float tensor of normal values times `scale`, made from a seed in blocks that do not depend on who reads."""

    shape: tuple[int, ...]
    dtype: str = "BF16"
    seed: int = 0
    scale: float = 0.02

    def blocks(self) -> Iterator[np.ndarray]:
        """Flat blocks of the elements, in order."""
        size = math.prod(self.shape)
        for index, start in enumerate(range(0, size, BLOCK)):
            rng = np.random.default_rng((self.seed, index))
            values = rng.standard_normal(min(BLOCK, size - start), np.float32) * np.float32(self.scale)
            yield values.astype(DTYPES[self.dtype])

    def array(self) -> np.ndarray:
        """The whole tensor."""
        return np.concatenate([*self.blocks(), np.empty(0, DTYPES[self.dtype])]).reshape(self.shape)


Tensor = np.ndarray | Random
Tensors = Mapping[str, Tensor]


def array_of(tensor: Tensor) -> np.ndarray:
    """The values of a tensor, made if need be."""
    return tensor.array() if isinstance(tensor, Random) else tensor


def _entry(tensor: Tensor) -> tuple[str, tuple[int, ...], int]:
    dtype = tensor.dtype if isinstance(tensor, Random) else NAMES[tensor.dtype]
    return dtype, tuple(tensor.shape), math.prod(tensor.shape) * np.dtype(DTYPES[dtype]).itemsize


def header_bytes(tensors: Tensors) -> bytes:
    """Length and JSON of a safetensors header, data in the order of the mapping."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        dtype, shape, nbytes = _entry(tensor)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    data = json.dumps(header).encode()
    data += b" " * (-len(data) % 8)
    return len(data).to_bytes(8, "little") + data


def write_safetensors(path: Path, tensors: Tensors) -> Path:
    """Write one safetensors file."""
    with path.open("wb") as file:
        file.write(header_bytes(tensors))
        for tensor in tensors.values():
            for block in tensor.blocks() if isinstance(tensor, Random) else [np.ascontiguousarray(tensor)]:
                file.write(block.tobytes())
    return path


def write_checkpoint(folder: Path, tensors: Tensors, config: Mapping[str, Any] | None = None, shards: int = 1) -> Path:
    """Write a Hugging Face folder: `model.safetensors`, or shards of about equal size with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    total = sum(_entry(tensor)[2] for tensor in tensors.values())
    groups: list[dict[str, Tensor]] = [{} for _ in range(shards)]
    done = 0
    for name, tensor in tensors.items():
        groups[min(shards - 1, done * shards // max(total, 1))][name] = tensor
        done += _entry(tensor)[2]
    groups = [group for group in groups if group]
    weight_map = {}
    for number, group in enumerate(groups, 1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        write_safetensors(folder / file, group)
        weight_map |= dict.fromkeys(group, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
