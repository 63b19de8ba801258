"""The ModelOpt dialect: NVFP4 and per-tensor FP8, read only when it is asked for by name (checkpoint-sources).

Its `weight_scale_2` is a multiplier where NVFP4 stores a divisor, so NVFP4 weights are not word-exact by default. What
a weight is follows from its tensors: U8 codes are NVFP4, F8_E4M3 codes are FP8. Leaves out its exclude list, which
names only weights that are stored plainly.
"""

from collections.abc import Mapping

from ninfer_jax.errors import SourceError
from ninfer_jax.sources.dialects.build import describe, fp8_tensor, multiplier_nvfp4
from ninfer_jax.sources.dialects.compressed_tensors import input_scale
from ninfer_jax.sources.tensor import SourceTensor

DIALECT = "modelopt"
_SCALES = ("weight_scale", "weight_scale_2")


def logical_tensors(tensors: Mapping[str, SourceTensor]) -> dict[str, SourceTensor]:
    """Replace codes and scales by logical tensors `X.weight`, in the order of the checkpoint.

    Raises:
        SourceError: a scale is missing, left over or of the wrong shape.
    """
    logical: dict[str, SourceTensor] = {}
    used: set[str] = set()
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part == "weight" and (tensor.dtype in ("U8", "F8_E4M3") or f"{module}.weight_scale" in tensors):
            logical[name] = weight = _weight(tensors, module, tensor)
            used.update(ref.tensor for ref in weight.sources)
        elif part not in _SCALES:
            logical[name] = input_scale(tensor) if part == "input_scale" else tensor
    left = [name for name in tensors if name.rpartition(".")[2] in _SCALES and name not in used]
    if left:
        raise SourceError(f"{DIALECT}: {left[0]!r} belongs to no quantized weight ({len(left)} such tensors)")
    return logical


def _weight(tensors: Mapping[str, SourceTensor], module: str, codes: SourceTensor) -> SourceTensor:
    name = f"{module}.weight"
    parts = _SCALES if codes.dtype == "U8" else _SCALES[:1]
    missing = [part for part in parts if f"{module}.{part}" not in tensors]
    if missing:
        raise SourceError(f"{DIALECT}: tensor {describe(codes)} is quantized, but {module}.{missing[0]} is missing")
    scale = tensors[f"{module}.weight_scale"]
    if codes.dtype == "U8":
        return multiplier_nvfp4(name, codes, scale, tensors[f"{module}.weight_scale_2"], DIALECT)
    return fp8_tensor(name, codes, scale, DIALECT)
