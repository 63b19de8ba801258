"""Products over eight virtual CPU devices, in a process of their own (the device count is fixed when jax starts)."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_products_over_eight_devices() -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    child = subprocess.run(
        [sys.executable, "-m", "tests.ops.sharded_child"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    plain, epilogues, banks, rows = 6 * 2 * 2 + 3 * 2 + 4, (2 + 1) * 2 + 2 * (2 + 2), 6 + 3 + 3 + 1, 2
    assert child.stdout.count(": right") == plain + epilogues + banks + rows
