"""The row gather compiled for the five GPUs it claims, on a machine without any of them."""

import jax
import pytest

from benchmarks import aot, sass

REASON = aot.unavailable_reason()
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.timeout(300)]
PORTABLE = pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="jax 0.12 is the first that compiles for this GPU")

# GPU, kind, rows taken, table, result: the registered embedding, every GPU, pieces of rows, both results.
CASES = [
    ("h100", "q6", 1024, 248320, 2048, "bfloat16"),
    ("h100", "nvfp4", 64, 4096, 1216, "float32"),
    ("b200", "fp8", 1, 248320, 5120, "bfloat16"),
    pytest.param("a100", "q5", 4096, 4096, 5120, "float32", marks=PORTABLE),
    pytest.param("rtx4090", "w8", 4096, 4096, 5120, "bfloat16", marks=PORTABLE),
    pytest.param("rtx5090", "q4", 16, 131072, 5120, "bfloat16", marks=PORTABLE),
]


@pytest.mark.parametrize(("gpu", "kind", "rows", "n", "k", "out"), CASES)
def test_compiles_to_one_kernel_that_reads_the_packed_planes_in_place(gpu, kind, rows, n, k, out):
    report = aot.compile_case(aot.kernel_case("row_gather", gpu, kind=kind, m=rows, n=n, k=k, out=out))
    assert (report.kernels, report.spill_bytes, report.stack_bytes, report.smem_bytes) == (1, 0, 0, 0)
    # Nothing but the kernel and views of its operands and result: no plane is copied, no other array written.
    assert {i["op"] for i in report.hlo} <= {"parameter", "bitcast", "constant", "custom-call"}
    [program] = report.sass
    assert sass.count(program, "FMUL") > 0
    # Results that are subnormal are kept, and a store takes 16 bytes a thread where it has as many.
    assert not [line for line in program.splitlines() if "FMUL.FTZ" in line or "F2F.FTZ" in line]
    assert ("ST.E.64" if kind in ("w8", "fp8") and out == "bfloat16" else "ST.E.128") in program
