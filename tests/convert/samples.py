"""A small checkpoint with every source type and every awkward value, and a recipe that uses all nine formats."""

import hashlib
from pathlib import Path

import ml_dtypes
import numpy as np

from tests.checkpoints.files import write_checkpoint
from tests.oracle import grouped, layouts

GROUPED = ("Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S")
SMALL_BLOCK = 1 << 16
"""Several blocks for most tensors of the sample."""

RECIPE = """
[identity]
model_id = "sample"
weights_id = "mixed"

[[rule]]
match = "fp8.*"
format = "FP8_E4M3FN_ROW_BF16S"

[[rule]]
match = "nvfp4.*"
format = "NVFP4"

[[rule]]
match = "Q4.*"
format = "Q4G64_F16S"

[[rule]]
match = "Q5.*"
format = "Q5G64_F16S"

[[rule]]
match = "Q6.*"
format = "Q6G64_F16S"

[[rule]]
match = "W8.*"
format = "W8G32_F16S"

[[rule]]
match = "cast.*"
format = "BF16"
cast = "round"

[[rule]]
match = "unwanted"
drop = true

[[rule]]
match = "*"
format = "source"
name = "kept/{name}"
"""


def awkward(shape: tuple[int, int], seed: int) -> np.ndarray:
    """Float32 values with subnormals, signed zeros, ties and empty groups among normal ones."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32)
    x[0] = 0.0
    x[0, ::2] = -0.0
    x[1] = np.float32(1e-42) * rng.integers(-9, 10, shape[1]).astype(np.float32)
    x[2] = rng.integers(-7, 8, shape[1]) / np.float32(2)
    x[3] *= np.float32(1e-6)
    return x


def tensors() -> dict[str, np.ndarray]:
    """The tensors of the sample checkpoint."""
    found: dict[str, np.ndarray] = {}
    for seed, name in enumerate(GROUPED):
        short = name[:2]
        found[f"{short}.f32"] = awkward((150, 200), seed)
        found[f"{short}.bf16"] = awkward((260, 256), seed + 10).astype(ml_dtypes.bfloat16)
    found["Q4.f16"] = awkward((40, 33), 30).astype(np.float16)
    found["Q6.wide"] = awkward((5, 20_000), 31)
    found["fp8.f32"] = awkward((150, 200), 40)
    found["nvfp4.f32"] = awkward((384, 192), 41)
    found["cast.f32"] = awkward((30, 50), 42)
    found["unwanted"] = np.zeros(3, np.float32)
    found["norm"] = np.array([0x7F800001, 0xFFC12345, 0x00000001, 0x80000000], np.uint32).view(np.float32)
    found["bias"] = np.array([0x7F81, 0xFFC1, 0x0001, 0x8000], np.uint16).view(ml_dtypes.bfloat16)
    found["ids"] = np.arange(-5, 300, dtype=np.int32).reshape(5, 61)
    found["scalar"] = np.array(1.5, np.float32)
    return found


def write_sample(folder: Path, shards: int = 3) -> tuple[Path, Path]:
    """Write the sample checkpoint and its recipe; their paths."""
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE)
    return write_checkpoint(folder / "checkpoint", tensors(), shards=shards), recipe


def grouped_payload(values: np.ndarray, name: str) -> bytes:
    """The payload of a grouped tensor by the oracles."""
    return layouts.pack(grouped.encode(values.astype(np.float32), name), name)


def sha256(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
