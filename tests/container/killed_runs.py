"""Runs that are killed: `python -m tests.container.killed_runs FOLDER`, with SIGKILL, at each of `STAGES`.

A program of its own, so that it can fork without JAX threads. Every run writes to FOLDER/<stage>/out.ninfer. The last
line printed is the wait status of each run, as JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path

from ninfer_jax.container import ArtifactPlan, ArtifactWriter, ResourceEntry, plan_artifact

STAGES = ("created", "half written", "all written", "before the rename")
PIECE, PIECES = 4096, 16


def plan() -> ArtifactPlan:
    return plan_artifact(("m", "w"), [ResourceEntry("r", PIECE * PIECES)])


def piece(index: int) -> bytes:
    return bytes([index + 1]) * PIECE


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(stage: str, destination: Path) -> None:
    """Write an artifact and die on the way."""
    with ArtifactWriter(destination, plan()) as writer:
        if stage == "created":
            die()
        for index in range(PIECES):
            writer.write("r", index * PIECE, piece(index))
            if stage == "half written" and index == PIECES // 2:
                die()
        if stage == "all written":
            die()
        os.replace = lambda *_: die()
        writer.publish()


def main(folder: Path) -> None:
    status = {}
    for stage in STAGES:
        (folder / stage).mkdir()
        child = os.fork()
        if child == 0:
            run(stage, folder / stage / "out.ninfer")
            os._exit(0)
        status[stage] = os.waitpid(child, 0)[1]
    print(json.dumps(status))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
