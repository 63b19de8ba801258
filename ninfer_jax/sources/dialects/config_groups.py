"""The quantization scheme of a module: `config_groups` and `ignore` as compressed-tensors resolves them.

The rules of compressed-tensors 0.20: groups are read in order, and a target named by two groups belongs to the later
one. Of several targets that match a module, an exact module name wins over a regular expression (`re:...`, matched from
the start of the name), and that over a class name; equals are taken in sorted order. `ignore` lies on top of all. A
checkpoint names no classes: a module whose last name contains `embed` is taken for an Embedding, others for a Linear.
Leaves out tensors (`compressed_tensors`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_jax.errors import SourceError

NVFP4_FORMAT = "nvfp4-pack-quantized"
FP8_FORMATS = ("float-quantized", "naive-quantized")
_PRESETS: Mapping[str, tuple[str, str]] = {
    "NVFP4": (NVFP4_FORMAT, "tensor_group"),
    "NVFP4A16": (NVFP4_FORMAT, "tensor_group"),
    "FP8": ("float-quantized", "tensor"),
    "FP8_DYNAMIC": ("float-quantized", "channel"),
    "FP8_BLOCK": ("float-quantized", "block"),
}


@dataclass(frozen=True)
class Scheme:
    """How the weights of one group are stored.

    Attributes:
        group: name of the group in `config_groups`.
        format: storage format, such as `nvfp4-pack-quantized`.
        strategy: `tensor`, `channel`, `block`, `tensor_group`, or another word that nothing here maps.
        block: block shape of strategy `block`.
    """

    group: str
    format: str
    strategy: str
    block: tuple[int, int] | None = None


@dataclass(frozen=True)
class ConfigGroups:
    """Targets in resolved order, and the ignore list."""

    targets: Mapping[str, Scheme]
    ignore: tuple[str, ...]

    def ignored(self, module: str) -> bool:
        """True where the ignore list names the module, by name, regular expression or class."""
        return any(_matches(module, pattern) or pattern == _class_of(module) for pattern in self.ignore)

    def scheme(self, module: str) -> Scheme | None:
        """The scheme of a module that is stored quantized; None if no target fits."""
        for target in sorted(self.targets, key=lambda target: ("re:" in target, target)):
            if _matches(module, target):
                return self.targets[target]
        return self.targets.get(_class_of(module))


def _class_of(module: str) -> str:
    return "Embedding" if "embed" in module.rpartition(".")[2] else "Linear"


def _matches(module: str, pattern: str) -> bool:
    if not pattern.startswith("re:"):
        return pattern == module
    try:
        return re.match(pattern.removeprefix("re:"), module) is not None
    except re.error as error:
        raise SourceError(f"quantization_config has the invalid regular expression {pattern!r}: {error}") from None


def parse_config_groups(config: Mapping[str, Any]) -> ConfigGroups:
    """Read `config_groups`, `format` and `ignore` of a compressed-tensors `quantization_config`.

    Raises:
        SourceError: a member of the wrong type, an unknown preset, or weights that are not symmetric.
    """
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping):
        raise SourceError("quantization_config of compressed-tensors needs an object config_groups")
    targets: dict[str, Scheme] = {}
    for name, group in groups.items():
        names, scheme = _group(name, group, config.get("format"))
        targets |= dict.fromkeys(names, scheme)
    ignore = config.get("ignore") or []
    if not _is_names(ignore):
        raise SourceError("quantization_config.ignore must be a list of strings")
    return ConfigGroups(targets, tuple(ignore))


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _group(name: str, group: Any, default_format: Any) -> tuple[list[str], Scheme]:
    if _is_names(group):
        if name.upper() not in _PRESETS:
            raise SourceError(f"config group {name!r} is no preset that maps; known are {', '.join(_PRESETS)}")
        storage, strategy = _PRESETS[name.upper()]
        block = (128, 128) if strategy == "block" else None
        return group, Scheme(name, storage, strategy, block)
    if not isinstance(group, Mapping) or not _is_names(group.get("targets")):
        raise SourceError(f"config group {name!r} needs a list of strings `targets`")
    weights = group.get("weights")
    if weights is None:
        return group["targets"], Scheme(name, "dense", "none")
    if not isinstance(weights, Mapping):
        raise SourceError(f"config group {name!r} has `weights` that is not an object")
    if weights.get("symmetric", True) is not True:
        return group["targets"], Scheme(name, "asymmetric", "zero points")
    storage = group.get("format") or _infer_format(weights) or default_format
    return group["targets"], Scheme(name, str(storage), str(weights.get("strategy")), _block(name, weights))


def _infer_format(weights: Mapping[str, Any]) -> str | None:
    """A group without its own format is named by its weights; the global format may be `mixed-precision`."""
    if weights.get("type") != "float":
        return None
    if weights.get("num_bits") == 4 and weights.get("strategy") == "tensor_group" and weights.get("group_size") == 16:
        return NVFP4_FORMAT
    return FP8_FORMATS[0] if weights.get("num_bits") == 8 and weights.get("group_size") is None else None


def _block(name: str, weights: Mapping[str, Any]) -> tuple[int, int] | None:
    block = weights.get("block_structure")
    if weights.get("strategy") != "block":
        return None
    if isinstance(block, str) and re.fullmatch(r"\d+x\d+", block):
        block = [int(extent) for extent in block.split("x")]
    if not isinstance(block, list) or len(block) != 2 or not all(type(b) is int and b > 0 for b in block):
        raise SourceError(f"config group {name!r} has strategy block, but block_structure {block!r} is no pair")
    return block[0], block[1]
