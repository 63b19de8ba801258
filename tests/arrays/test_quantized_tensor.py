"""`QuantizedTensor` as a pytree, its properties, payloads, row selections and checks."""

import dataclasses
import operator

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ninfer_jax.arrays import QuantizedTensor, partition_specs, validate
from ninfer_jax.codecs import dequantize
from ninfer_jax.errors import EncodeError, FormatError, LayoutError, UnsupportedError
from ninfer_jax.layouts import encoded_size, unpack
from tests.oracle.tensors import decode_payload

FORMATS = ("Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S", "NVFP4", "FP8_E4M3FN_ROW_BF16S")


def quantized(format: str, *lead: int, n: int = 256, k: int = 192) -> QuantizedTensor:
    """A weight quantized from random values."""
    return QuantizedTensor.quantize(np.random.default_rng(0).standard_normal((*lead, n, k)).astype(np.float32), format)


def values(w: QuantizedTensor) -> np.ndarray:
    """Exact float32 values."""
    return np.asarray(dequantize(unpack(w.planes, w.format, w.k), w.format))


@pytest.mark.parametrize("format", FORMATS)
def test_payload_round_trip_and_sizes(format: str) -> None:
    w = quantized(format)
    validate(w)
    payload = w.to_payload()
    assert payload.nbytes == encoded_size(format, (256, 192))
    again = QuantizedTensor.from_payload(payload.tobytes(), format, (256, 192))
    validate(again)
    np.testing.assert_array_equal(again.to_payload(), payload)
    np.testing.assert_array_equal(values(again).view(np.uint32), decode_payload(payload.tobytes(), format, (256, 192)))
    assert w.shape == (256, 192)
    assert w.dtype == np.float32
    assert w.nbytes <= payload.nbytes < w.nbytes + 768
    assert w.bits_per_weight == 8 * w.nbytes / (256 * 192)
    assert format in repr(w)
    assert "[256, 192]" in repr(w)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_are_selected_packed(format: str) -> None:
    w = quantized(format)
    expected = values(w)
    np.testing.assert_array_equal(values(w[128:256]), expected[128:256])
    ids = np.arange(128)[::-1] * 2
    np.testing.assert_array_equal(values(w[ids]), expected[ids])
    np.testing.assert_array_equal(values(w[::2]), expected[::2])
    np.testing.assert_array_equal(values(w[ids.tolist()]), expected[ids])
    for index in (3, ..., (slice(0, 128), slice(None)), None, np.arange(256) < 128):
        with pytest.raises(UnsupportedError, match="take_rows"):
            w[index]
    for empty in (slice(300, 400), slice(3, 3), slice(5, 3)):
        with pytest.raises(LayoutError, match="selects no rows"):
            w[empty]
    with pytest.raises(LayoutError, match="nonempty list"):
        w[[]]
    with pytest.raises(LayoutError, match="0 to 255"):
        w[[256]]
    with pytest.raises(UnsupportedError, match="one matrix"):
        iter(w)


@pytest.mark.parametrize("format", FORMATS)
def test_leading_axes(format: str) -> None:
    bank = quantized(format, 3, n=128)
    validate(bank)
    assert bank.shape == (3, 128, 192)
    assert bank[1].shape == (128, 192)
    np.testing.assert_array_equal(values(bank[1]), values(bank)[1])
    assert bank[1:].shape == (2, 128, 192)
    np.testing.assert_array_equal(values(bank[[2, 0]]), values(bank)[[2, 0]])
    np.testing.assert_array_equal(values(bank[np.array([True, False, True])]), values(bank)[[0, 2]])
    for index, each in enumerate(bank):
        assert each == bank[index] == bank[index - 3]
    assert index == 2
    for index in (3, -4, np.int64(3), jnp.int32(3)):
        with pytest.raises(LayoutError, match="allowed -3 to 2"):
            bank[index]
    assert jax.jit(lambda bank, i: bank[i])(bank, 1) == bank[1]
    seen = jax.lax.scan(lambda count, w: (count + 1, w.planes[0]), 0, bank)
    assert int(seen[0]) == 3
    np.testing.assert_array_equal(np.asarray(seen[1]), np.asarray(bank.planes[0]))
    with pytest.raises(LayoutError, match="one whole"):
        bank.to_payload()
    with pytest.raises(UnsupportedError, match="first axis"):
        bank[0, 1]


def test_leaves_may_be_anything() -> None:
    w = quantized("Q5G64_F16S")
    abstract = jax.eval_shape(lambda w: w, w)
    assert abstract.shape == w.shape
    assert abstract.nbytes == w.nbytes
    validate(abstract)
    flags = jax.tree.map(lambda leaf: leaf.ndim, w)
    assert jax.tree.leaves(flags) == [2, 2, 2]
    assert "k=192" in repr(flags)
    assert jax.tree.structure(w) != jax.tree.structure(quantized("Q5G64_F16S", k=191))
    jitted = jax.jit(lambda w: jax.tree.map(lambda leaf: leaf + 1, w))(w)
    assert isinstance(jitted, QuantizedTensor)


def test_equality_is_that_of_formats_and_bytes() -> None:
    w = quantized("Q5G64_F16S")
    same = QuantizedTensor.from_payload(w.to_payload(), w.format, w.shape)
    assert w == same
    assert w != quantized("Q6G64_F16S")
    assert w != QuantizedTensor.quantize(np.ones((256, 192), np.float32), w.format)
    assert w != dataclasses.replace(w, k=191)
    assert w != jax.tree.map(lambda leaf: leaf[:128], w)
    assert w != "w"
    specs = partition_specs(w, PartitionSpec("model"))
    assert specs == partition_specs(w, PartitionSpec("model", None)) != partition_specs(w, PartitionSpec())
    with pytest.raises(TypeError, match="unhashable"):
        hash(w)


def test_a_packed_tensor_is_no_array() -> None:
    w, x = quantized("NVFP4"), np.ones((2, 192), np.float32)
    for product in (lambda: x @ w, lambda: jnp.asarray(x) @ w, lambda: w @ x.T):
        with pytest.raises(TypeError, match=r"ninfer_jax.matmul\(x, w\) is x @ w.T"):
            product()
    for convert in (np.asarray, np.array, jnp.asarray):
        with pytest.raises(TypeError, match=r"ops.dequantize\(w\)"):
            convert(w)
    with pytest.raises(TypeError, match="unsupported operand"):
        operator.mul(x, w)  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_repr_of_anything() -> None:
    w = quantized("Q4G64_F16S")
    assert "k=192" in repr(dataclasses.replace(w, planes=None))
    assert "bogus" in repr(dataclasses.replace(w, format="bogus"))


@pytest.mark.parametrize("format", FORMATS)
def test_planes_that_do_not_belong_are_refused(format: str) -> None:
    w = quantized(format)
    for name, plane in w.planes._asdict().items():
        if plane is None:
            continue
        for wrong in (None, plane.astype(jnp.int32), jnp.zeros((3, 5), plane.dtype)):
            broken = dataclasses.replace(w, planes=w.planes._replace(**{name: wrong}))
            with pytest.raises(LayoutError):
                validate(broken)
    other = quantized("NVFP4" if format != "NVFP4" else "Q4G64_F16S")
    with pytest.raises(LayoutError, match="planes are"):
        validate(dataclasses.replace(w, planes=other.planes))


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="direct format"):
        QuantizedTensor.quantize(np.ones((2, 3), np.float32), "BF16")
    for format in FORMATS:
        for shape in ((0, 64), (100, 64) if format == "NVFP4" else (0, 3, 64)):
            with pytest.raises(LayoutError):
                QuantizedTensor.quantize(np.ones(shape, np.float32), format)
    with pytest.raises(FormatError, match="try_quantize"):
        jax.jit(lambda x: QuantizedTensor.quantize(x, "Q4G64_F16S"))(np.ones((2, 3), np.float32))


def test_words_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user, whom no annotation check guards
    with pytest.raises(FormatError, match=r"ops\.dequantize takes a packed"):
        dequantize(quantized("Q4G64_F16S"), "Q4G64_F16S")  # pyright: ignore[reportArgumentType]
    with pytest.raises(EncodeError):
        QuantizedTensor.quantize(np.full((2, 3), np.nan, np.float32), "Q4G64_F16S")
