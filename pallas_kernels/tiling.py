"""Weight kinds and launch configurations: closed, frozen, checked where they are made.

A weight kind is what a kernel has to know of a packed weight: how wide a code is, how long a scale group is, how many
bytes a group takes in each plane. Sizes a launch may use are checked by `DecodeConfig`; a message names the field, its
value and the values allowed. Leaves out shapes (planes) and the choice of a configuration (each kernel's
`heuristic_config`). Source: storage-layouts.
"""

import dataclasses
from collections.abc import Collection, Mapping
from types import MappingProxyType

from pallas_kernels.errors import KernelConfigError, UnsupportedKernelError


@dataclasses.dataclass(frozen=True)
class WeightKind:
    """How one kind of packed weight is laid out.

    Attributes:
      name: the key in `WEIGHT_KINDS`.
      code_bits: bits of a code.
      group_size: columns that share a scale; 0 where a whole row does.
      group_bytes: bytes a group takes in the plane of codes (of a 64 column block where rows share a scale).
      high_bytes: bytes a group takes in the plane of high bits; 0 where there is none.
      k_multiple: stored columns are padded to a multiple of this.
      n_multiple: rows are a multiple of this.
    """

    name: str
    code_bits: int
    group_size: int
    group_bytes: int
    high_bytes: int
    k_multiple: int
    n_multiple: int

    @property
    def code_plane_bits(self) -> int:
        """Bits a column takes in the plane of codes: 4 for q5 and q6, whose other bits are in the high plane."""
        return 8 if self.code_bits == 8 else 4

    def k_padded(self, k: int) -> int:
        """Columns as stored: k rounded up to `k_multiple`."""
        return -(-k // self.k_multiple) * self.k_multiple

    def groups(self, k: int) -> int:
        """Scales a row has: k_padded / group_size, or 1 where a row has one scale."""
        return self.k_padded(k) // self.group_size if self.group_size else 1


def _kinds() -> dict[str, WeightKind]:
    rows = (
        WeightKind("q4", 4, 64, 32, 0, 128, 1),
        WeightKind("q5", 5, 64, 32, 8, 128, 1),
        WeightKind("q6", 6, 64, 32, 16, 128, 1),
        WeightKind("w8", 8, 32, 32, 0, 128, 1),
        WeightKind("nvfp4", 4, 16, 8, 0, 64, 128),
        WeightKind("fp8", 8, 0, 64, 0, 1, 1),
    )
    return {kind.name: kind for kind in rows}


WEIGHT_KINDS: Mapping[str, WeightKind] = MappingProxyType(_kinds())


def weight_kind(name: str) -> WeightKind:
    """The kind of that name.

    Raises:
      UnsupportedKernelError: no kernel reads a weight of that kind.
    """
    if name not in WEIGHT_KINDS:
        raise UnsupportedKernelError(f"weight kind {name!r} is not one of {', '.join(WEIGHT_KINDS)}; pass one of these")
    return WEIGHT_KINDS[name]


def require_one_of(field: str, value: int, allowed: Collection[int]) -> None:
    """Raise `KernelConfigError` unless value is one of the allowed ones."""
    if value not in allowed:
        names = ", ".join(str(v) for v in allowed)
        raise KernelConfigError(f"{field}={value} is not allowed: choose one of {names}")


def require_multiple(field: str, value: int, step: int) -> None:
    """Raise `KernelConfigError` unless value is a positive multiple of step."""
    if value <= 0 or value % step:
        raise KernelConfigError(f"{field}={value} is not allowed: choose a positive multiple of {step}")


def require_fits(what: str, value: int, limit: int) -> None:
    """Raise `KernelConfigError` when value is over the limit."""
    if value > limit:
        raise KernelConfigError(f"{what} needs {value}, and at most {limit} fits: use smaller tiles or fewer stages")


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """How the decode kernel cuts up y = x @ W.T.

    Attributes:
      rows: rows of W a block computes, 64, 128 or 256.
      block_k: columns of W in one stage of one warpgroup's ring, a multiple of 64.
      warpgroups: warpgroups of a block; they take the block's K stages in turn and add up at the end.
      stages: stages of each warpgroup's ring.
      split_k: blocks that share a row tile, each with its own part of K; their sums are added afterwards.
    """

    rows: int = 64
    block_k: int = 512
    warpgroups: int = 4
    stages: int = 2
    split_k: int = 1

    def __post_init__(self) -> None:
        require_one_of("rows", self.rows, (64, 128, 256))
        require_multiple("block_k", self.block_k, 64)
        require_one_of("warpgroups", self.warpgroups, (1, 2, 3, 4))
        require_one_of("stages", self.stages, tuple(range(1, 9)))
        if self.split_k < 1:
            raise KernelConfigError(f"split_k={self.split_k} is not allowed: choose 1 or more")


@dataclasses.dataclass(frozen=True)
class PrefillConfig:
    """How the prefill kernel cuts up y = x @ W.T.

    Attributes:
      block_m: rows of x a block computes at a time, 32, 64, 128 or 256; at most 128 for a gated product.
      block_k: columns of x and W in one stage, 64 or 128.
      stages: stages of the ring that the producer fills ahead of the consumers.
      consumers: compute warpgroups, 1, 2 or 3.
      row_blocks: blocks of 64 rows of W a compute warpgroup holds, 1 or 2; a gated product always holds a gate block
        and its up block.
      split_k: blocks that share an output tile, each with its own part of K; their sums are added afterwards.
    """

    block_m: int = 128
    block_k: int = 128
    stages: int = 4
    consumers: int = 2
    row_blocks: int = 1
    split_k: int = 1

    def __post_init__(self) -> None:
        require_one_of("block_m", self.block_m, (32, 64, 128, 256))
        require_one_of("block_k", self.block_k, (64, 128))
        require_one_of("stages", self.stages, tuple(range(2, 9)))
        require_one_of("consumers", self.consumers, (1, 2, 3))
        require_one_of("row_blocks", self.row_blocks, (1, 2))
        if self.split_k < 1:
            raise KernelConfigError(f"split_k={self.split_k} is not allowed: choose 1 or more")


@dataclasses.dataclass(frozen=True)
class StreamConfig:
    """How the Hopper decode kernel cuts up y = x @ W.T: all stages of W in one row, an equal run of them a block.

    Attributes:
      rows: rows of W in a stage, 64 or 128.
      block_k: columns of W in a stage, a multiple of 64.
      warpgroups: warpgroups of a block; they take the block's stages in turn.
      stages: stages of each warpgroup's ring.
      blocks_per_sm: blocks that run at once on a multiprocessor, 1 or 2.
    """

    rows: int = 64
    block_k: int = 512
    warpgroups: int = 2
    stages: int = 2
    blocks_per_sm: int = 2

    def __post_init__(self) -> None:
        require_one_of("rows", self.rows, (64, 128))
        require_multiple("block_k", self.block_k, 64)
        require_one_of("warpgroups", self.warpgroups, (1, 2, 3, 4))
        require_one_of("stages", self.stages, tuple(range(1, 9)))
        require_one_of("blocks_per_sm", self.blocks_per_sm, (1, 2))


@dataclasses.dataclass(frozen=True)
class PortableConfig:
    """How the portable kernel cuts up y = x @ W.T: 64 rows of W a block.

    Attributes:
      block_m: rows of x a block computes, 8, 16, 32, 64 or 128.
      block_k: columns of x and W in one stage, 64, 128 or 256; halved where the columns of W are no multiple of it.
      stages: stages of the ring of copies, 2 to 8.
      split_k: blocks that share an output tile, each with its own part of K; their sums are added afterwards. The
        next smaller divisor of the stages where it is none.
    """

    block_m: int = 8
    block_k: int = 128
    stages: int = 4
    split_k: int = 1

    def __post_init__(self) -> None:
        require_one_of("block_m", self.block_m, (8, 16, 32, 64, 128))
        require_one_of("block_k", self.block_k, (64, 128, 256))
        require_one_of("stages", self.stages, tuple(range(2, 9)))
        if self.split_k < 1:
            raise KernelConfigError(f"split_k={self.split_k} is not allowed: choose 1 or more")


@dataclasses.dataclass(frozen=True)
class GatherConfig:
    """How the row gather is cut up: a block of the launch decodes part of the columns of a few rows.

    Attributes:
      rows: rows it decodes, 1, 2, 4 or 8; all their words are on the way before the first is decoded.
      spans: 32 byte spans of codes it decodes of each row, a multiple of 16, which is what four warps hold.
    """

    rows: int = 1
    spans: int = 16

    def __post_init__(self) -> None:
        require_one_of("rows", self.rows, (1, 2, 4, 8))
        require_multiple("spans", self.spans, 16)
