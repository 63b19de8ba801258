"""The compressed-tensors dialect: NVFP4 and FP8 weights word for word (checkpoint-sources).

A module X is quantized by the tensors that are there (`X.weight_packed`, or an F8_E4M3 `X.weight`), and the config
must agree with them: a weight without its scales, or scales without a scheme, is an error that names it. The parts
become one logical tensor `X.weight`; activation scales stay tensors of their own, as F32. Leaves out how groups
resolve (`config_groups`).
"""

from collections.abc import Mapping
from typing import Any

from ninfer_jax.errors import SourceError
from ninfer_jax.sources.dialects.build import block_fp8_tensor, describe, divisor_nvfp4, fp8_tensor
from ninfer_jax.sources.dialects.config_groups import (
    FP8_FORMATS,
    NVFP4_FORMAT,
    ConfigGroups,
    Scheme,
    parse_config_groups,
)
from ninfer_jax.sources.dialects.decoded import DecodedTensor
from ninfer_jax.sources.dialects.words import DialectTensor
from ninfer_jax.sources.dtypes import FLOAT_TYPES
from ninfer_jax.sources.tensor import SourceTensor, WidenedTensor

DIALECT = "compressed-tensors"
INPUT_SCALES = ("input_global_scale", "input_scale", "output_scale")
_WEIGHT_PARTS = (
    "weight_packed",
    "weight_scale",
    "weight_global_scale",
    "weight_zero_point",
    "weight_g_idx",
    "weight_shape",
)

Tensors = Mapping[str, SourceTensor]


def logical_tensors(tensors: Tensors, config: Mapping[str, Any]) -> dict[str, SourceTensor]:
    """Replace the parts of quantized weights by logical tensors, in the order of the checkpoint.

    Args:
        tensors: stored tensors by name.
        config: the `quantization_config` of config.json.

    Raises:
        SourceError: parts that are missing, left over, of the wrong shape, or at odds with the config.
    """
    groups = parse_config_groups(config)
    logical: dict[str, SourceTensor] = {}
    used: set[str] = set()
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part == "weight_packed" or (part == "weight" and _is_quantized(tensors, module, tensor)):
            weight = _weight(tensors, module, groups)
            logical[f"{module}.weight"] = weight
            used.update(ref.tensor for ref in weight.sources)
        elif part not in _WEIGHT_PARTS:
            logical[name] = input_scale(tensor) if part in INPUT_SCALES else tensor
    left = [name for name in tensors if name.rpartition(".")[2] in _WEIGHT_PARTS and name not in used]
    if left:
        raise SourceError(f"{DIALECT}: {left[0]!r} belongs to no quantized weight ({len(left)} such tensors)")
    return logical


def input_scale(tensor: SourceTensor) -> SourceTensor:
    """An activation scale as F32; BF16 and F16 widen exactly."""
    if tensor.dtype in ("BF16", "F16"):
        return WidenedTensor(tensor, tensor.name, tensor.shape)
    return tensor


def _is_quantized(tensors: Tensors, module: str, weight: SourceTensor) -> bool:
    """Codes are never of a plain floating-point type, and plain weights have no scale."""
    return weight.dtype not in FLOAT_TYPES or f"{module}.weight_scale" in tensors


def _weight(tensors: Tensors, module: str, groups: ConfigGroups) -> DialectTensor:
    name = f"{module}.weight"
    scheme = None if groups.ignored(module) else groups.scheme(module)
    if scheme is None:
        why = "its ignore list names it" if groups.ignored(module) else "no config group targets it"
        raise SourceError(f"{DIALECT}: {module!r} is stored quantized, but {why}")
    if scheme.format == NVFP4_FORMAT:
        parts = [_part(tensors, module, part, scheme) for part in _WEIGHT_PARTS[:3]]
        return divisor_nvfp4(name, parts[0], parts[1], parts[2], DIALECT)
    if scheme.format in FP8_FORMATS and scheme.strategy in ("tensor", "channel", "block"):
        codes, scale = (_part(tensors, module, part, scheme) for part in ("weight", "weight_scale"))
        if scheme.strategy == "block":
            return block_fp8_tensor(name, codes, scale, scheme.block or (0, 0), DIALECT)
        _check_strategy(name, codes, scale, scheme)
        return fp8_tensor(name, codes, scale, DIALECT)
    return _unmapped(tensors, module, scheme)


def _part(tensors: Tensors, module: str, part: str, scheme: Scheme) -> SourceTensor:
    tensor = tensors.get(f"{module}.{part}")
    if tensor is None:
        raise SourceError(
            f"{DIALECT}: {module!r} is {scheme.format} (config group {scheme.group!r}), but {module}.{part} is missing"
        )
    return tensor


def _check_strategy(name: str, codes: SourceTensor, scale: SourceTensor, scheme: Scheme) -> None:
    rows = codes.shape[0] if codes.shape else 1
    allowed = ((1,), (), (1, 1)) if scheme.strategy == "tensor" else ((rows, 1), (rows,))
    if scale.shape not in allowed:
        raise SourceError(
            f"{DIALECT}: tensor {name!r} has strategy {scheme.strategy!r} (config group {scheme.group!r}), which needs "
            f"a scale of shape {list(allowed[0])}, but has {describe(scale)}"
        )


def _unmapped(tensors: Tensors, module: str, scheme: Scheme) -> DecodedTensor:
    """Formats such as packed int4: no registered format, and no decoder here."""
    stored = tuple(tensors[f"{module}.{part}"] for part in ("weight", *_WEIGHT_PARTS) if f"{module}.{part}" in tensors)
    reason = f"{scheme.format} with strategy {scheme.strategy!r} (config group {scheme.group!r}) maps to no format"
    return DecodedTensor(f"{module}.weight", stored[0].shape, stored, dialect=DIALECT, reason=reason)
