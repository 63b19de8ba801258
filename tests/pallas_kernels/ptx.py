"""A reader of the few PTX instructions the unpackers emit, in numpy: the text itself is what gets tested.

`install` makes `PtxWords` work on arrays of uint32: its inline assembly is run here instead of being compiled. Written
from the PTX manual's definitions; bfloat16 arithmetic is float64 arithmetic rounded once, subnormals kept.
"""

import re
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from pallas_kernels.mosaic_gpu import _words


def install(monkeypatch) -> None:
    """Replace MLIR under `PtxWords` for one test."""
    integer = SimpleNamespace(get_signless=lambda bits: bits)
    monkeypatch.setattr(_words, "ir", SimpleNamespace(IntegerType=integer))
    monkeypatch.setattr(_words, "llvm", SimpleNamespace(inline_asm=run))


def run(_type, operands, body: str, constraints: str) -> np.ndarray:
    """The value of $0 after a snippet of PTX."""
    assert constraints == ",".join(["=r", *["r"] * len(operands)])
    registers: dict[str, Any] = {f"${i + 1}": np.asarray(v, np.uint32) for i, v in enumerate(operands)}
    for statement in filter(None, (part.strip() for part in body.strip("{} ").split(";"))):
        if statement.startswith(".reg"):
            continue
        opcode, arguments = statement.split(" ", 1)
        target, *sources = [a.strip() for a in arguments.split(",")]
        assert re.fullmatch(r"\$0|[a-z]\w*", target)
        with np.errstate(all="ignore"):
            registers[target] = _OPCODES[opcode](*(_value(s, registers) for s in sources))
    return np.asarray(registers["$0"])


def _value(text: str, registers: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(registers[text] if text in registers else int(text, 0), np.uint32)


def _lop3(a, b, c, table):
    result = np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b), np.shape(c)), np.uint32)
    for index in range(8):
        if int(table) >> index & 1:
            term = [v if index >> bit & 1 else ~v for v, bit in ((a, 2), (b, 1), (c, 0))]
            result |= term[0] & term[1] & term[2]
    return result


def _prmt(a, b, selector):
    pool = np.uint64(a) | np.uint64(b) << np.uint64(32)
    result = np.uint32(0)
    for i in range(4):
        choice = np.uint64(selector) >> np.uint64(4 * i) & np.uint64(15)
        assert np.all(choice < 8)  # no sign replication here
        byte = (pool >> choice * np.uint64(8) & np.uint64(255)).astype(np.uint32)
        result = result | byte << np.uint32(8 * i)
    return result


def _pairs(function):
    def apply(*words):
        words = np.broadcast_arrays(*(np.asarray(word, np.uint32) for word in words))
        halves = [np.ascontiguousarray(v).view(np.uint16).view(ml_dtypes.bfloat16).astype(np.float64) for v in words]
        return function(*halves).astype(ml_dtypes.bfloat16).view(np.uint16).view(np.uint32).reshape(words[0].shape)

    return apply


def _float_of_half(a):
    return (a & np.uint32(0xFFFF)).astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)


def _bf16x2_of_f32(high, low):
    upper, lower = (
        v.view(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32) for v in (high, low)
    )
    return upper << np.uint32(16) | lower


def _floats(function):
    return lambda a, b: np.asarray(function(a.view(np.float32), b.view(np.float32)), np.float32).view(np.uint32)


_OPCODES = {
    "shl.b32": lambda a, n: a << n,
    "shr.u32": lambda a, n: a >> n,
    "mov.b32": lambda a: a,
    "lop3.b32": _lop3,
    "prmt.b32": _prmt,
    "cvt.u16.u32": lambda a: a & np.uint32(0xFFFF),
    "cvt.f32.f16": _float_of_half,
    "cvt.rn.bf16x2.f32": _bf16x2_of_f32,
    "sub.f32": _floats(np.subtract),
    "mul.rn.f32": _floats(np.multiply),
    "div.rn.f32": _floats(np.divide),
    "sub.bf16x2": _pairs(np.subtract),
    "mul.bf16x2": _pairs(np.multiply),
    "fma.rn.bf16x2": _pairs(lambda a, b, c: a * b + c),
}
