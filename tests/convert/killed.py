"""Conversions killed at random times: `python -m tests.convert.killed FOLDER KILLS SEED`.

A program of its own, so that it can fork before JAX starts. FOLDER holds `checkpoint` and `recipe.toml`; every attempt
runs in a child that is killed with SIGKILL at a random time after its start or after its first block, and resumes what
the one before it left. The last line printed is JSON: how many kills hit a conversion, and how many of the attempts
found finished blocks.
"""

import json
import os
import random
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import NamedTuple

from ninfer_jax.convert import Settings, convert
from ninfer_jax.convert.resume import partial_path
from tests.convert.samples import SMALL_BLOCK

BLOCK_SECONDS = 0.01
"""Every block takes at least this long, so that a kill finds a conversion under way."""


class Death(NamedTuple):
    """A kill some seconds after the start, or after the first finished block."""

    seconds: float
    after_a_block: bool

    def prepare(self) -> None:
        """Start the clock."""
        timer = threading.Timer(self.seconds, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()


def attempt(folder: Path, resume: bool, death: Death | None) -> None:
    """Convert, and die on the way."""
    waiting = [death] if death is not None else []
    if death is not None and not death.after_a_block:
        waiting.pop().prepare()

    def progress(done: int, total: int, name: str) -> None:
        while waiting:
            waiting.pop().prepare()
        time.sleep(BLOCK_SECONDS)

    settings = Settings(
        block_bytes=SMALL_BLOCK,
        resume=resume,
        flush_seconds=0.05,
        hash_sources=False,
        progress=progress,
    )
    convert(folder / "checkpoint", folder / "out.ninfer", folder / "recipe.toml", settings)


def in_child(folder: Path, resume: bool, death: Death | None) -> int:
    """Run one attempt in a child; its wait status."""
    child = os.fork()
    if child == 0:
        try:
            attempt(folder, resume, death)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    return os.waitpid(child, 0)[1]


def can_resume(partial: Path) -> bool:
    """Whether a conversion that can be resumed is there; what died before that is removed."""
    journal = partial.with_name(f"{partial.name}.journal-0")
    if partial.exists() and journal.exists() and b'"plan"' in journal.read_bytes():
        return True
    partial.unlink(missing_ok=True)
    return False


def main(folder: Path, kills: int, seed: int) -> None:
    warnings.simplefilter("ignore", RuntimeWarning)  # JAX warns of forks; nothing of it runs here yet
    generator = random.Random(seed)
    out = folder / "out.ninfer"
    partial = partial_path(out)
    hits = found = 0
    while hits < kills:
        resume = can_resume(partial)
        found += resume and b'"crc"' in partial.with_name(f"{partial.name}.journal-0").read_bytes()
        status = in_child(folder, resume, Death(generator.uniform(0.0, 1.2), generator.random() < 0.75))
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            sys.exit(1)
        if out.exists():  # the conversion won
            out.unlink()
        else:
            hits += 1
    if in_child(folder, can_resume(partial), None):
        sys.exit(1)
    print(json.dumps({"hits": hits, "found": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
