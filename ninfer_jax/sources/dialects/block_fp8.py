"""FP8 with one multiplier a block, as DeepSeek-style checkpoints store it: `X.weight` and `X.weight_scale_inv`.

Despite its name the scale is a multiplier. Several scales a row fit no registered format, so these weights are only
ever decoded (checkpoint-sources).
"""

from collections.abc import Mapping
from typing import Any

from ninfer_jax.errors import SourceError
from ninfer_jax.sources.dialects.build import block_fp8_tensor, describe
from ninfer_jax.sources.tensor import SourceTensor

DIALECT = "fp8-block"


def logical_tensors(tensors: Mapping[str, SourceTensor], config: Mapping[str, Any]) -> dict[str, SourceTensor]:
    """Replace FP8 weights and their block scales by logical tensors `X.weight`, in the order of the checkpoint.

    Args:
        tensors: stored tensors by name.
        config: the `quantization_config` of config.json; its `weight_block_size` is the block shape.

    Raises:
        SourceError: no block shape, or codes and scales that do not belong together.
    """
    block = config.get("weight_block_size")
    if not isinstance(block, list) or len(block) != 2 or not all(type(b) is int and b > 0 for b in block):
        raise SourceError(
            f"{DIALECT}: quantization_config.weight_block_size is {block!r}; two positive integers needed"
        )
    logical: dict[str, SourceTensor] = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part == "weight_scale_inv":
            if f"{module}.weight" not in tensors:
                raise SourceError(f"{DIALECT}: {name!r} has no {module}.weight beside it")
            continue
        scale = tensors.get(f"{module}.weight_scale_inv") if part == "weight" else None
        if scale is not None:
            logical[name] = block_fp8_tensor(name, tensor, scale, (block[0], block[1]), DIALECT)
        elif tensor.dtype.startswith("F8_"):
            raise SourceError(f"{DIALECT}: tensor {describe(tensor)} has no {module}.weight_scale_inv beside it")
        else:
            logical[name] = tensor
    return logical
