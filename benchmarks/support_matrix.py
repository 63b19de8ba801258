"""README's matrix of compiled kernels, made from a saved table of `benchmarks.aot`.

    python -m benchmarks.aot --gpu all --tokens 1,1024 > benchmarks/results/aot.txt
    python -m benchmarks.support_matrix

The first compiles (jax >= 0.12, extra `aot`), the second rewrites README between the two marks. A cell is the most
registers a thread of that kernel needs for that format over the shapes of the table, and the bytes it spills where it
does. Leaves out the Triton kernels (benchmarks.aot_triton).
"""

from pathlib import Path

TABLE = Path(__file__).parent / "results" / "aot.txt"
README = Path(__file__).parents[1] / "README.md"
MARKS = ("<!-- made by python -m benchmarks.support_matrix -->\n", "<!-- end -->\n")
KINDS = {"q4": "Q4", "q5": "Q5", "q6": "Q6", "w8": "W8", "nvfp4": "NVFP4", "fp8": "FP8"}


def parse(text: str) -> dict[tuple[str, str], dict[str, tuple[int, int]]]:
    """Most registers and spill bytes by kind, for each GPU and kernel of a printed table."""
    found: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
    gpu = ""
    for words in map(str.split, text.splitlines()):
        if len(words) == 1:
            gpu = words[0]
        elif len(words) > 6 and words[1] in KINDS:
            kernel, kind, registers, spill = words[0], words[1], int(words[5]), int(words[6])
            cells = found.setdefault((gpu, kernel), {})
            before = cells.get(kind, (0, 0))
            cells[kind] = (max(before[0], registers), max(before[1], spill))
    return found


def render(text: str) -> str:
    """The Markdown of a printed table."""
    lines = [f"| GPU | kernel | {' | '.join(KINDS.values())} |", f"|---|---|{'---|' * len(KINDS)}"]
    for (gpu, kernel), cells in parse(text).items():
        row = [_cell(cells.get(kind)) for kind in KINDS]
        lines.append(f"| {gpu.upper()} | `{kernel}` | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _cell(found: tuple[int, int] | None) -> str:
    if found is None:
        return "-"
    registers, spill = found
    return f"{registers}, spills {spill} B" if spill else str(registers)


def replaced(readme: str, matrix: str) -> str:
    """README with the matrix between its marks."""
    before, _, rest = readme.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}{matrix}{MARKS[1]}{after}"


if __name__ == "__main__":
    README.write_text(replaced(README.read_text(encoding="utf-8"), render(TABLE.read_text())), encoding="utf-8")
