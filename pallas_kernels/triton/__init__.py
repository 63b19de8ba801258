"""Triton kernels, called through jax-triton; importable without either, `unsupported_reason` says what is missing."""

from pallas_kernels.triton.dispatch import (
    explain as explain,
    gather_unsupported_reason as gather_unsupported_reason,
    matmul as matmul,
    take_rows as take_rows,
    unsupported_reason as unsupported_reason,
)
from pallas_kernels.triton.plan import TritonConfig as TritonConfig, heuristic_config as heuristic_config
