"""A Llama-architecture model of a few thousand weights, random, with names and config as a checkpoint has them."""

import numpy as np

CONFIG = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 0,
}


def weights(seed: int = 0, *, tied: bool = True) -> dict[str, np.ndarray]:
    """Float32 tensors by Hugging Face name, scaled so that activations stay of order one."""
    rng = np.random.default_rng(seed)
    hidden, wide = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    kv = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }
    tensors = {"model.embed_tokens.weight": rng.normal(size=(CONFIG["vocab_size"], hidden))}
    for layer in range(CONFIG["num_hidden_layers"]):
        for part, shape in shapes.items():
            tensors[f"model.layers.{layer}.{part}.weight"] = rng.normal(size=shape) / np.sqrt(shape[1])
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = rng.uniform(0.5, 1.5, hidden)
    tensors["model.norm.weight"] = rng.uniform(0.5, 1.5, hidden)
    if not tied:
        tensors["lm_head.weight"] = rng.normal(size=(CONFIG["vocab_size"], hidden))
    return {name: value.astype(np.float32) for name, value in tensors.items()}


def stored(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same tensors under the names of the recipe `llama`, fused parents concatenated."""
    parts = {
        "input_norm": ("input_layernorm",),
        "attention/query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention/output": ("self_attn.o_proj",),
        "post_attention_norm": ("post_attention_layernorm",),
        "mlp/gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp/down": ("mlp.down_proj",),
    }
    tensors = {"text/token_embedding": weights["model.embed_tokens.weight"]}
    for layer in range(CONFIG["num_hidden_layers"]):
        for name, sources in parts.items():
            rows = [weights[f"model.layers.{layer}.{source}.weight"] for source in sources]
            tensors[f"text/layers/{layer}/{name}"] = np.concatenate(rows)
    tensors["text/final_norm"] = weights["model.norm.weight"]
    if "lm_head.weight" in weights:
        tensors["text/output_head"] = weights["lm_head.weight"]
    return tensors
