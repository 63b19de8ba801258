"""Float64 NumPy forward passes of the two model architectures, written from their definitions, without cache or batch.

They share no code with `ninfer_jax.models`: loops over heads and positions instead of masks and scans.
"""

import math

import numpy as np


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, causal: bool) -> np.ndarray:
    """[t, d] each; plain scaled dot-product attention of one head."""
    out = np.zeros_like(query)
    for t in range(query.shape[0]):
        last = t + 1 if causal else key.shape[0]
        scores = key[:last] @ query[t] / math.sqrt(query.shape[1])
        out[t] = _softmax(scores) @ value[:last]
    return out


def _rms(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def _turn(x: np.ndarray, theta: float) -> np.ndarray:
    """Complex rotation of lane pairs (i, i + d/2) of one head, [t, d]."""
    half = x.shape[1] // 2
    angle = np.arange(x.shape[0])[:, None] * theta ** (-np.arange(half) / half)
    z = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
    return np.concatenate([z.real, z.imag], axis=1)


def llama_logits(weights: dict[str, np.ndarray], config: dict, tokens: list[int]) -> np.ndarray:
    """Logits [t, vocab] of one token sequence; weights by Hugging Face name, config as in config.json."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim, eps = config["head_dim"], config["rms_norm_eps"]
    x = w["model.embed_tokens.weight"][tokens]
    for index in range(config["num_hidden_layers"]):
        p = f"model.layers.{index}."
        h = _rms(x, w[p + "input_layernorm.weight"], eps)
        q, k, v = (h @ w[f"{p}self_attn.{name}_proj.weight"].T for name in "qkv")
        parts = []
        for head in range(heads):
            kv = head // (heads // kv_heads)
            mine, theirs = slice(head * dim, (head + 1) * dim), slice(kv * dim, (kv + 1) * dim)
            theta = config["rope_theta"]
            parts.append(_attend(_turn(q[:, mine], theta), _turn(k[:, theirs], theta), v[:, theirs], causal=True))
        x = x + np.concatenate(parts, axis=1) @ w[p + "self_attn.o_proj.weight"].T
        h = _rms(x, w[p + "post_attention_layernorm.weight"], eps)
        gate = h @ w[p + "mlp.gate_proj.weight"].T
        up = h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
    head_weight = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return _rms(x, w["model.norm.weight"], eps) @ head_weight.T


def _layer_norm(x: np.ndarray, w: dict[str, np.ndarray], prefix: str, eps: float) -> np.ndarray:
    centered = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt((centered * centered).mean(axis=-1, keepdims=True) + eps)
    return centered / spread * w[prefix + ".weight"] + w[prefix + ".bias"]


def bert_embedding(weights: dict[str, np.ndarray], config: dict, tokens: list[int]) -> np.ndarray:
    """Unit-length mean-pooled embedding [hidden] of one token sequence."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    x = w["embeddings.word_embeddings.weight"][tokens] + w["embeddings.position_embeddings.weight"][: len(tokens)]
    x = _layer_norm(x + w["embeddings.token_type_embeddings.weight"][0], w, "embeddings.LayerNorm", eps)
    for index in range(config["num_hidden_layers"]):
        p = f"encoder.layer.{index}."

        def affine(h: np.ndarray, name: str, p: str = p) -> np.ndarray:
            return h @ w[p + name + ".weight"].T + w[p + name + ".bias"]

        q, k, v = (affine(x, f"attention.self.{name}") for name in ("query", "key", "value"))
        dim = x.shape[1] // heads
        cuts = [slice(h * dim, (h + 1) * dim) for h in range(heads)]
        attended = np.concatenate([_attend(q[:, c], k[:, c], v[:, c], causal=False) for c in cuts], axis=1)
        x = _layer_norm(x + affine(attended, "attention.output.dense"), w, p + "attention.output.LayerNorm", eps)
        h = affine(x, "intermediate.dense")
        h = h * 0.5 * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
        x = _layer_norm(x + affine(h, "output.dense"), w, p + "output.LayerNorm", eps)
    pooled = x.mean(axis=0)
    return pooled / np.linalg.norm(pooled)
