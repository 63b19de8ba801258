"""How the Triton product is cut up: a frozen, checked configuration and the one chosen without measurements.

Leaves out measured tables: the kernels have not run on a GPU. Source: gpu-kernels.
"""

import dataclasses

from pallas_kernels.errors import KernelConfigError
from pallas_kernels.tiling import require_one_of


@dataclasses.dataclass(frozen=True)
class TritonConfig:
    """Blocks of y = x @ W.T.

    Attributes:
      rows: rows of W a program computes, 32, 64 or 128.
      tokens: rows of x a program computes, 16, 32, 64 or 128.
      warps: warps of a program, 4 or 8.
      stages: blocks of 64 columns that are loaded ahead, 1 to 8.
      split_k: programs that share an output tile, each with its own part of K; their sums are added afterwards.
    """

    rows: int = 64
    tokens: int = 16
    warps: int = 4
    stages: int = 4
    split_k: int = 1

    def __post_init__(self) -> None:
        require_one_of("rows", self.rows, (32, 64, 128))
        require_one_of("tokens", self.tokens, (16, 32, 64, 128))
        require_one_of("warps", self.warps, (4, 8))
        require_one_of("stages", self.stages, tuple(range(1, 9)))
        if self.split_k < 1:
            raise KernelConfigError(f"split_k={self.split_k} is not allowed: choose 1 or more")


def heuristic_config(*, m: int, n: int, k: int, sms: int) -> TritonConfig:
    """Tiles of 16 tokens up to M = 16, of 32 and 64 above; K is split while the programs leave multiprocessors idle.

    Args:
      m: tokens.
      n: rows of the weight.
      k: columns of the weight.
      sms: multiprocessors of the device.
    """
    tokens = next((size for size in (16, 32) if m <= size), 64)
    stages = 4 if tokens < 64 else 3
    programs, blocks, split = -(-n // 64) * -(-m // tokens), -(-k // 64), 1
    while split < 16 and 2 * programs * split <= 4 * sms and blocks >= 16 * split:
        split *= 2
    return TritonConfig(rows=64, tokens=tokens, warps=4, stages=stages, split_k=split)
