"""The decode kernel compiled for an H100 on a machine without one, and the readers of what the compilers say."""

import math

import pytest

from benchmarks import aot, sass, sass_hazards
from pallas_kernels.planes import plane_bytes
from pallas_kernels.tiling import WEIGHT_KINDS

REASON = aot.unavailable_reason()
compiles = pytest.mark.skipif(REASON is not None, reason=str(REASON))
pytestmark = pytest.mark.timeout(300)

#: Instructions that unpack a weight at most, and all of the main loop a weight: what compiles today and a little room.
UNPACK = {"q4": 2.0, "q5": 4.0, "q6": 4.5, "w8": 3.5, "fp8": 3.5, "nvfp4": 4.0}
IN_ALL = {"q4": 2.9, "q5": 5.0, "q6": 4.1, "w8": 3.9, "fp8": 3.9, "nvfp4": 4.5}
N, K = 34816, 5120

SASS = """
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LOP3.LUT R2, R3, 0xf, R4, 0x6a, !PT ;
        /*0020*/                   HGMMA.64x8x16.F32.BF16 R24, R8, gdesc[UR4], R24 ;
        /*0030*/              @!P0 HADD2.BF16_V2 R5, R2, R6 ;
        /*0040*/                   NOP ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
        /*0060*/                   UTMALDG.3D [UR8], [UR4] ;
        /*0070*/                   EXIT ;
.L_x_2:
        /*0080*/                   BRA `(.L_x_1) ;
"""


IN_FLIGHT = """
        /*0010*/                   HGMMA.64x8x16.F32.BF16 R24, R8, gdesc[UR4], RZ, !UPT, gsb0 ;
        /*0020*/                   LOP3.LUT R12, R3, 0xf, R4, 0x6a, !PT ;
        /*0030*/                   HGMMA.64x8x16.F32.BF16 R28, R12, gdesc[UR4], RZ, !UPT, gsb0 ;
        {wait}
        /*0050*/                   FFMA R2, R24, R3, R2 ;
        /*0060*/                   LDS.128 R8, [R40] ;
"""


def compiled(**arguments):
    return aot.compile_case(aot.kernel_case("decode_sm90", **arguments))


def check_clean(report, kind, n, k):
    assert report.kernels == 1
    assert report.spill_bytes == report.stack_bytes == 0
    assert report.hgmma > 0
    assert report.tma_loads > 0
    assert [line for program in report.sass for line in sass_hazards.hazards(program)] == []
    assert [line for program in report.sass for line in sass_hazards.unfenced(program)] == []
    assert report.unpack_per_weight <= UNPACK[kind]
    assert report.per_weight <= IN_ALL[kind]
    # Planes reach the kernel by bit casts alone; XLA writes x in the unpacker's order and nothing near the weight.
    assert report.temporaries(at_least=plane_bytes(kind, n, k) // 64) == []


@compiles
@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_decode_compiles_clean_and_reads_the_packed_planes_in_place(kind):
    check_clean(compiled(kind=kind, m=1, n=N, k=K), kind, N, K)


@compiles
@pytest.mark.parametrize(("kind", "m", "n"), [("q4", 16, N), ("q6", 11, 4304), ("w8", 3, 34)])
def test_more_tokens_and_odd_rows_compile_clean_with_a_gated_epilogue(kind, m, n):
    report = compiled(kind=kind, m=m, n=n, k=K, activation="silu", bias=True)
    assert report.spill_bytes == report.stack_bytes == 0
    assert report.hgmma > 0
    assert [line for program in report.sass for line in sass_hazards.hazards(program)] == []
    if n == N:
        assert report.temporaries(at_least=plane_bytes(kind, n, K) // 64) == []


def test_ptxas_log_is_read():
    log = "Used 96 registers, used 2 barriers\n 8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads"
    assert sass.parse_ptxas(log) == {"registers": 96, "spill_stores": 4, "spill_loads": 12, "stack": 8}


def test_main_loop_is_found_and_counted():
    [loop] = sass.tensor_loops(SASS)
    assert (loop.start, loop.end, loop.hgmma) == (0x10, 0x50, 1)
    assert loop.per_weight == 3 / 8  # LOP3, HADD2, BRA; NOP is no work
    assert loop.unpack_per_weight == 2 / 8
    assert sass.count(SASS, "UTMALDG") == 1


def test_registers_in_flight_are_found():
    wait = "/*0040*/                   WARPGROUP.DEPBAR.LE gsb0, {} ;"
    assert sass_hazards.hazards(IN_FLIGHT.format(wait=wait.format("0x1"))) == []
    found = sass_hazards.hazards(IN_FLIGHT.format(wait=wait.format("0x2")))
    assert [line.split()[:2] for line in found] == [["0x50", "FFMA"], ["0x60", "LDS.128"]]
    second = IN_FLIGHT.format(wait=wait.format("0x1")).replace("LDS.128 R8", "LDS.128 R12")
    assert [line.split()[1] for line in sass_hazards.hazards(second)] == ["LDS.128"]


def test_copies_that_overtake_stores_are_found():
    line = "/*{:04x}*/                   {} ;".format
    ops = ["STS.128 [R3], R4", "FENCE.VIEW.ASYNC.S", "UTMASTG.4D [UR8], [UR16]"]
    program = lambda ops: "\n".join(line(16 * i, op) for i, op in enumerate(ops))
    assert sass_hazards.unfenced(program(ops)) == []
    assert len(sass_hazards.unfenced(program(ops[::2]))) == 1
    assert len(sass_hazards.unfenced(program([ops[1], ops[0], ops[2]]))) == 1


def test_registers_nobody_gives_up_are_counted():
    program = """
        /*0010*/                   USETMAXREG.DEALLOC.CTAPOOL 0x28 ;
        /*0020*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xe8 ;
    """
    assert sass_hazards.overdrawn(program, 168, 3) == 0
    assert sass_hazards.overdrawn(program, 160, 3) == 40 + 2 * 232 - 3 * 160
    assert sass_hazards.overdrawn(SASS, 32, 4) == 0


def test_report_without_a_loop_has_no_cost_a_weight():
    report = aot.AotReport(0, 0, 0, 0, 0, 0, 0, (), (), ())
    assert math.isnan(report.per_weight)
