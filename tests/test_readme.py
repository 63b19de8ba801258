"""What README says: its commands exist, its Python runs, its table of GPU kernels is what the dispatch does."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import support_matrix
from ninfer_jax.cli import main
from ninfer_jax.container import ArtifactWriter, Identity, TensorEntry, plan_artifact
from ninfer_jax.formats import FORMATS
from ninfer_jax.layouts import layout_of
from pallas_kernels import KNOWN_HARDWARE

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
GPU_NAMES = {"A100": "a100", "B200": "b200", "H100": "h100", "H200": "h200", "RTX 40": "rtx4090", "RTX 50": "rtx5090"}


def test_every_command_exists():
    named = set(re.findall(r"^ninfer-jax ([a-z-]+)", README, re.MULTILINE)) | {"demo", "support"}
    assert named == set(main.commands)


def test_the_table_of_formats_names_all_and_their_layouts():
    rows = re.findall(r"^\| (`[A-Z][^|]*) \|[^|]*\|[^|]*\| `([a-z0-9-]+)` \|$", README, re.MULTILINE)
    said = {name: layout for names, layout in rows for name in re.findall(r"`(\w+)`", names)}
    assert said == {name: layout_of(name).name for name in FORMATS}


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="the portable kernel needs jax 0.12")
def test_the_table_of_gpu_kernels_is_what_the_dispatch_does():
    from pallas_kernels.mosaic_gpu.dispatch import explain

    rows = re.findall(r"^\| ([^|]+) \(sm_[^|]*\) \| `(\w+)` \| `(\w+)` \|", README, re.MULTILINE)
    said = {GPU_NAMES[gpu.strip()]: kernels for gpus, *kernels in rows for gpu in gpus.split(",")}
    found = {
        name: [explain(kind="q4", m=m, n=4096, k=4096, hardware=hardware).kernel for m in (16, 17)]
        for name, hardware in KNOWN_HARDWARE.items()
    }
    assert said == found


def test_the_matrix_of_compiled_kernels_is_that_of_the_results_files():
    texts = [path.read_text() for path in support_matrix.TABLES]
    assert support_matrix.replaced(README, support_matrix.render(texts)) == README
    for text, tools in zip(texts, (("jax", "ptxas"), ("jax", "jax-triton", "triton", "ptxas")), strict=True):
        assert re.fullmatch(", ".join(rf"{tool} \d[\d.]*" for tool in tools), support_matrix.made_with(text))
        rows = support_matrix.parse(text)
        assert {gpu for gpu, _ in rows} == {"h100", "b200", "a100", "rtx4090", "rtx5090"}
        assert all(set(cells) == set(support_matrix.KINDS) for (_, name), cells in rows.items() if "w4a4" not in name)


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = plan_artifact(Identity("m", "w"), [TensorEntry("norm", (4,), "FP32")])
    with ArtifactWriter("model.ninfer", plan) as writer:
        writer.write("norm", 0, np.ones(4, np.float32).tobytes())
        writer.publish()
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    scope: dict = {}
    exec(example, scope)
    assert scope["y"].shape == (8, 1024)
    assert scope["dx"].shape == scope["x"].shape
    assert list(scope["weights"]) == ["norm"]
    assert scope["payload"].nbytes == scope["w"].nbytes
    assert bool(scope["ok"])
