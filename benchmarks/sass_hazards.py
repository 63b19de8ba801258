"""What would make a disassembled Hopper kernel wrong, or hang, and what no interpreter sees.

`hazards` finds registers that are touched while a wgmma that uses them is still running, `unfenced` results that the
copy engine may take before threads' stores are there, `overdrawn` warpgroups that wait for registers nobody gives up.

A wgmma reads its register operand and updates its accumulator until a wait says that its group is done; the compiler
has to keep both alone until then. Groups end at an instruction marked gsb0, and `WARPGROUP.DEPBAR.LE gsb0, n` waits
until at most n are running. Instructions are followed in program order, which is that of a loop's body; a group still
running at a backward branch is followed no further. Leaves out shared memory operands and barriers, which the
interpreter's race detection covers.
"""

import re

from benchmarks.sass import parse_sass

_HGMMA = re.compile(r"HGMMA\.64x(?P<columns>\d+)x16")
_OPERANDS = re.compile(r"R(?P<accumulator>\d+), R(?P<operand>\d+)(\.reuse)?, gdesc")
_REGISTER = re.compile(r"\bR(\d+)(?:\.\w+)*")
_DEPBAR = re.compile(r"gsb0, (0x[0-9a-f]+)")
#: Opcodes whose first operand is not written.
_NO_TARGET = ("ST", "BAR", "BRA", "UTMA", "SYNCS", "MEMBAR", "FENCE", "ISETP", "FSETP", "PLOP3", "R2UR", "LDGSTS")
_WIDTHS = {"64": 2, "128": 4}
_REGISTER_COUNT = re.compile(r"(0x[0-9a-f]+)")


def overdrawn(text: str, registers: int, warpgroups: int) -> int:
    """Registers of four threads that the warpgroups of a block ask for beyond those it is launched with.

    Warpgroups that raise their count wait until the block's pool has as many, for ever if it never has. One gives
    registers up, the others ask for more; a kernel that does neither keeps what it has.

    Args:
      text: the disassembly.
      registers: a thread's at launch, as ptxas reports it.
      warpgroups: of a block.
    """
    asked: dict[str, int] = {}
    for _, op, rest in parse_sass(text)[0]:
        if op.startswith("USETMAXREG") and (count := _REGISTER_COUNT.search(rest)) is not None:
            asked[op.split(".")[1]] = int(count[1], 16)
    if not asked:
        return 0
    return max(0, asked["DEALLOC"] + (warpgroups - 1) * asked["TRY_ALLOC"] - warpgroups * registers)


def unfenced(text: str) -> list[str]:
    """One line for each copy out of shared memory with a thread's store and no fence between the proxies before it."""
    found, pending = [], False
    for address, op, rest in parse_sass(text)[0]:
        if op.startswith(("STS", "STSM")):
            pending = True
        elif op.startswith("FENCE.VIEW.ASYNC"):
            pending = False
        elif op.startswith("UTMASTG") and pending:
            found.append(f"{address:#x} {op} {rest.strip()}")
    return found


def hazards(text: str) -> list[str]:
    """One line for each instruction that writes an operand, or reads or writes an accumulator, that is in use."""
    found: list[str] = []
    running: list[list[tuple[set[int], set[int]]]] = []
    group: list[tuple[set[int], set[int]]] = []
    for address, op, rest in parse_sass(text)[0]:
        wait = _DEPBAR.search(rest) if op.startswith("WARPGROUP.DEPBAR") else None
        if op.startswith("HGMMA"):
            group.append(_registers_of(op, rest))
            if "gsb0" in rest:
                running, group = [*running, group], []
        elif wait is not None:
            running = running[len(running) - int(wait[1], 16) :] if int(wait[1], 16) else []
        elif op == "BRA":
            continue
        else:
            written, read = _touched(op, rest)
            for operand, accumulator in (pair for pairs in (*running, group) for pair in pairs):
                if written & (operand | accumulator) or read & accumulator:
                    found.append(f"{address:#x} {op} {rest.strip()}")
                    break
    return found


def _registers_of(op: str, rest: str) -> tuple[set[int], set[int]]:
    """Registers of the operand and of the accumulator of a wgmma with 64 rows and a register operand."""
    columns, match = _HGMMA.match(op + rest), _OPERANDS.search(rest)
    if columns is None or match is None:
        return set(), set()
    operand, accumulator = int(match["operand"]), int(match["accumulator"])
    return set(range(operand, operand + 4)), set(range(accumulator, accumulator + int(columns["columns"]) // 2))


def _touched(op: str, rest: str) -> tuple[set[int], set[int]]:
    """Registers an instruction writes and reads."""
    registers = [int(number) for number in _REGISTER.findall(rest)]
    if not registers or op.startswith(_NO_TARGET) or not re.match(r"\s*R\d", rest):
        return set(), set(registers)
    width = next((n for suffix, n in _WIDTHS.items() if suffix in op.split(".")), 1)
    return set(range(registers[0], registers[0] + width)), set(registers[1:])
