"""The cost of a weight in a loop of warp level products, read off a disassembly made up for it."""

from benchmarks import sass

_OPERATIONS = (
    "LOP3.LUT R8, R2, R3, RZ, 0x3c, !PT",
    "HMMA.16816.F32.BF16 R32, R8.reuse, R20, RZ",
    "HMMA.16816.F32.BF16 R36, R8, R22, RZ",  # the same weights for eight more tokens
    "FFMA R40, R32, R33, R40",
    "SHF.R.U32.HI R8, RZ, 0x4, R2",
    "HMMA.16816.F32.BF16 R32, R8, R20, RZ",  # other weights in the same registers
    "HMMA.16816.F32.BF16 R36, R12, R22, R36",  # of another turn's unpacking
)


def _program(operations) -> str:
    lines = [f"        /*{16 * i:04x}*/                   {line} ;" for i, line in enumerate(operations)]
    return "\n".join([".L_x_0:", *lines])


def test_weights_of_a_loop_are_those_of_its_different_first_operands():
    [loop] = sass.weight_loops(_program([*_OPERATIONS, "@P0 BRA `(.L_x_0)", "EXIT"]))
    assert loop.weights == 3 * 8
    assert loop.per_weight == 4 / 24  # LOP3, FFMA, SHF, BRA
    assert loop.unpack_per_weight == 2 / 24
    assert sass.weight_loops(_program([*_OPERATIONS, "EXIT"])) == []
