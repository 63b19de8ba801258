"""The portable kernel compiled for the GPUs it serves, and for two it does not, on a machine without any of them."""

import jax
import pytest

from benchmarks import aot, sass
from pallas_kernels.planes import plane_bytes

REASON = aot.unavailable_reason()
if REASON is None and jax.__version_info__ < (0, 12, 0):
    REASON = f"jax {jax.__version__} is older than 0.12, the first with an mma for every GPU"
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.timeout(300)]

N, K = 4096, 5120
#: Instructions that unpack a weight at most, with those that make addresses: what compiles today and a little room.
UNPACK = {"q4": 3.0, "q5": 3.5, "w8": 3.7, "nvfp4": 4.1}


@pytest.mark.parametrize(
    ("gpu", "kind", "m"), [("a100", "q4", 1), ("rtx4090", "w8", 1024), ("rtx5090", "q5", 16), ("b200", "nvfp4", 64)]
)
def test_compiles_without_spills_and_reads_the_packed_planes_in_place(gpu, kind, m):
    report = aot.compile_case(aot.kernel_case("portable_mma", gpu, kind=kind, m=m, n=N, k=K, bias=True))
    assert (report.kernels, report.spill_bytes, report.stack_bytes) == (1, 0, 0)
    [program] = report.sass
    assert sass.count(program, "HMMA") > 0
    assert 0 < report.unpack_per_weight <= UNPACK[kind]
    # The copy engine came with compute capability 9.0; before it copies are asynchronous all the same.
    ampere = gpu in ("a100", "rtx4090")
    assert (report.tma_loads == 0, sass.count(program, "LDGSTS") > 0) == (ampere, ampere)
    # XLA writes x in the unpacker's order and, where K is split, sums; no plane, let alone the weight.
    assert report.temporaries(at_least=plane_bytes(kind, N, K) // 2) == []
