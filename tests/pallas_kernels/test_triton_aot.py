"""The Triton kernels compiled for five GPUs on a machine without any of them."""

import re

import pytest

from benchmarks import aot_triton
from pallas_kernels.tiling import WEIGHT_KINDS
from pallas_kernels.triton.dispatch import missing_reason

REASON = missing_reason()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.mark.parametrize("gpu", aot_triton.DEVICES)
@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_compiles_for_tensor_cores_without_spills(gpu, kind):
    n, k = (4352, 4352) if kind == "nvfp4" else (4304, 4304)  # 4304 ends in the middle of a tile and of a group
    for m in (1, 1024):
        report = aot_triton.compile_matmul(kind, m, n, k, gpu)
        assert report.spill_bytes == 0
        assert report.registers > 0
        assert report.tensor_instructions > 0
    gather = aot_triton.compile_gather(kind, n, k, gpu)
    assert (gather.spill_bytes, gather.tensor_instructions) == (0, 0)


def test_prints_the_table(capsys):
    aot_triton.main(["--gpu", "a100", "--tokens", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"made with jax [\d.]+, jax-triton [\d.]+, triton [\d.]+, ptxas [\d.]+", lines[0])
    assert lines[1] == "a100"
    for kernel in ("triton_matmul", "triton_gather"):
        assert sum(line.startswith(kernel) for line in lines) == 8
