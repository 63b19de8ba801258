"""README's matrix of compiled kernels, made from the saved tables of `benchmarks.aot` and `benchmarks.aot_triton`.

    python -m benchmarks.aot --gpu all --tokens 1,1024 > benchmarks/results/aot.txt
    python -m benchmarks.aot_triton --tokens 1,1024 > benchmarks/results/aot-triton.txt
    python -m benchmarks.support_matrix

The first two compile (jax >= 0.12 and the extra `aot`; the extra `triton`), the third rewrites README between the two
marks. A cell is the most, over the shapes of the table, of the registers a thread of that kernel has for that format,
of the instructions that unpack a weight, where they are counted, and of the bytes it spills, where it does. A table's
first line says what it was made with. Leaves out compiling.
"""

import math
from pathlib import Path
from typing import NamedTuple

_RESULTS = Path(__file__).parent / "results"
TABLES = (_RESULTS / "aot.txt", _RESULTS / "aot-triton.txt")
README = Path(__file__).parents[1] / "README.md"
MARKS = ("<!-- made by python -m benchmarks.support_matrix -->\n", "<!-- end -->\n")
KINDS = {"q4": "Q4", "q5": "Q5", "q6": "Q6", "w8": "W8", "nvfp4": "NVFP4", "fp8": "FP8"}
_MADE_WITH = "made with "
#: The column of those instructions; the Triton kernels' table has none, because their warps share what they unpack.
_HEADING = "unpack/w"


class Cell(NamedTuple):
    """What was made of a kernel for a format: registers, spilled bytes, instructions that unpack a weight or nan."""

    registers: int
    spill: int
    unpack: float

    def __str__(self) -> str:
        unpack = "" if math.isnan(self.unpack) else f" / {self.unpack:.1f}"
        return f"{self.registers}{unpack}" + (f", spills {self.spill} B" if self.spill else "")


def parse(text: str) -> dict[tuple[str, str], dict[str, Cell]]:
    """The cells by kind, for each GPU and kernel of a printed table."""
    found: dict[tuple[str, str], dict[str, Cell]] = {}
    gpu, place = "", 0
    for words in map(str.split, text.splitlines()):
        if len(words) == 1:
            gpu = words[0]
        elif _HEADING in words:
            place = words.index(_HEADING) - words[: words.index(_HEADING)].count("KiB")
        elif len(words) > 6 and words[1] in KINDS:
            cell = Cell(int(words[5]), int(words[6]), float(words[place]) if place else math.nan)
            cells = found.setdefault((gpu, words[0]), {})
            other = cells.get(words[1], cell)
            cells[words[1]] = Cell(
                max(cell.registers, other.registers), max(cell.spill, other.spill), max(cell.unpack, other.unpack)
            )
    return found


def made_with(text: str) -> str:
    """The versions of the compilers that a printed table begins with.

    Raises:
      ValueError: it begins with something else.
    """
    first = text.partition("\n")[0]
    if not first.startswith(_MADE_WITH):
        raise ValueError(f"the table begins with {first!r}, not with {_MADE_WITH!r} and versions: print it anew")
    return first.removeprefix(_MADE_WITH)


def render(texts: list[str]) -> str:
    """The Markdown of printed tables: rows of one GPU together, in the order of the first table."""
    lines = [f"| GPU | kernel | {' | '.join(KINDS.values())} |", f"|---|---|{'---|' * len(KINDS)}"]
    rows = [row for text in texts for row in parse(text).items()]
    gpus = list(dict.fromkeys(gpu for (gpu, _), _ in rows))
    for (gpu, kernel), cells in sorted(rows, key=lambda row: gpus.index(row[0][0])):
        row = [str(cells.get(kind, "-")) for kind in KINDS]
        lines.append(f"| {gpu.upper()} | `{kernel}` | {' | '.join(row)} |")
    said = [made_with(text) for text in texts]
    return "\n".join([*lines, "", f"Made with {said[0]}; the Triton kernels with {said[1]}."]) + "\n"


def replaced(readme: str, matrix: str) -> str:
    """README with the matrix between its marks."""
    before, _, rest = readme.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}{matrix}{MARKS[1]}{after}"


if __name__ == "__main__":
    tables = [path.read_text(encoding="utf-8") for path in TABLES]
    README.write_text(replaced(README.read_text(encoding="utf-8"), render(tables)), encoding="utf-8")
