"""Encoders and decoders give the same words sharded over eight virtual CPU devices as on one."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_words_do_not_depend_on_sharding() -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    child = subprocess.run(
        [sys.executable, "-m", "tests.codecs.sharded_child"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.count(": equal") == 12
