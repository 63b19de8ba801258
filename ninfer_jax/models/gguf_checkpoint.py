"""Turn a GGUF file of a Llama-architecture model into a Hugging Face style checkpoint directory.

Tensors are dequantized by the `gguf` package (extra `gguf`), rounded to BF16 and written as `model.safetensors`, beside
a `config.json` and a byte-level BPE `tokenizer.json` rebuilt from the file's metadata. Query and key rows, which GGUF
stores for interleaved rotary lanes, are put back in half-split order. Other architectures and tokenizers are refused.
"""

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError

from ninfer_jax.errors import ConversionError, SourceError, UnsupportedError
from ninfer_jax.sources import check_gguf_header

_FILES = ("config.json", "tokenizer.json", "model.safetensors")

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_CONTROL_TOKEN = 3  # tokenizer.ggml.token_type of a special token


def write_checkpoint(gguf_path: str | Path, directory: str | Path, *, overwrite: bool = False) -> Path:
    """Write `model.safetensors`, `config.json` and `tokenizer.json` of a GGUF file into a directory.

    Args:
        gguf_path: a GGUF file with `general.architecture = llama`.
        directory: created when missing; the weights appear in it last, and whole.
        overwrite: existing files of those names are replaced.

    Returns:
        The directory.

    Raises:
        UnsupportedError: the package `gguf` is missing, or the architecture or tokenizer is another one.
        SourceError: the file cannot be read as GGUF, or its metadata do not describe the model.
        ConversionError: the directory is a file, or holds files of those names.
    """
    path, target = Path(gguf_path), Path(directory)
    _check_target(target, overwrite)
    reader, metadata = _open(path)
    if metadata.get("general.architecture") != "llama":
        raise UnsupportedError(
            f"{path.name}: architecture {metadata.get('general.architecture')!r}; only 'llama' is supported"
        )
    try:
        config = _config(metadata, {tensor.name for tensor in reader.tensors})
        texts = {"config.json": json.dumps(config, indent=2) + "\n", "tokenizer.json": _tokenizer(metadata)}
        tensors = _tensors(reader, config)
    except KeyError as error:
        raise SourceError(f"{path.name}: its metadata lack {error}, which a llama model needs") from error
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise SourceError(f"{path.name}: its metadata and tensors do not fit: {error}") from error
    _publish(target, texts, tensors)
    return target


def _check_target(target: Path, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise ConversionError(f"{target} is a file; name a folder for the checkpoint")
    there = [name for name in _FILES if (target / name).exists()]
    if there and not overwrite:
        raise ConversionError(f"the folder {target} holds {there[0]}; name another, or replace it with --force")


def _open(path: Path) -> tuple[Any, dict[str, Any]]:
    """The reader of a GGUF file and its metadata."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise UnsupportedError("reading GGUF needs the package 'gguf': pip install 'ninfer-jax[gguf]'") from error
    check_gguf_header(path)
    try:
        reader = GGUFReader(str(path))
        return reader, {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:
        # The package lets whatever a broken file provokes escape: IndexError, KeyError, UnicodeDecodeError, ...
        raise SourceError(f"{path.name} is truncated or no valid GGUF file: {error}") from error


def _publish(target: Path, texts: dict[str, str], tensors: dict[str, np.ndarray]) -> None:
    """Write every file beside its name and rename them, the weights last."""
    from safetensors.numpy import save_file

    target.mkdir(parents=True, exist_ok=True)
    partial = {name: target / f".{name}.partial" for name in _FILES}
    try:
        for name, text in texts.items():
            partial[name].write_text(text, encoding="utf-8")
        save_file(tensors, partial[_FILES[-1]])
        for name in _FILES:
            os.replace(partial[name], target / name)
    except SafetensorError as error:
        raise ConversionError(f"{_FILES[-1]} cannot be written into {target}: {error}") from error
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)


def _config(metadata: dict[str, Any], names: set[str]) -> dict[str, Any]:
    heads = metadata["llama.attention.head_count"]
    hidden = metadata["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": metadata.get("llama.rope.dimension_count", hidden // heads),
        "max_position_embeddings": metadata["llama.context_length"],
        "rope_theta": metadata.get("llama.rope.freq_base", 10000.0),
        "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": "output.weight" not in names,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
    }


def _tensors(reader: Any, config: dict[str, Any]) -> dict[str, np.ndarray]:
    from gguf import dequantize

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        parts = tensor.name.split(".")
        if parts[0] == "blk" and len(parts) == 4 and parts[2] in _LAYER_NAMES:
            name = f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
            if parts[2] in heads:
                values = _half_split_rows(values, heads[parts[2]])
        elif tensor.name in _GLOBAL_NAMES:
            name = _GLOBAL_NAMES[tensor.name]
        elif tensor.name == "rope_freqs.weight":
            raise UnsupportedError("the GGUF file scales its rotary frequencies, which is not supported")
        else:
            raise UnsupportedError(f"the GGUF file has a tensor {tensor.name!r} outside the Llama architecture")
        tensors[name] = np.ascontiguousarray(values.astype(ml_dtypes.bfloat16))
    return tensors


def _half_split_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows (i, i + d/2) of a head are adjacent in GGUF; put them d/2 apart again."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(metadata: dict[str, Any]) -> str:
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError as error:
        raise UnsupportedError(
            "rebuilding the tokenizer needs the package 'tokenizers': pip install 'ninfer-jax[models]'"
        ) from error
    kind = (metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise UnsupportedError(f"tokenizer {kind} of the GGUF file; only ('gpt2', 'smollm') is supported")
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    # Digits are split one by one, then bytes are mapped to printable characters, as this vocabulary was trained.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    types = metadata["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer.to_str()
