"""Rows of packed weights against the oracle, bit for bit: the interpreted kernel, its words as PTX, its launches."""

import itertools

import jax
import ml_dtypes
import numpy as np
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

from pallas_kernels import H100, KernelConfigError, PlaneShapeError, UnsupportedKernelError
from pallas_kernels.hardware import A100, visible_hardware
from pallas_kernels.mosaic_gpu import _float_words, _row_values, gather, gather_unsupported_reason, take_rows
from pallas_kernels.mosaic_gpu._words import JnpWords, PtxWords
from pallas_kernels.tiling import WEIGHT_KINDS, GatherConfig, weight_kind
from tests.oracle import fp8_row, layouts, nvfp4
from tests.pallas_kernels import ptx
from tests.pallas_kernels.thread_places import places
from tests.pallas_kernels.weights import FORMATS, planes_of, random_weight

pytestmark = pytest.mark.timeout(120)
INTERPRET = plgpu.InterpretGPUParams(detect_races=True)  # pyright: ignore[reportAttributeAccessIssue]
IDS = np.array([0, 255, 3, 3, 128], np.int32)
N = 256
#: Words around everything that happens to a float32: zeros, subnormals, ties, the largest ones.
EDGES = np.array(
    [0, 1, 2, 3, 0x400000, 0x7FFFFF, 0x800000, 0x800001, 0xC00000, 0x3F800000, 0x3F800001, 0x7F7FFFFF], np.uint32
)

# Columns: one span; whole blocks and pieces of 8, 2 and 1 of the next; padded columns, ones that fp8 has to pad.
SHAPES = {"q4": 1100, "q5": 200, "q6": 1280, "w8": 300, "nvfp4": 64 * 19, "fp8": 530}


def bits(values: np.ndarray) -> np.ndarray:
    return values.view({2: np.uint16, 4: np.uint32}[values.dtype.itemsize])


def rounded(weight: np.ndarray, dtype) -> np.ndarray:
    return weight.astype(np.float32).astype(ml_dtypes.bfloat16 if dtype == jnp.bfloat16 else np.float32)


@pytest.mark.parametrize(("kind", "dtype"), [(kind, jnp.bfloat16) for kind in WEIGHT_KINDS] + [("q6", jnp.float32)])
def test_interpreted_kernel_gives_every_bit(kind, dtype, no_races):
    k = SHAPES[kind]
    planes, weight = random_weight(kind, N, k)
    rows = take_rows(
        planes, jnp.asarray(IDS), kind=kind, n=N, k=k, out_dtype=dtype, config=GatherConfig(2), interpret=INTERPRET
    )
    assert rows.dtype == dtype
    np.testing.assert_array_equal(bits(np.asarray(rows)), bits(rounded(weight[IDS], dtype)))


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
@pytest.mark.parametrize("tokens", [5, 3000])
def test_kernel_on_the_gpu_gives_every_bit(kind, tokens):
    if visible_hardware() is None:
        pytest.skip("no GPU")
    k, ids = SHAPES[kind], np.resize(IDS, tokens)  # many tokens share a block
    planes, weight = random_weight(kind, N, k)
    take = jax.jit(lambda planes, ids: take_rows(planes, ids, kind=kind, n=N, k=k, out_dtype=jnp.float32))
    np.testing.assert_array_equal(bits(np.asarray(take(planes, ids))), bits(rounded(weight[ids], np.float32)))


@pytest.mark.parametrize("kind", ["nvfp4", "fp8"])
def test_subnormal_values_are_kept(kind, no_races):
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 0x7F, (128, 64)).astype(np.uint8) | rng.integers(0, 2, (128, 64), np.uint8) << 7
    if kind == "nvfp4":
        scales, divisor = rng.integers(0, 0x7F, (128, 4)).astype(np.uint8), np.array(0x7E812345, np.uint32)
        words, values = (codes & 15, scales, divisor), nvfp4.decode(codes & 15, scales, divisor)
    else:
        scales = rng.integers(1, 0x0180, 128).astype(np.uint16)
        words, values = (codes, scales), fp8_row.decode(codes, scales)
    exponents = values & 0x7F800000
    assert 0.2 < np.mean((exponents == 0) & (values & 0x7FFFFF != 0)) < 1
    planes = planes_of(kind, layouts.pack(words, FORMATS[kind]), 128, 64)
    ids = jnp.arange(0, 128, 16)
    rows = take_rows(planes, ids, kind=kind, n=128, k=64, out_dtype=jnp.float32, interpret=INTERPRET)
    np.testing.assert_array_equal(bits(np.asarray(rows)), values[::16])


def test_ids_are_clipped_whatever_their_type(no_races):
    planes, weight = random_weight("q4", 7, 64)
    take = lambda ids: take_rows(planes, ids, kind="q4", n=7, k=64, out_dtype=jnp.float32, interpret=INTERPRET)
    expected = bits(rounded(weight, np.float32))
    np.testing.assert_array_equal(bits(np.asarray(take(jnp.array([-5, 99])))), expected[[0, 6]])
    np.testing.assert_array_equal(bits(np.asarray(take(jnp.array([2**32 - 1], jnp.uint32)))), expected[[6]])
    assert take(jnp.zeros(0, jnp.int32)).shape == (0, 64)
    # More rows than a byte counts.
    planes, weight = random_weight("q4", 300, 64)
    rows = take_rows(
        planes, jnp.array([200, 7], jnp.uint8), kind="q4", n=300, k=64, out_dtype=jnp.float32, interpret=INTERPRET
    )
    np.testing.assert_array_equal(bits(np.asarray(rows)), bits(rounded(weight[[200, 7]], np.float32)))


@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_emitted_ptx_gives_the_oracles_bits(kind, monkeypatch):
    planes, weight = random_weight(kind, 128, 128)
    planes = jax.tree.map(np.asarray, planes)
    info, columns = weight_kind(kind), _row_values.columns_of_word(kind)
    words = planes.codes.view(np.uint32)
    high, scale, whole = None, None, None
    if planes.high is not None:
        high = planes.high.view(np.uint8 if kind == "q5" else np.uint16).astype(np.uint32)
    if kind == "fp8":
        whole = np.repeat(planes.scales.astype(np.uint32)[:, None] << 16, words.shape[1], axis=1)
    elif kind == "nvfp4":
        whole = np.full_like(words, planes.divisor)
        scale = np.asarray(planes.scales).transpose(0, 3, 2, 1, 4).reshape(128, -1).astype(np.uint32)
    else:
        scale = planes.scales.astype(np.uint32)
    if scale is not None:
        scale = np.repeat(scale, info.group_size // columns, axis=1)
    ptx.install(monkeypatch)
    values = _row_values.word_values(kind, _row_values.PackedWords(words, high, scale, whole), PtxWords())
    np.testing.assert_array_equal(np.stack(values, axis=-1).reshape(128, 128), bits(rounded(weight, np.float32)))
    pairs = np.stack([PtxWords().bf16x2_of_f32s(*values[i : i + 2]) for i in range(0, columns, 2)], axis=-1)
    halves = np.ascontiguousarray(pairs).view(np.uint16).reshape(128, 128)
    np.testing.assert_array_equal(halves, bits(rounded(weight, jnp.bfloat16)))


@pytest.mark.parametrize("operation", ["mul_f32", "div_f32"])
def test_twins_of_rounding_operations_are_ieee(operation):
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 2**32, (2, 200_000), np.uint32) & np.uint32(0xBFFFFFFF)
    a[:1000], b[:1000] = rng.choice(EDGES, 1000), rng.choice(EDGES, 1000)
    b[b & 0x7FFFFFFF == 0] = 1
    with np.errstate(all="ignore"):
        combine = np.multiply if operation == "mul_f32" else np.divide
        expected = combine(a.view(np.float32), b.view(np.float32)).view(np.uint32)
    np.testing.assert_array_equal(np.asarray(getattr(JnpWords(), operation)(jnp.asarray(a), jnp.asarray(b))), expected)


def test_twin_rounds_to_bfloat16_as_ieee():
    words = np.random.default_rng(6).integers(0, 0x7F800000, 100_000, np.uint32)
    words[:3] = 0x3F808000, 0x3F818000, 0x00018000  # ties
    expected = words.view(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(np.asarray(_float_words.to_bfloat16(jnp.asarray(words))), expected)


@pytest.mark.parametrize("spans", [1, 2, 4, 8, 16, 48])
def test_threads_have_the_scales_of_their_words_and_write_their_columns_in_order(spans):
    words = places(_row_values.span_layout(spans, 8), (spans, 8))
    np.testing.assert_array_equal(np.unique(words), np.arange(8 * spans))
    np.testing.assert_array_equal(places(_row_values.scales_layout("q4", spans), (spans,)), words // 8)
    np.testing.assert_array_equal(places(_row_values.scales_layout("nvfp4", spans), (spans, 4)), words // 2)
    for kind, dtype in itertools.product(("q4", "w8"), (jnp.bfloat16, jnp.float32)):
        columns = _row_values.columns_of_word(kind)
        values = places(_row_values.values_layout(kind, spans, dtype), (spans, 8 * columns))
        assert values.shape[-1] * jnp.dtype(dtype).itemsize <= 16
        np.testing.assert_array_equal(values.reshape(*words.shape[:2], columns), columns * words + np.arange(columns))


def test_rows_share_a_block_where_there_are_many():
    choose = lambda tokens, hardware=H100: gather.heuristic_config(kind="q6", tokens=tokens, k=5120, hardware=hardware)
    assert [choose(tokens).rows for tokens in (1, 64, 1024, 4096)] == [1, 1, 2, 4]
    assert choose(1024, A100).rows == 2
    with pytest.raises(KernelConfigError, match="rows=3 is not allowed: choose one of 1, 2, 4, 8"):
        GatherConfig(3)


def test_refusals():
    planes, _ = random_weight("q5", 8, 64)
    take = lambda **changed: take_rows(
        planes, jnp.zeros(1, jnp.int32), **{"kind": "q5", "n": 9, "k": 64, "interpret": INTERPRET, **changed}
    )
    with pytest.raises(PlaneShapeError, match=r"plane codes is uint8\[8, 64\], it must be uint8\[9, 64\]"):
        take()
    with pytest.raises(UnsupportedKernelError, match="the result would be float16"):
        take(out_dtype=jnp.float16)
    if jax.default_backend() == "cpu":
        with pytest.raises(UnsupportedKernelError, match=r"q5 \[8, 64\], 1 rows of it: jax sees no GPU"):
            take(n=8, interpret=False)
    problem = {"kind": "q4", "n": 2**20, "k": 5120, "out_dtype": jnp.bfloat16, "hardware": H100}
    assert gather_unsupported_reason(tokens=4096, **problem) is None
    assert "take fewer at a time" in str(gather_unsupported_reason(tokens=2**26, **problem))
