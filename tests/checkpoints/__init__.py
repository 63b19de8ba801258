"""Small synthetic checkpoints for tests, and the words that they must give."""

from tests.checkpoints.files import (
    DTYPES as DTYPES,
    Random as Random,
    Tensor as Tensor,
    array_of as array_of,
    header_bytes as header_bytes,
    write_checkpoint as write_checkpoint,
    write_safetensors as write_safetensors,
)
from tests.checkpoints.models import (
    llama_config as llama_config,
    llama_shapes as llama_shapes,
    minilm_tensors as minilm_tensors,
    qwen_config as qwen_config,
    qwen_shapes as qwen_shapes,
    random_tensors as random_tensors,
    real_qwen_config as real_qwen_config,
    write_counts as write_counts,
    write_qwen as write_qwen,
)
from tests.checkpoints.quantized import (
    FP8Parts as FP8Parts,
    NVFP4Parts as NVFP4Parts,
    fp8_group as fp8_group,
    fp8_parts as fp8_parts,
    nvfp4_group as nvfp4_group,
    nvfp4_parts as nvfp4_parts,
    quantization_config as quantization_config,
    write_mixed as write_mixed,
)
