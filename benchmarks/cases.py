"""The weights of the registered models and the numbers of tokens they meet: shared by benchmarks and kernel suites.

Source: ops-and-criteria.
"""

import dataclasses

#: Tokens of a call: decoding and small batches, then prefill.
TOKENS = (1, 2, 4, 8, 16, 64, 128, 512, 1024, 4096)


@dataclasses.dataclass(frozen=True)
class WeightCase:
    """One [n, k] weight of a registered model.

    Attributes:
      name: model and place.
      kind: a name of `WEIGHT_KINDS`.
      n: rows.
      k: columns.
    """

    name: str
    kind: str
    n: int
    k: int


WEIGHT_CASES = (
    WeightCase("27b attn query_key", "q4", 7168, 5120),
    WeightCase("27b gdn query_key", "q4", 4096, 5120),
    WeightCase("27b mlp gate_up", "q4", 34816, 5120),
    WeightCase("27b draft head", "q4", 131072, 5120),
    WeightCase("27b gate_value", "q5", 7168, 5120),
    WeightCase("27b value_z", "q5", 12288, 5120),
    WeightCase("27b attn output", "q5", 5120, 6144),
    WeightCase("27b mlp down", "q5", 5120, 17408),
    WeightCase("27b head", "q6", 248320, 5120),
    WeightCase("27b mtp fusion", "w8", 5120, 10240),
    WeightCase("27b mtp query_gate_key_value", "w8", 14336, 5120),
    WeightCase("27b mtp output", "w8", 5120, 6144),
    WeightCase("27b mtp gate_up", "w8", 34816, 5120),
    WeightCase("27b mtp down", "w8", 5120, 17408),
    WeightCase("vision qkv", "q4", 3456, 1152),
    WeightCase("vision fc1", "q4", 4304, 1152),
    WeightCase("vision output", "q5", 1152, 1152),
    WeightCase("vision fc2", "q5", 1152, 4304),
    WeightCase("vision patch", "q6", 1152, 1536),
    WeightCase("vision merger fc1", "w8", 4608, 4608),
    WeightCase("vision merger fc2", "w8", 5120, 4608),
    WeightCase("35b gdn in", "w8", 9216, 2048),
    WeightCase("35b attn in", "w8", 12288, 2048),
    WeightCase("35b output", "w8", 2048, 4096),
    WeightCase("35b down", "w8", 2048, 6144),
    WeightCase("35b head", "q6", 248320, 2048),
    WeightCase("27b nvfp4 qkv", "nvfp4", 14336, 5120),
    WeightCase("27b nvfp4 gdn in", "nvfp4", 16384, 5120),
    WeightCase("27b nvfp4 gate_up", "nvfp4", 34816, 5120),
    WeightCase("27b nvfp4 output", "nvfp4", 5120, 6144),
    WeightCase("27b nvfp4 down", "nvfp4", 5120, 17408),
    WeightCase("27b fp8 qkv", "fp8", 14336, 5120),
    WeightCase("27b fp8 gate_up", "fp8", 34816, 5120),
    WeightCase("27b fp8 output", "fp8", 5120, 6144),
    WeightCase("27b fp8 down", "fp8", 5120, 17408),
    WeightCase("27b fp8 head", "fp8", 248320, 5120),
)

#: The decoder of an 8B Llama, in the recipe's fused weights.
LLAMA_8B_CASES = (
    WeightCase("llama-8b query_key_value", "q4", 6144, 4096),
    WeightCase("llama-8b output", "q4", 4096, 4096),
    WeightCase("llama-8b gate_up", "q4", 28672, 4096),
    WeightCase("llama-8b down", "q4", 4096, 14336),
    WeightCase("llama-8b head", "q6", 128256, 4096),
)

#: Tables rows are gathered from, and how many rows at once.
EMBEDDING_CASES = tuple(case for case in WEIGHT_CASES + LLAMA_8B_CASES if case.kind == "q6" and "head" in case.name)
EMBEDDING_TOKENS = (1, 64, 1024)

#: One expert of the 35B-A3B mixture, how many a layer has, and how many a token visits.
EXPERT_CASES = (
    WeightCase("35b experts gate_up", "q4", 1024, 2048),
    WeightCase("35b experts down", "q5", 2048, 512),
    WeightCase("35b experts down", "q6", 2048, 512),
)
EXPERTS = 256
EXPERTS_A_TOKEN = 8
