"""`ninfer-jax generate` and `ninfer-jax from-gguf`: text from an artifact, and a checkpoint from a GGUF file."""

import time
from pathlib import Path

import click
import jax.numpy as jnp

from ninfer_jax.cli.options import FILE, force_option
from ninfer_jax.models import TextModel, write_checkpoint

_CHAT = "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


@click.command("generate", short_help="Continue a text with the Llama model in the artifact FILE.")
@click.argument("file", type=FILE)
@click.option("--prompt", required=True, help="Text to continue.")
@click.option("--chat", is_flag=True, help="Wrap the prompt as one user turn of a ChatML model.")
@click.option("--max-new-tokens", type=click.IntRange(1, 8192), default=64, show_default=True)
@click.option("--temperature", type=click.FloatRange(0.0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of sampling.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Type of activations and cache.",
)
def generate_command(
    file: Path, prompt: str, chat: bool, max_new_tokens: int, temperature: float, seed: int, dtype: str
) -> None:
    """Continue a text with the Llama-architecture model in the artifact FILE.

    FILE is what `convert --recipe llama` makes; its weights stay packed in memory. The text goes to standard output,
    the rate to standard error.
    """
    model = TextModel.from_artifact(file, jnp.dtype(dtype))
    text = _CHAT.format(prompt=prompt) if chat else prompt
    started = time.perf_counter()
    answer = model.generate(text, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    seconds = time.perf_counter() - started
    click.echo(answer)
    tokens = len(model.tokenizer.encode(answer, add_special_tokens=False).ids)
    click.echo(f"{tokens} tokens in {seconds:.1f} s, compilation included", err=True)


@click.command("from-gguf", short_help="Write the Llama model in GGUF as a checkpoint FOLDER.")
@click.argument("gguf", type=FILE)
@click.argument("folder", type=FILE)
@force_option
def from_gguf_command(gguf: Path, folder: Path, force: bool) -> None:
    """Write the Llama-architecture model in the file GGUF as a BF16 checkpoint FOLDER, tokenizer included.

    The folder is then converted with `convert --recipe llama`. Needs the extras gguf and models.
    """
    target = write_checkpoint(gguf, folder, overwrite=force)
    click.echo(f"{target}: model.safetensors, config.json, tokenizer.json")
