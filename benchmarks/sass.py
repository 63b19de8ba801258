"""Read what ptxas and the disassembler say of a compiled kernel: registers, spills, loops, instructions a weight.

The loop that matters is the innermost one that multiplies: its instructions other than those of the tensor cores,
divided by the weights a thread unpacks in one turn, are the static cost of a weight. A wgmma of 64 rows and 16 columns
with the weights on its 64 row side consumes 1,024 weights, 8 a thread; so does the warp level mma of 16 rows and 16
columns, which several tokens' worth of mma share. Loads, synchronization and address arithmetic of the loop are all
counted; `unpack` counts only what turns codes into bfloat16.
"""

import dataclasses
import re
from collections import Counter

_LINE = re.compile(r"/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(?P<op>[A-Z][A-Z0-9_.]*)(?P<rest>.*)$")
_LABEL = re.compile(r"^\s*(\.L_x_\d+):")
_TARGET = re.compile(r"\(?(\.L_x_\d+)\)?")
#: Registers a store to tensor memory takes: what follows "STTM.", in lower case and so no part of the opcode.
_REGISTERS = re.compile(r"x(\d+) ")
_PTXAS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "spill_stores": re.compile(r"(\d+) bytes spill stores"),
    "spill_loads": re.compile(r"(\d+) bytes spill loads"),
    "stack": re.compile(r"(\d+) bytes stack frame"),
}
#: A thread's share of the weights of one wgmma, or of one register operand of a warp level mma.
WEIGHTS_A_PRODUCT = 8
_FRAGMENT = re.compile(r"R\d+, R(\d+)")
_FIRST = re.compile(r"\s*R(\d+)\b")
_FLOAT_OPS = ("FADD", "FMUL", "HADD2", "HFMA2", "HMUL2", "I2F", "I2FP", "F2F", "F2FP")
_INTEGER_OPS = ("IADD3", "IMAD", "LEA", "LOP3", "PRMT", "SGXT", "SHF", "VIADD")
UNPACK_OPS = frozenset({*_FLOAT_OPS, *_INTEGER_OPS})


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop that consumes weights, and no such loop inside it.

    Attributes:
      start, end: byte addresses of its first and last instruction.
      instructions: opcode without suffixes -> times it stands in the loop.
      weights: weights a thread unpacks in one turn.
    """

    start: int
    end: int
    instructions: Counter
    weights: int

    @property
    def hgmma(self) -> int:
        """Wgmma instructions in the loop."""
        return self.instructions["HGMMA"]

    @property
    def per_weight(self) -> float:
        """Every instruction of the loop but the tensor cores' own, a weight."""
        products = self.hgmma + self.instructions["HMMA"]
        return (sum(self.instructions.values()) - products) / self.weights

    @property
    def unpack_per_weight(self) -> float:
        """Integer, conversion and bfloat16 arithmetic of the loop, a weight."""
        return sum(count for op, count in self.instructions.items() if op in UNPACK_OPS) / self.weights


def parse_ptxas(text: str) -> dict[str, int]:
    """Largest registers, spill_stores, spill_loads and stack (bytes) of the kernels of one ptxas log."""
    return {key: max((int(v) for v in pattern.findall(text)), default=-1) for key, pattern in _PTXAS.items()}


def parse_sass(text: str) -> tuple[list[tuple[int, str, str]], dict[str, int]]:
    """Instructions (address, opcode with suffixes, operands) and the address each label stands before."""
    instructions: list[tuple[int, str, str]] = []
    pending: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label is not None:
            pending.append(label[1])
            continue
        match = _LINE.search(line)
        if match is None:
            continue
        address = int(match["address"], 16)
        labels.update(dict.fromkeys(pending, address))
        pending.clear()
        instructions.append((address, match["op"], match["rest"]))
    return instructions, labels


def count(text: str, opcode: str) -> int:
    """Times an opcode stands in the program, suffixes ignored."""
    return sum(op.split(".")[0] == opcode for _, op, _ in parse_sass(text)[0])


def weight_loops(text: str) -> list[Loop]:
    """The main loops of a program, whatever tensor cores it was made for."""
    return [*tensor_loops(text), *operand_loops(text), *warp_loops(text)]


def tensor_loops(text: str) -> list[Loop]:
    """Innermost loops with HGMMA instructions, in program order.

    Out of line waits stand after the program's EXIT and branch back into it; that is no loop.
    """
    found = _innermost(parse_sass(text), "HGMMA")
    return [Loop(start, end, inside, WEIGHTS_A_PRODUCT * inside["HGMMA"]) for start, end, inside in found]


def operand_loops(text: str) -> list[Loop]:
    """Innermost loops that store unpacked weights to tensor memory (STTM), two a register, in program order."""
    program = parse_sass(text)
    loops = []
    for start, end, inside in _innermost(program, "STTM"):
        stores = [rest for a, op, rest in program[0] if start <= a <= end and op.split(".")[0] == "STTM"]
        stored = sum(int(match[1]) for match in map(_REGISTERS.match, stores) if match)
        loops.append(Loop(start, end, inside, 2 * stored))
    return loops


def warp_loops(text: str) -> list[Loop]:
    """Innermost loops with HMMA instructions, whose first operand is weights, in program order."""
    program = parse_sass(text)
    return [
        Loop(start, end, inside, WEIGHTS_A_PRODUCT * _fragments(program[0], start, end))
        for start, end, inside in _innermost(program, "HMMA")
    ]


def _fragments(instructions: list[tuple[int, str, str]], start: int, end: int) -> int:
    """Different first operands of the HMMA instructions of a loop: one anew each time its first register is written.

    Unpacking writes a register at a time, so that no wider write has to be looked for.
    """
    current: set[str] = set()
    found = 0
    for _, op, rest in (line for line in instructions if start <= line[0] <= end):
        operand = _FRAGMENT.search(rest) if op.startswith("HMMA") else None
        if operand is not None and operand[1] not in current:
            current.add(operand[1])
            found += 1
        written = _FIRST.match(rest)
        if written is not None:
            current.discard(written[1])
    return found


def _innermost(
    program: tuple[list[tuple[int, str, str]], dict[str, int]], opcode: str
) -> list[tuple[int, int, Counter]]:
    """Start, end and instructions of the loops that hold an opcode and no such loop."""
    instructions, labels = program
    spans = set()
    for address, op, rest in instructions:
        target = _TARGET.search(rest)
        if op.split(".")[0] == "BRA" and target is not None and labels.get(target[1], address + 1) <= address:
            spans.add((labels[target[1]], address))
    loops = [(start, end, _inside(instructions, start, end)) for start, end in sorted(spans)]
    loops = [loop for loop in loops if loop[2][opcode] and not loop[2]["EXIT"]]
    return [loop for loop in loops if not any(o is not loop and loop[0] <= o[0] and o[1] <= loop[1] for o in loops)]


def _inside(instructions: list[tuple[int, str, str]], start: int, end: int) -> Counter:
    inside = Counter(op.split(".")[0] for address, op, _ in instructions if start <= address <= end)
    inside.pop("NOP", None)
    return inside
