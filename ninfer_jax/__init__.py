"""NInfer's nine persistent tensor formats, exact, in JAX.

The names most programs need; the subpackages have the rest. `quantize` and `dequantize` here work on logical words;
`QuantizedTensor.quantize` and `ninfer_jax.ops.dequantize` are their counterparts on packed weights.
"""

from ninfer_jax.arrays import QuantizedTensor as QuantizedTensor, load as load
from ninfer_jax.codecs import (
    check_words as check_words,
    count_violations as count_violations,
    dequantize as dequantize,
    quantize as quantize,
    try_quantize as try_quantize,
)
from ninfer_jax.container import open_artifact as open_artifact
from ninfer_jax.errors import NinferError as NinferError
from ninfer_jax.formats import FORMATS as FORMATS, get_format as get_format
from ninfer_jax.layouts import encoded_size as encoded_size, pack as pack, unpack as unpack
from ninfer_jax.ops import (
    Epilogue as Epilogue,
    explain_matmul as explain_matmul,
    gated_linear as gated_linear,
    grouped_matmul as grouped_matmul,
    linear as linear,
    matmul as matmul,
    split as split,
    take_rows as take_rows,
)
