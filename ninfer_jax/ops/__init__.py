"""Ops on packed weights that compose with jit, vmap, scan, grad, shard_map and pjit (ops-and-criteria)."""

from ninfer_jax.ops.epilogue import Epilogue as Epilogue
from ninfer_jax.ops.grouped import grouped_matmul as grouped_matmul
from ninfer_jax.ops.matmul import (
    IMPLEMENTATIONS as IMPLEMENTATIONS,
    explain_matmul as explain_matmul,
    gated_linear as gated_linear,
    linear as linear,
    matmul as matmul,
)
from ninfer_jax.ops.registry import Explanation as Explanation, Problem as Problem
from ninfer_jax.ops.rows import dequantize as dequantize, split as split, take_rows as take_rows
from ninfer_jax.ops.support import SupportRow as SupportRow, support_table as support_table
