"""A GGUF file made here, through `from-gguf`, `convert --recipe llama` and `generate`, as a user runs them."""

import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from ninfer_jax.container import open_artifact
from ninfer_jax.errors import ConversionError, SourceError, UnsupportedError
from ninfer_jax.models import TextModel, write_checkpoint
from tests.models import tiny
from tests.oracle.transformers import llama_logits

gguf = pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _bf16(weights):
    return {name: value.astype(ml_dtypes.bfloat16).astype(np.float32) for name, value in weights.items()}


def _interleave(weight, heads):
    """Row 2i of a head comes from row i, row 2i + 1 from row i + d/2: the order of rotary lanes in GGUF."""
    dim = weight.shape[0] // heads
    order = [h * dim + i + half * (dim // 2) for h in range(heads) for i in range(dim // 2) for half in (0, 1)]
    return weight[order]


def _write_gguf(path, weights, architecture="llama"):
    """The tiny model as a GGUF file; its vocabulary is one token a printable byte."""
    writer = gguf.GGUFWriter(str(path), architecture)
    config = tiny.CONFIG
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(128)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<|end|>", *(chr(33 + index) for index in range(94)), "ab"])
    writer.add_token_types([3] + [1] * 95)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    heads = {"self_attn.q_proj": config["num_attention_heads"], "self_attn.k_proj": config["num_key_value_heads"]}
    for name, value in weights.items():
        words = name.split(".")
        if words[1] == "layers":
            part = ".".join(words[3:-1])
            value = _interleave(value, heads[part]) if part in heads else value
            name = f"blk.{words[2]}.{PARTS[part]}.weight"
        else:
            name = {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[words[1]]
        writer.add_tensor(name, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _run(*arguments):
    done = subprocess.run([sys.executable, "-m", "ninfer_jax", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _check_refusals(model):
    for wrong in ({"temperature": -1.0}, {"temperature": float("nan")}, {"max_new_tokens": 0}):
        with pytest.raises(UnsupportedError, match="allowed: a finite temperature"):
            model.generate("abc", **wrong)
    assert model.context is not None
    with pytest.raises(UnsupportedError, match=f"2 tokens and {model.context - 1} new ones exceed the model's context"):
        model.generate("abc", max_new_tokens=model.context - 1)


def test_gguf_to_text_on_the_command_line(tmp_path):
    weights = _bf16(tiny.weights(6))
    source = _write_gguf(tmp_path / "tiny.gguf", weights)
    _run("from-gguf", source, tmp_path / "checkpoint")
    with safe_open(tmp_path / "checkpoint" / "model.safetensors", "flax") as file:
        assert set(file.keys()) == set(weights)
        for name, value in weights.items():
            np.testing.assert_array_equal(np.asarray(file.get_tensor(name)).astype(np.float32), value)

    artifact = tmp_path / "tiny.ninfer"
    options = ("--set", "linear=BF16", "--set", "embedding=BF16")
    _run("convert", tmp_path / "checkpoint", artifact, "--recipe", "llama", *options, "--quiet")
    with open_artifact(artifact) as opened:
        assert json.loads(bytes(opened.payload("config.json")))["tie_word_embeddings"] is True

    printed = _run("generate", artifact, "--prompt", "abc", "--max-new-tokens", "5").rstrip("\n")
    model = TextModel.from_artifact(artifact)
    _check_refusals(model)
    tokens = model.tokenizer.encode("abc").ids
    assert tokens == [95, 67]  # "ab" is one token by its merge, "c" is byte 99
    expected = list(tokens)
    for _ in range(5):
        expected.append(int(llama_logits(weights, tiny.CONFIG, expected)[-1].argmax()))
    assert 0 not in expected
    assert printed == "".join(chr(32 + token) if token < 95 else "ab" for token in expected[2:])


def test_other_architectures_and_other_files_are_refused(tmp_path):
    source = _write_gguf(tmp_path / "other.gguf", tiny.weights(), architecture="mamba")
    with pytest.raises(UnsupportedError, match="'mamba'"):
        write_checkpoint(source, tmp_path / "out")
    (tmp_path / "noise.gguf").write_bytes(bytes(range(256)))
    with pytest.raises(SourceError, match=r"noise\.gguf"):
        write_checkpoint(tmp_path / "noise.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_replaced_unasked_and_nothing_is_left_half_written(tmp_path, monkeypatch):
    source = _write_gguf(tmp_path / "tiny.gguf", tiny.weights())
    with pytest.raises(ConversionError, match="is a file"):
        write_checkpoint(source, source)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(ConversionError, match=r"model\.safetensors.*--force"):
        write_checkpoint(source, folder)

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.numpy.save_file", fail)
        with pytest.raises(OSError, match="No space"):
            write_checkpoint(source, folder, overwrite=True)
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == b"precious"
    write_checkpoint(source, folder, overwrite=True)
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.json", "tokenizer.json"}


def test_metadata_that_lack_a_key_are_named(tmp_path):
    writer = gguf.GGUFWriter(str(tmp_path / "bare.gguf"), "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(SourceError, match=r"lack 'llama\.attention\.head_count'"):
        write_checkpoint(tmp_path / "bare.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
