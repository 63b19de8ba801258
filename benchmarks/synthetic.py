"""Synthetic checkpoints for the conversion benchmarks: made from a seed in blocks, never held whole."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoints.files import Random, write_checkpoint
from tests.checkpoints.models import qwen_config, write_qwen


def write_one_tensor(folder: Path, gigabytes: float = 3.0) -> Path:
    """A BF16 checkpoint of which one tensor holds five sixths of the bytes.

    Args:
        folder: where to write it.
        gigabytes: bytes of weights, in 10^9.
    """
    rows = int(gigabytes * 1e9 / 6 / 2 / 5120)
    tensors = {"large.weight": Random((5 * rows, 5120), seed=1)}
    tensors |= {f"layers.{i}.weight": Random((rows // 8, 5120), seed=2 + i) for i in range(8)}
    tensors |= {f"layers.{i}.norm.weight": Random((5120,), seed=20 + i) for i in range(8)}
    return write_checkpoint(folder, tensors)


def scaled_qwen_config(gigabytes: float) -> dict[str, Any]:
    """A Qwen3.6-shaped config of about the given bytes in BF16, in 10^9; four gigabytes have 16 layers."""
    scale = (gigabytes / 4) ** 0.5
    hidden = max(1, round(20 * scale)) * 128
    config = qwen_config(
        head_dim=128,
        hidden_size=hidden,
        intermediate_size=hidden * 4,
        linear_key_head_dim=128,
        linear_num_key_heads=8,
        linear_num_value_heads=24,
        linear_value_head_dim=128,
        num_attention_heads=max(1, hidden // 213),
        num_hidden_layers=16,
        num_key_value_heads=2,
        vocab_size=hidden * 20,
    )
    config["vision_config"] |= {"depth": 8, "hidden_size": 576, "intermediate_size": 2152, "patch_size": 16}
    return config


def write_scaled_qwen(folder: Path, gigabytes: float, shards: int) -> Path:
    """A Qwen3.6-shaped checkpoint in shards, with a draft-count file beside it.

    Args:
        folder: where to write it.
        gigabytes: approximate bytes of weights, in 10^9.
        shards: number of weight files.
    """
    config = scaled_qwen_config(gigabytes)
    write_qwen(folder, config, shards)
    vocab = config["text_config"]["vocab_size"]
    np.random.default_rng(7).integers(0, 1000, vocab).astype("<i8").tofile(folder / "counts.i64")
    return folder


def weight_bytes(folder: Path) -> int:
    """Bytes of all weight files in a folder."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def describe(folder: Path) -> str:
    """One line about a checkpoint: files and bytes."""
    files = sorted(folder.glob("*.safetensors"))
    config = folder / "config.json"
    layers = json.loads(config.read_text())["text_config"]["num_hidden_layers"] if config.is_file() else None
    shape = f", {layers} layers" if layers else ""
    return f"{len(files)} weight file(s), {weight_bytes(folder) / 1e9:.2f} GB{shape}"
