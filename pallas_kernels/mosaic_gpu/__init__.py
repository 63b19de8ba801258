"""Mosaic GPU kernels, importable on any supported jax and without a GPU; `unsupported_reason` says the rest.

How a scale meets a code, and how far a weight may then be off (relative, at worst over every code and scale word; sums
are float32 everywhere):

    kernel                      q4 q5 q6 w8                          nvfp4                         fp8
    decode_sm90, decode_sm100,  code exact; the scale multiplies     code * block scale exact;     code exact; the row
    portable_mma                its group's sum: 0                   sum / divisor: 0              scale on the sum: 0
    prefill_sm90,               bfloat16(code * scale), rounded      code * block scale exact;     code exact; the row
    prefill_sm100               once: 1/257                          sum / divisor: 0              scale on the sum: 0
    prefill_sm90, q4 to BF16    bfloat16(code * bfloat16(scale)),    -                             -
                                rounded twice: 1.86/256
    nvfp4_w4a4                  -                                    exact, as stored; rounds x    -

1/257 is half a place of bfloat16, met where every weight is a tie; random weights are off by 1/600 or so. The criterion
(relative L2 of 1/256) holds for such a worst weight in a float32 result. In a bfloat16 result the rounding of the
result itself comes on top, 1.08/256 together; no bfloat16 operand can avoid that. There q4 on Hopper saves an
instruction a weight by rounding its scale first: ask for float32 where weights may be all alike.
"""

from pallas_kernels.mosaic_gpu.dispatch import (
    Explanation as Explanation,
    candidate_configs as candidate_configs,
    explain as explain,
    gated_matmul as gated_matmul,
    heuristic_config as heuristic_config,
    lower_bound as lower_bound,
    matmul as matmul,
    unsupported_reason as unsupported_reason,
)
from pallas_kernels.mosaic_gpu.gather import (
    gather_unsupported_reason as gather_unsupported_reason,
    take_rows as take_rows,
)
