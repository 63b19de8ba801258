"""Planes and payload bytes: zero copy, read-only, exact sizes and dtypes."""

import mmap

import jax
import ml_dtypes
import numpy as np
import pytest

from ninfer_jax.errors import FormatError, LayoutError
from ninfer_jax.formats import FORMATS
from ninfer_jax.layouts import pack, payload_to_planes, plane_row_bytes, planes_to_payload
from tests.layouts.samples import assert_same, random_words, small_shape


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, np.asarray])
def test_planes_are_read_only_views(name, kind):
    shape = small_shape(name)
    planes = pack(random_words(name, shape), name)
    payload = planes_to_payload(planes, name, shape)
    buffer = kind(payload.tobytes()) if kind in (bytes, bytearray) else kind(payload)
    views = payload_to_planes(buffer, name, shape)
    assert_same(views, planes)
    for leaf in jax.tree.leaves(views):
        assert isinstance(leaf, np.ndarray)
        assert not leaf.flags.writeable
        assert np.shares_memory(leaf, np.frombuffer(buffer, np.uint8))


def test_planes_of_a_mapped_file_at_an_odd_offset(tmp_path):
    """A payload need not be aligned in memory for NumPy; JAX copies what it must."""
    shape = (3, 130)
    planes = pack(random_words("Q5G64_F16S", shape), "Q5G64_F16S")
    path = tmp_path / "payload"
    path.write_bytes(b"x" + planes_to_payload(planes, "Q5G64_F16S", shape).tobytes())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)[1:]
        views = payload_to_planes(view, "Q5G64_F16S", shape)
        assert_same(views, planes)
        del views
        view.release()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("extra", [-1, 1])
def test_wrong_sizes(name, extra):
    shape = small_shape(name)
    payload = planes_to_payload(pack(random_words(name, shape), name), name, shape)
    buffer = np.resize(payload, payload.nbytes + extra)
    with pytest.raises(LayoutError, match=f"has {payload.nbytes} bytes, not {payload.nbytes + extra}"):
        payload_to_planes(buffer, name, shape)


@pytest.mark.parametrize("buffer", [b"", np.zeros((4, 4), np.uint8)[:, :2], memoryview(bytes(16))[::2]])
def test_buffers_that_are_no_payload(buffer):
    with pytest.raises(LayoutError, match=r"contiguous byte buffer|has 8 bytes, not 0"):
        payload_to_planes(buffer, "FP32", (2,))


def test_planes_of_another_shape_or_dtype():
    planes = pack(random_words("Q4G64_F16S", (3, 130)), "Q4G64_F16S")
    with pytest.raises(LayoutError, match=r"plane base is uint8 \[3, 128\], needed \|u1 \[3, 64\]"):
        planes_to_payload(planes, "Q4G64_F16S", (3, 64))
    with pytest.raises(LayoutError, match="plane scales is float16"):
        planes_to_payload(planes._replace(scales=np.asarray(planes.scales).view(np.float16)), "Q4G64_F16S", (3, 130))
    with pytest.raises(LayoutError, match="planes of Q5G64_F16S are base, high, scales, not base, scales"):
        planes_to_payload(planes, "Q5G64_F16S", (3, 130))
    with pytest.raises(FormatError, match="planes of NVFP4 are NVFP4Planes, not GroupedPlanes"):
        planes_to_payload(planes, "NVFP4", (128, 64))
    with pytest.raises(LayoutError, match="plane words is bfloat16"):
        planes_to_payload(np.zeros((2,), ml_dtypes.bfloat16), "BF16", (2,))


def test_row_bytes_are_views_of_contiguous_planes():
    planes = jax.tree.map(np.asarray, pack(random_words("Q6G64_F16S", (3, 130)), "Q6G64_F16S"))
    for part, plane in zip(plane_row_bytes(planes), planes, strict=True):
        assert part.dtype == np.uint8
        assert part.nbytes == plane.nbytes
        assert np.shares_memory(part, plane)
    (part,) = plane_row_bytes(np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)))
    assert part.tobytes() == np.arange(6, dtype="<i4").tobytes()
    assert plane_row_bytes(np.array(1, np.uint16))[0].tobytes() == b"\1\0"


def test_big_endian_planes_are_stored_little_endian():
    words = np.array([1, 2], ">u4")
    assert plane_row_bytes(words)[0].tobytes() == b"\1\0\0\0\2\0\0\0"
