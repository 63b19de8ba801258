"""README's matrix of compiled kernels, made from the saved tables of `benchmarks.aot` and `benchmarks.aot_triton`.

    python -m benchmarks.aot --gpu all --tokens 1,1024 > benchmarks/results/aot.txt
    python -m benchmarks.aot_triton --tokens 1,1024 > benchmarks/results/aot-triton.txt
    python -m benchmarks.support_matrix

The first two compile (jax >= 0.12 and the extra `aot`; the extra `triton`), the third rewrites README between the two
marks. A cell is the most registers a thread of that kernel needs for that format over the shapes of the table, and the
bytes it spills where it does. A table's first line says what it was made with. Leaves out compiling.
"""

from pathlib import Path

_RESULTS = Path(__file__).parent / "results"
TABLES = (_RESULTS / "aot.txt", _RESULTS / "aot-triton.txt")
README = Path(__file__).parents[1] / "README.md"
MARKS = ("<!-- made by python -m benchmarks.support_matrix -->\n", "<!-- end -->\n")
KINDS = {"q4": "Q4", "q5": "Q5", "q6": "Q6", "w8": "W8", "nvfp4": "NVFP4", "fp8": "FP8"}
_MADE_WITH = "made with "


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
        row = [_cell(cells.get(kind)) for kind in KINDS]
        lines.append(f"| {gpu.upper()} | `{kernel}` | {' | '.join(row)} |")
    said = [f"`benchmarks/results/{path.name}`: {made_with(text)}" for path, text in zip(TABLES, texts, strict=True)]
    return "\n".join([*lines, "", ";\n".join(said) + "."]) + "\n"


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
    tables = [path.read_text(encoding="utf-8") for path in TABLES]
    README.write_text(replaced(README.read_text(encoding="utf-8"), render(tables)), encoding="utf-8")
