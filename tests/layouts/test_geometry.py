"""Sizes, offsets and row spans of payloads, and every shape that a layout refuses (storage-layouts)."""

from typing import Any

import numpy as np
import pytest

from ninfer_jax.errors import LayoutError, UnknownFormatError
from ninfer_jax.formats import FORMATS, Q5G64_F16S
from ninfer_jax.layouts import LAYOUTS, encoded_size, geometry, get_layout, groups_per_row, layout_of, padded_k
from ninfer_jax.layouts._geometry import check_shape
from tests.layouts.samples import CASES, small_shape
from tests.oracle import layouts as oracle


def test_closed_set_of_layouts():
    assert {name: layout.formats for name, layout in LAYOUTS.items()} == {
        "contiguous-le-v1": ("BF16", "FP32", "I32"),
        "row-split-k128-v1": ("Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S"),
        "blockscale-k16-m128x4-v1": ("NVFP4",),
        "row-scale-v1": ("FP8_E4M3FN_ROW_BF16S",),
    }
    assert all(layout.alignment == 256 for layout in LAYOUTS.values())
    with pytest.raises(TypeError):
        LAYOUTS["raw-bytes-v1"] = get_layout("row-scale-v1")  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_has_one_layout(name):
    layout = layout_of(name)
    assert [other.name for other in LAYOUTS.values() if name in other.formats] == [layout.name]
    assert geometry(name, small_shape(name)) == geometry(FORMATS[name], small_shape(name), layout.name)
    for other in LAYOUTS.values():
        if other is not layout:
            with pytest.raises(LayoutError, match=f"does not hold {name}"):
                geometry(name, small_shape(name), other)


@pytest.mark.parametrize("name", ["raw-bytes-v1", "row-split", "", "CONTIGUOUS-LE-V1"])
def test_unknown_layouts_list_the_four(name):
    with pytest.raises(LayoutError, match="contiguous-le-v1, row-split-k128-v1, blockscale-k16-m128x4-v1, row-scale"):
        get_layout(name)


def test_what_is_no_layout():
    class LookAlike:
        name = "row-scale-v1"

    given: Any
    for given in (LookAlike(), None, ["row-scale-v1"]):
        with pytest.raises(LayoutError, match="the four layouts are"):
            getattr(get_layout, "__wrapped__", get_layout)(given)


def test_unknown_format():
    with pytest.raises(UnknownFormatError):
        encoded_size("Q4", (1, 1))


@pytest.mark.parametrize(
    ("name", "shape", "nbytes"),
    [
        ("Q4G64_F16S", (1, 1), 260),
        ("Q5G64_F16S", (2, 130), 528),
        ("Q6G64_F16S", (1, 64), 516),
        ("W8G32_F16S", (1, 33), 264),
        ("NVFP4", (128, 64), 4612),
        ("FP8_E4M3FN_ROW_BF16S", (128, 64), 8448),
        ("BF16", (), 2),
        ("I32", (3,), 12),
        ("FP32", (1,) * 16, 4),
    ],
)
def test_worked_sizes(name, shape, nbytes):
    assert encoded_size(name, shape) == nbytes
    assert geometry(name, shape).nbytes == nbytes


def test_worked_offsets():
    assert [(plane.name, plane.offset, plane.nbytes) for plane in geometry("Q5G64_F16S", (2, 130)).planes] == [
        ("base", 0, 256),
        ("high", 256, 64),
        ("scales", 512, 16),
    ]
    assert [(plane.name, plane.offset, plane.nbytes) for plane in geometry("NVFP4", (128, 64)).planes] == [
        ("codes", 0, 4096),
        ("scales", 4096, 512),
        ("divisor", 4608, 4),
    ]
    assert (padded_k(4304), groups_per_row(Q5G64_F16S, 4304)) == (4352, 68)
    assert geometry("Q5G64_F16S", (1152, 4304)).plane("scales").shape == (1152, 68)
    with pytest.raises(LayoutError, match="no plane 'high'"):
        geometry("Q4G64_F16S", (1, 1)).plane("high")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_sizes_of_golden_payloads(case):
    assert encoded_size(case.format, case.shape) == case["payload"].nbytes == oracle.size(case.format, case.shape)


@pytest.mark.parametrize("name", FORMATS)
def test_sizes_agree_with_the_oracle(name):
    rng = np.random.default_rng(3)
    step = (128, 64) if name == "NVFP4" else (1, 1)
    for n, k in rng.integers(1, 5000, (50, 2)).tolist():
        shape = (n * step[0], k * step[1])
        assert encoded_size(name, shape) == oracle.size(name, shape)


@pytest.mark.parametrize("name", FORMATS)
def test_planes_do_not_overlap_and_rows_cover_them(name):
    shape = small_shape(name)
    plan = geometry(name, shape)
    assert (plan.format, plan.layout, plan.shape, plan.rows) == (name, layout_of(name).name, shape, shape[0])
    for before, after in zip(plan.planes, plan.planes[1:], strict=False):
        assert before.offset + before.nbytes <= after.offset
        assert after.offset % 256 == 0 or after.name == "divisor"
    for plane in plan.planes:
        assert plane.nbytes == int(np.prod(plane.shape)) * np.dtype(plane.dtype).itemsize
    whole = plan.row_spans(0, plan.rows)
    assert [(s.plane, s.offset, s.nbytes) for s in whole] == [(p.name, p.offset, p.nbytes) for p in plan.planes]
    first, second = plan.row_spans(0, plan.row_block), plan.row_spans(plan.row_block, plan.rows)
    for plane, head, tail in zip(plan.planes, first, second, strict=True):
        if plane.block_nbytes:
            assert head.offset + head.nbytes == tail.offset
            assert head.nbytes + tail.nbytes == plane.nbytes
        else:
            assert head == tail


def test_rows_of_direct_tensors():
    assert geometry("BF16", ()).rows == 1
    assert geometry("BF16", ()).row_spans(0, 1)[0].nbytes == 2
    (span,) = geometry("I32", (5, 2, 3)).row_spans(1, 3)
    assert (span.plane, span.offset, span.nbytes) == ("words", 24, 48)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 7), (2, 2), (3, 1), (6, 7)])
def test_bad_row_ranges(start, stop):
    with pytest.raises(LayoutError, match=r"allowed 0 <= start < stop <= 6"):
        geometry("Q4G64_F16S", (6, 130)).row_spans(start, stop)


@pytest.mark.parametrize(("start", "stop"), [(1, 128), (0, 100), (64, 192)])
def test_nvfp4_rows_come_in_tiles(start, stop):
    assert geometry("NVFP4", (256, 64)).row_block == 128
    with pytest.raises(LayoutError, match="multiples of 128"):
        geometry("NVFP4", (256, 64)).row_spans(start, stop)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("BF16", (1,) * 17, "rank 17: allowed ranks 0 to 16"),
        ("BF16", (2, 0), "dimension 1 is 0"),
        ("BF16", (-1,), "dimension 0 is -1"),
        ("I32", (True,), "dimension 0 is True"),
        ("Q4G64_F16S", (64,), "rank 1: allowed rank 2"),
        ("Q4G64_F16S", (2, 2, 64), "rank 3: allowed rank 2"),
        ("W8G32_F16S", (0, 32), "dimension 0 is 0"),
        ("NVFP4", (127, 64), "N % 128 == 0"),
        ("NVFP4", (128, 32), "K % 64 == 0"),
        ("NVFP4", (), "rank 0: allowed rank 2"),
        ("FP8_E4M3FN_ROW_BF16S", (8,), "rank 1: allowed rank 2"),
    ],
)
def test_refused_shapes(name, shape, message):
    with pytest.raises(LayoutError, match=message):
        encoded_size(name, shape)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("BF16", (2**63,)),
        ("FP32", (2**31, 2**31)),
        ("I32", (2**64 - 1,)),
        ("Q4G64_F16S", (2**33, 2**33)),
        ("Q4G64_F16S", (2, 2**64 - 1)),
        ("W8G32_F16S", (2**64 - 1, 1)),
        ("NVFP4", (2**40, 2**40)),
        ("FP8_E4M3FN_ROW_BF16S", (2**32, 2**32)),
    ],
)
def test_sizes_beyond_64_bits(name, shape):
    with pytest.raises(LayoutError, match="more than 2\\*\\*64 - 1 bytes"):
        encoded_size(name, shape)
    with pytest.raises(ValueError, match="beyond 64 bits"):
        oracle.size(name, shape)


def test_largest_size_is_accepted():
    assert encoded_size("BF16", (2**63 - 1,)) == 2**64 - 2


@pytest.mark.parametrize("exponent", [64, 20000])
def test_dimensions_beyond_64_bits_are_not_printed(exponent):
    with pytest.raises(LayoutError, match="dimension 1 is an integer beyond 64 bits"):
        encoded_size("BF16", (1, 2**exponent))


@pytest.mark.parametrize(("dim", "given"), [(2.0, r"2\.0"), ("2", "'2'"), (None, "None"), ([1], r"\[1\]")])
def test_dimensions_of_another_type(dim, given):
    with pytest.raises(LayoutError, match=f"dimension 0 is {given}; allowed an integer"):
        check_shape(FORMATS["BF16"], (dim,), range(17))


def test_numpy_integers_are_dimensions():
    assert geometry("BF16", (np.int64(3), np.int32(4))).shape == (3, 4)
