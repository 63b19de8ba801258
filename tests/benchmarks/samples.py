"""Small results files for the tests of what reads them."""

from benchmarks.harness import Timing
from benchmarks.records import OURS, Record, Results, timed_record

ENVIRONMENT = {"commit": "abc", "device": "cpu", "jax": "0.10.2"}
MACHINE = {"copy_bytes_per_second": 1e10, "matrix_flops": 1e11}


def product(implementation: str, seconds: float, case: str = "weight m=1") -> Record:
    """A record of a product of 1 MB and 4 MFLOP, floor 100 microseconds on `MACHINE`."""
    timing = Timing(2 * seconds, seconds)
    return timed_record("matmul", case, implementation, timing, work=4e-3, unit="GFLOP/s", nbytes=10**6, flops=4e6)


def run_of(*records: Record, **fields) -> Results:
    """A run with those records."""
    return Results(fields.pop("environment", ENVIRONMENT), fields.pop("machine", MACHINE), records, **fields)


def two_implementations(ours: float, peer: float) -> Results:
    """A run with our record and XLA's, of so many seconds."""
    return run_of(product(OURS, ours), product("xla-bf16", peer))
