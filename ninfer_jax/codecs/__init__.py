"""Codecs: source values to logical words and back, exact under jit (tensor-formats §3 to §8)."""

from ninfer_jax.codecs.casts import cast_words as cast_words
from ninfer_jax.codecs.casts import source_words as source_words
from ninfer_jax.codecs.nvfp4_encoder import matrix_amax as matrix_amax
from ninfer_jax.codecs.nvfp4_encoder import nvfp4_divisor as nvfp4_divisor
from ninfer_jax.codecs.quantization import ENCODERS as ENCODERS
from ninfer_jax.codecs.quantization import EncoderProfile as EncoderProfile
from ninfer_jax.codecs.quantization import dequantize as dequantize
from ninfer_jax.codecs.quantization import get_encoder as get_encoder
from ninfer_jax.codecs.quantization import quantize as quantize
from ninfer_jax.codecs.quantization import try_quantize as try_quantize
from ninfer_jax.codecs.violations import check_words as check_words
from ninfer_jax.codecs.violations import count_violations as count_violations
