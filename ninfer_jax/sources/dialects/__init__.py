"""Quantized checkpoint dialects: which stored tensors form one logical weight, and whether it maps word for word."""

from ninfer_jax.sources.dialects.decoded import (
    DecodedTensor as DecodedTensor,
    MultiplierNVFP4Tensor as MultiplierNVFP4Tensor,
)
from ninfer_jax.sources.dialects.select import DIALECTS as DIALECTS, apply_dialect as apply_dialect
from ninfer_jax.sources.dialects.words import (
    BlockQ8Tensor as BlockQ8Tensor,
    DialectTensor as DialectTensor,
    NVFP4Tensor as NVFP4Tensor,
    RowScaledTensor as RowScaledTensor,
)
