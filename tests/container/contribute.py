"""Another process of a conversion: `python -m tests.container.contribute PARTIAL FIRST` writes every second piece."""

import sys

from ninfer_jax.container import ArtifactWriter
from tests.container.killed_runs import PIECE, PIECES, piece, plan

if __name__ == "__main__":
    with ArtifactWriter.attach(sys.argv[1], plan()) as part:
        for index in range(int(sys.argv[2]), PIECES, 2):
            part.write("r", index * PIECE, piece(index))
        part.sync()
