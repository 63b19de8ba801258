"""Synthetic quantized checkpoints: words of NVFP4 and FP8 weights, and the dialects that store them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.checkpoints.files import DTYPES, Random, Tensor, write_checkpoint


@dataclass(frozen=True)
class NVFP4Parts:
    """One NVFP4 weight: its words, and its stored parts."""

    codes: np.ndarray
    scales: np.ndarray
    divisor: np.uint32

    @property
    def packed(self) -> np.ndarray:
        """Two codes a byte, low nibble first."""
        return (self.codes[:, 0::2] | self.codes[:, 1::2] << 4).astype(np.uint8)

    def compressed_tensors(self, module: str, input_scale: float | None = None) -> dict[str, np.ndarray]:
        """Tensors of the compressed-tensors dialect."""
        tensors = {
            f"{module}.weight_packed": self.packed,
            f"{module}.weight_scale": self.scales.view(ml_dtypes.float8_e4m3fn),
            f"{module}.weight_global_scale": self.divisor.reshape(1).view(np.float32),
        }
        if input_scale is not None:
            tensors[f"{module}.input_global_scale"] = np.array([input_scale], np.float32)
        return tensors

    def modelopt(self, module: str, multiplier: float) -> dict[str, np.ndarray]:
        """Tensors of the ModelOpt dialect, with a multiplier of its own."""
        return {
            f"{module}.weight": self.packed,
            f"{module}.weight_scale": self.scales.view(ml_dtypes.float8_e4m3fn),
            f"{module}.weight_scale_2": np.array(multiplier, np.float32),
            f"{module}.input_scale": np.array(0.5, np.float32),
        }


def nvfp4_parts(n: int, k: int, divisor: float = 37.25, seed: int = 0) -> NVFP4Parts:
    """Random valid NVFP4 words, with every code word (minus zero included) among them."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
    scales = rng.integers(0, 0x7F, (n, k // 16)).astype(np.uint8)
    return NVFP4Parts(codes, scales, np.float32(divisor).view(np.uint32))


@dataclass(frozen=True)
class FP8Parts:
    """One row-scaled FP8 weight: its words."""

    codes: np.ndarray
    scales: np.ndarray

    def tensors(self, module: str, dtype: str = "BF16", shape: Callable[[int], tuple[int, ...]] | None = None):
        """Codes and scales as stored, the scales in `dtype` with shape [n, 1] or `shape(n)`."""
        scales = self.scales.view(ml_dtypes.bfloat16).astype(DTYPES[dtype])
        return {
            f"{module}.weight": self.codes.view(ml_dtypes.float8_e4m3fn),
            f"{module}.weight_scale": scales.reshape(shape(scales.size) if shape else (-1, 1)),
        }


def fp8_parts(n: int, k: int, seed: int = 0) -> FP8Parts:
    """Random valid FP8 words; row 1 has scale zero and signed zero codes."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (n, k)).astype(np.uint8)
    codes[codes & 0x7F == 0x7F] = 0x80
    scales = rng.integers(1, 0x4000, n).astype(np.uint16)
    codes[1], scales[1] = rng.choice(np.array([0, 0x80], np.uint8), k), 0
    return FP8Parts(codes, scales)


def nvfp4_group(targets: list[str], **more: Any) -> dict[str, Any]:
    """A config group of compressed-tensors NVFP4."""
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
    return {"targets": targets, "weights": weights, "format": "nvfp4-pack-quantized"} | more


def fp8_group(targets: list[str], strategy: str = "channel", **more: Any) -> dict[str, Any]:
    """A config group of compressed-tensors FP8."""
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, **more.pop("weights", {})}
    return {"targets": targets, "weights": weights, "format": "float-quantized"} | more


def quantization_config(*groups: Mapping[str, Any], ignore: tuple[str, ...] = ("lm_head",)) -> dict[str, Any]:
    """A config.json with compressed-tensors groups `group_0`, `group_1`, ... in order."""
    named = {f"group_{index}": group for index, group in enumerate(groups)}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision" if len(groups) > 1 else dict(*groups).get("format"),
        "config_groups": named,
        "ignore": list(ignore),
        "quantization_status": "compressed",
    }
    return {"model_type": "llama", "quantization_config": quantization}


def write_mixed(folder: Path) -> dict[str, NVFP4Parts | FP8Parts]:
    """Write a compressed-tensors checkpoint of NVFP4 MLPs, FP8 attention and a plain head; return words by name."""
    words: dict[str, NVFP4Parts | FP8Parts] = {}
    tensors: dict[str, Tensor] = {"model.embed_tokens.weight": Random((64, 128), seed=9)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        query = fp8_parts(32, 128, seed=layer)
        tensors |= query.tensors(prefix + "self_attn.q_proj")
        words[prefix + "self_attn.q_proj.weight"] = query
        for index, name in enumerate(("gate_proj", "up_proj")):
            parts = nvfp4_parts(128, 128, seed=10 * layer + index)
            tensors |= parts.compressed_tensors(f"{prefix}mlp.{name}", input_scale=3.5)
            words[f"{prefix}mlp.{name}.weight"] = parts
        tensors[prefix + "input_layernorm.weight"] = Random((128,), seed=20 + layer)
    tensors["lm_head.weight"] = Random((64, 128), seed=11)
    groups = (nvfp4_group(["Linear"]), fp8_group(["re:.*self_attn.*"]))
    write_checkpoint(folder, tensors, quantization_config(*groups), shards=2)
    return words
