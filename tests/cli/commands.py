"""Running the command in a process of its own, as a user does."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(**extra: str) -> dict[str, str]:
    """An environment in which the package is found, on CPU."""
    found = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "COLUMNS": "200"} | extra
    return {name: value for name, value in found.items() if value}


def run(*arguments: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m ninfer_jax` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "ninfer_jax", *map(str, arguments)],
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def start(*arguments: str | Path, **extra: str) -> subprocess.Popen[str]:
    """Start `python -m ninfer_jax`."""
    return subprocess.Popen(
        [sys.executable, "-m", "ninfer_jax", *map(str, arguments)],
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
