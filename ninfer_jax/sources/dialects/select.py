"""Pick the dialect of a checkpoint from its config, or from what the caller names.

compressed-tensors and block FP8 are recognized; ModelOpt must be asked for, because its scales are multipliers and its
NVFP4 weights are not word-exact. `none` shows the stored tensors as they are. Leaves out GGUF, which is a file format.
"""

from collections.abc import Mapping
from typing import Any

from ninfer_jax.errors import SourceError
from ninfer_jax.sources.dialects import block_fp8, compressed_tensors, modelopt
from ninfer_jax.sources.tensor import SourceTensor

DIALECTS = ("none", compressed_tensors.DIALECT, modelopt.DIALECT, block_fp8.DIALECT)
"""Names that `open_checkpoint(dialect=...)` takes."""


def apply_dialect(
    tensors: Mapping[str, SourceTensor], config: Mapping[str, Any] | None, dialect: str | None, modelopt_file: bool
) -> Mapping[str, SourceTensor]:
    """Turn stored tensors into logical tensors.

    Args:
        tensors: stored tensors by name.
        config: config.json, or None.
        dialect: one of `DIALECTS`, or None to follow the config.
        modelopt_file: True where hf_quant_config.json lies beside the weights.

    Raises:
        SourceError: an unknown dialect, or one that the config contradicts.
    """
    if dialect is not None and dialect not in DIALECTS:
        raise SourceError(f"unknown dialect {dialect!r}; known are {', '.join(DIALECTS)}")
    quantization = _quantization_config(config)
    found = _found(quantization, modelopt_file)
    chosen = dialect or found
    if chosen == "none":
        return tensors
    if chosen == modelopt.DIALECT:
        if dialect is None:
            raise SourceError(
                "this is a ModelOpt checkpoint, whose NVFP4 weight_scale_2 is a multiplier and no divisor; "
                "name dialect = modelopt to read it so"
            )
        return modelopt.logical_tensors(tensors)
    if chosen not in DIALECTS:
        raise SourceError(
            f"quantization_config has quant_method {chosen!r}, which maps to no format; known dialects are "
            f"{', '.join(DIALECTS)} (none shows the stored tensors)"
        )
    if chosen != found:
        raise SourceError(f"dialect {chosen} was asked for, but config.json has no quantization_config of that kind")
    module = compressed_tensors if chosen == compressed_tensors.DIALECT else block_fp8
    return module.logical_tensors(tensors, quantization)


def _quantization_config(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """`quantization_config`, at the top or in `text_config`; older files call it `compression_config`."""
    config = config or {}
    text = config.get("text_config")
    for place in (config, text if isinstance(text, Mapping) else {}):
        for member in ("quantization_config", "compression_config"):
            value = place.get(member)
            if isinstance(value, Mapping):
                return value
            if value is not None:
                raise SourceError(f"{member} in config.json is {value!r:.60}; an object or null is needed")
    return {}


def _found(quantization: Mapping[str, Any], modelopt_file: bool) -> str:
    method = quantization.get("quant_method")
    if method == "fp8" and "weight_block_size" in quantization:
        return block_fp8.DIALECT
    if method == "modelopt" or (method is None and modelopt_file):
        return modelopt.DIALECT
    if method is None:
        return compressed_tensors.DIALECT if "config_groups" in quantization else "none"
    return str(method)
