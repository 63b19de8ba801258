"""Mosaic GPU kernels, importable on any supported jax and without a GPU; `unsupported_reason` says the rest."""

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
