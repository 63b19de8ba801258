"""Codecs: source values to logical words and back, exact under jit (tensor-formats §3 to §8)."""

from ninfer_jax.codecs.casts import cast_words as cast_words, source_words as source_words
from ninfer_jax.codecs.nvfp4_encoder import matrix_amax as matrix_amax, nvfp4_divisor as nvfp4_divisor
from ninfer_jax.codecs.quantization import (
    ENCODERS as ENCODERS,
    EncoderProfile as EncoderProfile,
    dequantize as dequantize,
    get_encoder as get_encoder,
    quantize as quantize,
    try_quantize as try_quantize,
)
from ninfer_jax.codecs.refusals import explain_refusal as explain_refusal
from ninfer_jax.codecs.violations import check_words as check_words, count_violations as count_violations
