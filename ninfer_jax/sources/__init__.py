"""Checkpoints: safetensors files and folders, GGUF files, and the quantized dialects found in them."""

from ninfer_jax.sources.checkpoint import (
    Checkpoint as Checkpoint,
    open_checkpoint as open_checkpoint,
    open_config as open_config,
)
from ninfer_jax.sources.dialects import (
    DIALECTS as DIALECTS,
    DecodedTensor as DecodedTensor,
    MultiplierNVFP4Tensor as MultiplierNVFP4Tensor,
)
from ninfer_jax.sources.dtypes import (
    ELEMENT_TYPES as ELEMENT_TYPES,
    FLOAT_TYPES as FLOAT_TYPES,
    INTEGER_TYPES as INTEGER_TYPES,
)
from ninfer_jax.sources.gguf_header import check_gguf_header as check_gguf_header
from ninfer_jax.sources.json_file import read_json_object as read_json_object
from ninfer_jax.sources.tensor import (
    PositionedFile as PositionedFile,
    SourceFile as SourceFile,
    SourceRef as SourceRef,
    SourceTensor as SourceTensor,
    StoredTensor as StoredTensor,
    row_count as row_count,
    widen_to_f32 as widen_to_f32,
)
