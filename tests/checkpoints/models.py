"""Synthetic models by name: Qwen3.6-shaped, dense Llama and Qwen3, MiniLM-like."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoints.files import Random, Tensor, write_checkpoint


def qwen_config(**text: int) -> dict[str, Any]:
    """A config.json shaped like Qwen3.6-27B, scaled down; keywords replace members of text_config."""
    return {
        "model_type": "qwen3_5",
        "text_config": {
            "dtype": "bfloat16",
            "full_attention_interval": 4,
            "head_dim": 16,
            "hidden_size": 128,
            "intermediate_size": 192,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_value_head_dim": 16,
            "num_attention_heads": 4,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "vocab_size": 320,
        }
        | text,
        "vision_config": {
            "depth": 2,
            "hidden_size": 32,
            "in_channels": 3,
            "intermediate_size": 72,
            "num_position_embeddings": 16,
            "out_hidden_size": text.get("hidden_size", 128),
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }


def real_qwen_config() -> dict[str, Any]:
    """The members of Qwen3.6-27B's config.json that give its dimensions."""
    config = qwen_config(
        head_dim=256,
        hidden_size=5120,
        intermediate_size=17408,
        linear_key_head_dim=128,
        linear_num_key_heads=16,
        linear_num_value_heads=48,
        linear_value_head_dim=128,
        num_attention_heads=24,
        num_hidden_layers=64,
        num_key_value_heads=4,
        vocab_size=248320,
    )
    config["vision_config"] |= {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_position_embeddings": 2304,
        "patch_size": 16,
    }
    return config


def qwen_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a Qwen3.6-shaped checkpoint (1199 for the real config)."""
    text, vision = config["text_config"], config["vision_config"]
    hidden, mlp, vocab = text["hidden_size"], text["intermediate_size"], text["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.language_model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(text["num_hidden_layers"]):
        prefix = f"model.language_model.layers.{layer}."
        full = layer % text["full_attention_interval"] == text["full_attention_interval"] - 1
        shapes |= {prefix + name: shape for name, shape in (_attention(text) if full else _gdn(text)).items()}
        shapes |= {prefix + name: shape for name, shape in _block(hidden, mlp).items()}
    shapes |= {"model.language_model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}
    shapes |= {"mtp.fc.weight": (hidden, 2 * hidden)}
    shapes |= {f"mtp.pre_fc_norm_{part}.weight": (hidden,) for part in ("embedding", "hidden")}
    mtp_layer = {**_attention(text), **_block(hidden, mlp)}
    shapes |= {f"mtp.layers.0.{name}": shape for name, shape in mtp_layer.items()}
    return {**shapes, "mtp.norm.weight": (hidden,), **_vision(vision)}


def _block(hidden: int, mlp: int) -> dict[str, tuple[int, ...]]:
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (mlp, hidden),
        "mlp.up_proj.weight": (mlp, hidden),
        "mlp.down_proj.weight": (hidden, mlp),
    }


def _attention(text: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    hidden, head = text["hidden_size"], text["head_dim"]
    query, key = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
    return {
        "self_attn.q_proj.weight": (2 * query, hidden),
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.v_proj.weight": (key, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
    }


def _gdn(text: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    hidden, heads = text["hidden_size"], text["linear_num_value_heads"]
    key = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    value = heads * text["linear_value_head_dim"]
    return {
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.conv1d.weight": (2 * key + value, 1, text["linear_conv_kernel_dim"]),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.in_proj_qkv.weight": (2 * key + value, hidden),
        "linear_attn.in_proj_z.weight": (value, hidden),
        "linear_attn.norm.weight": (text["linear_value_head_dim"],),
        "linear_attn.out_proj.weight": (hidden, value),
    }


def _vision(vision: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    width, mlp, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    merged = width * vision["spatial_merge_size"] ** 2
    weights = {
        "patch_embed.proj": (width, vision["in_channels"], vision["temporal_patch_size"], patch, patch),
        "merger.linear_fc1": (merged, merged),
        "merger.linear_fc2": (vision["out_hidden_size"], merged),
        "merger.norm": (width,),
    }
    for block in range(vision["depth"]):
        prefix = f"blocks.{block}."
        weights |= {
            prefix + "attn.qkv": (3 * width, width),
            prefix + "attn.proj": (width, width),
            prefix + "mlp.linear_fc1": (mlp, width),
            prefix + "mlp.linear_fc2": (width, mlp),
            prefix + "norm1": (width,),
            prefix + "norm2": (width,),
        }
    shapes = {f"model.visual.{name}.weight": shape for name, shape in weights.items()}
    shapes |= {f"model.visual.{name}.bias": shape[:1] for name, shape in weights.items()}
    return {**shapes, "model.visual.pos_embed.weight": (vision["num_position_embeddings"], width)}


def random_tensors(shapes: Mapping[str, tuple[int, ...]], dtype: str = "BF16", seed: int = 0) -> dict[str, Random]:
    """One seeded tensor for each name and shape."""
    return {name: Random(shape, dtype, seed + index) for index, (name, shape) in enumerate(shapes.items())}


def write_qwen(folder: Path, config: Mapping[str, Any] | None = None, shards: int = 3, seed: int = 0) -> Path:
    """Write a Qwen3.6-shaped checkpoint with its six resources; the tokenizer knows 7 ids fewer than the vocabulary."""
    config = config or qwen_config()
    write_checkpoint(folder, random_tensors(qwen_shapes(config), seed=seed), config, shards)
    ids = config["text_config"]["vocab_size"] - 7
    vocabulary = {f"token{i}": i for i in range(ids - 4)}
    added = [{"id": ids - 4 + i, "content": f"<|{i}|>", "special": i != 1} for i in range(4)]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added}))
    # The config's own table marks one id special that tokenizer.json does not, and unmarks another.
    decoder = {str(ids - 3): {"special": True}, str(ids - 1): {"special": False}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    for name in ("generation_config", "preprocessor_config", "video_preprocessor_config"):
        (folder / f"{name}.json").write_text(json.dumps({"name": name}))
    return folder


def write_counts(path: Path, vocab: int, rows: int = 2, seed: int = 5) -> np.ndarray:
    """Write an I64 counts file with many ties and return row 0."""
    counts = np.random.default_rng(seed).integers(0, 40, (rows, vocab)).astype("<i8")
    counts.tofile(path)
    return counts[0]


def llama_config(**members: Any) -> dict[str, Any]:
    """A small config.json of the dense Llama family."""
    return {
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 256,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    } | members


def llama_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a dense Llama or Qwen3 checkpoint."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim", hidden // heads)
    query, key = heads * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        block = _block(hidden, config["intermediate_size"]) | {
            "self_attn.q_proj.weight": (query, hidden),
            "self_attn.k_proj.weight": (key, hidden),
            "self_attn.v_proj.weight": (key, hidden),
            "self_attn.o_proj.weight": (hidden, query),
        }
        if config["model_type"] == "qwen3":
            block |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def minilm_tensors(layers: int = 2, hidden: int = 128, seed: int = 0) -> dict[str, Tensor]:
    """F32 tensors named like MiniLM's, and its I64 position ids."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (200, hidden),
        "embeddings.position_embeddings.weight": (64, hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    for layer in range(layers):
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= _dense(f"encoder.layer.{layer}.{name}", hidden, hidden)
        shapes |= _dense(f"encoder.layer.{layer}.intermediate.dense", 4 * hidden, hidden)
        shapes |= _dense(f"encoder.layer.{layer}.output.dense", hidden, 4 * hidden)
    return {**random_tensors(shapes, "F32", seed), "embeddings.position_ids": np.arange(64, dtype=np.int64)[None]}


def _dense(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
