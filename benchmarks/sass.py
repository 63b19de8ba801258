"""Read what ptxas and the disassembler say of a compiled kernel: registers, spills, loops, instructions a weight.

The loop that matters is the innermost one with tensor core instructions: its instructions other than those, divided by
the weights a thread unpacks in one turn, are the static cost of a weight. A wgmma of 64 rows and 16 columns with the
weights on its 64 row side consumes 1,024 weights, 8 a thread. Loads, synchronization and address arithmetic of the loop
are all counted; `unpack` counts only what turns codes into bfloat16.
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
WEIGHTS_PER_HGMMA_THREAD = 8
_FLOAT_OPS = ("FADD", "FMUL", "HADD2", "HFMA2", "HMUL2", "I2F", "I2FP", "F2F", "F2FP")
_INTEGER_OPS = ("IADD3", "IMAD", "LEA", "LOP3", "PRMT", "SGXT", "SHF", "VIADD")
UNPACK_OPS = frozenset({*_FLOAT_OPS, *_INTEGER_OPS})


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop with tensor core instructions and no loop with any inside it.

    Attributes:
      start, end: byte addresses of its first and last instruction.
      instructions: opcode without suffixes -> times it stands in the loop.
    """

    start: int
    end: int
    instructions: Counter

    @property
    def hgmma(self) -> int:
        """Tensor core instructions in the loop."""
        return self.instructions["HGMMA"]

    @property
    def per_weight(self) -> float:
        """Every other instruction of the loop, a weight."""
        return (sum(self.instructions.values()) - self.hgmma) / (WEIGHTS_PER_HGMMA_THREAD * self.hgmma)

    @property
    def unpack_per_weight(self) -> float:
        """Integer, conversion and bfloat16 arithmetic of the loop, a weight."""
        unpack = sum(count for op, count in self.instructions.items() if op in UNPACK_OPS)
        return unpack / (WEIGHTS_PER_HGMMA_THREAD * self.hgmma)


@dataclasses.dataclass(frozen=True)
class OperandLoop:
    """A loop that stores unpacked weights to tensor memory and no loop with such stores inside it.

    Attributes:
      start, end: byte addresses of its first and last instruction.
      instructions: opcode without suffixes -> times it stands in the loop.
      weights: weights a thread stores in one turn, two a register.
    """

    start: int
    end: int
    instructions: Counter
    weights: int

    @property
    def per_weight(self) -> float:
        """Every instruction of the loop, a weight."""
        return sum(self.instructions.values()) / self.weights

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


def tensor_loops(text: str) -> list[Loop]:
    """Innermost loops with HGMMA instructions, in program order.

    Out of line waits stand after the program's EXIT and branch back into it; that is no loop.
    """
    return [Loop(start, end, inside) for start, end, inside in _innermost(parse_sass(text), "HGMMA")]


def operand_loops(text: str) -> list[OperandLoop]:
    """Innermost loops that store unpacked weights to tensor memory (STTM), in program order."""
    program = parse_sass(text)
    loops = []
    for start, end, inside in _innermost(program, "STTM"):
        stores = [rest for a, op, rest in program[0] if start <= a <= end and op.split(".")[0] == "STTM"]
        stored = sum(int(match[1]) for match in map(_REGISTERS.match, stores) if match)
        loops.append(OperandLoop(start, end, inside, 2 * stored))
    return loops


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
