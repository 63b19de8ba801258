"""The closed set of weight kinds, the shapes of their planes, and errors that say what to do."""

import dataclasses

import numpy as np
import pytest

from pallas_kernels import (
    WEIGHT_KINDS,
    KernelConfigError,
    PlaneShapeError,
    UnsupportedKernelError,
    WeightPlanes,
    check_planes,
    plane_shapes,
    weight_kind,
)
from pallas_kernels.planes import plane_bytes
from pallas_kernels.tiling import require_fits, require_multiple, require_one_of
from tests.oracle import layouts
from tests.pallas_kernels.weights import FORMATS


def test_kinds_are_closed_and_frozen():
    assert list(WEIGHT_KINDS) == ["q4", "q5", "q6", "w8", "nvfp4", "fp8"]
    with pytest.raises(TypeError):
        WEIGHT_KINDS["q3"] = WEIGHT_KINDS["q4"]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        WEIGHT_KINDS["q4"].code_bits = 3  # type: ignore[misc]
    with pytest.raises(UnsupportedKernelError, match="weight kind 'q3' is not one of q4, q5, q6, w8, nvfp4, fp8"):
        weight_kind("q3")


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_planes_have_the_bytes_of_the_layout(kind):
    n, k = 256, 192 if kind == "nvfp4" else 200
    shapes = plane_shapes(kind, n, k)
    spans = layouts._planes(FORMATS[kind], n, k)
    sizes = [np.prod(p.shape, dtype=int) * np.dtype(p.dtype).itemsize for p in shapes if p is not None]
    assert sizes == [size for _, size in spans if size]
    assert plane_bytes(kind, n, k) == sum(sizes)


@pytest.mark.parametrize(("kind", "n", "k"), [("nvfp4", 130, 64), ("nvfp4", 128, 80), ("q4", 0, 64), ("fp8", 4, 0)])
def test_shapes_no_layout_holds_are_refused(kind, n, k):
    with pytest.raises(PlaneShapeError, match=rf"a {kind} weight of shape \[{n}, {k}\] cannot be stored: rows must be"):
        plane_shapes(kind, n, k)


def test_wrong_planes_are_named():
    shapes = plane_shapes("q5", 8, 64)
    check_planes(shapes, kind="q5", n=8, k=64)
    with pytest.raises(PlaneShapeError, match="plane high is absent, it must be uint8"):
        check_planes(shapes._replace(high=None), kind="q5", n=8, k=64)
    with pytest.raises(PlaneShapeError, match=r"plane scales is int16\[8, 2\], it must be uint16\[8, 2\]"):
        check_planes(shapes._replace(scales=np.zeros((8, 2), np.int16)), kind="q5", n=8, k=64)
    with pytest.raises(PlaneShapeError, match="plane divisor is uint32"):
        check_planes(WeightPlanes(*shapes[:3], np.uint32(1)), kind="q5", n=8, k=64)  # type: ignore[arg-type]


def test_checks_name_the_field_its_value_and_what_is_allowed():
    with pytest.raises(KernelConfigError, match="rows=3 is not allowed: choose one of 1, 2"):
        require_one_of("rows", 3, (1, 2))
    for value in (0, -64, 65):
        with pytest.raises(KernelConfigError, match=f"k={value} is not allowed: choose a positive multiple of 64"):
            require_multiple("k", value, 64)
    with pytest.raises(KernelConfigError, match="a tile needs 9, and at most 8 fits"):
        require_fits("a tile", 9, 8)
    require_fits("a tile", 8, 8)
