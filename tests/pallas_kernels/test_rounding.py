"""What a scale does to a weight: every code of every integer kind under every binary16 scale, and the worst of them.

The table of `pallas_kernels.mosaic_gpu` says 1/257 for both prefill kernels, and 1.86/256 for q4 with a scale in one
part. Kernels that leave group scales to sums have exact weights, which test_unpack holds them to.
"""

import functools

import jax
import numpy as np
import pytest

if jax.__version_info__ < (0, 11, 2):
    pytest.skip("the GPU kernels need jax >= 0.11.2", allow_module_level=True)

import jax.numpy as jnp
import ml_dtypes

from pallas_kernels.hardware import H100
from pallas_kernels.mosaic_gpu import _row_unpack, _unpack_tile, prefill_sm90
from pallas_kernels.mosaic_gpu._words import PtxWords
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.tiling import PrefillConfig, weight_kind
from tests.oracle import layouts
from tests.pallas_kernels import ptx
from tests.pallas_kernels.interpreted import INTERPRET, with_sms
from tests.pallas_kernels.weights import FORMATS, planes_of, random_x, relative_l2

KINDS = ("q4", "q5", "q6", "w8")
#: Every positive finite binary16 word.
SCALES = np.arange(1, 0x7C00, dtype=np.uint16)
#: Half a place of bfloat16, relative to the value whose tie it is: 1 + 2^-8.
WORST = 1 / 257


def fields(values, bits):
    """uint32 words with the lowest bits of each value, in order."""
    per_word = 32 // bits
    values = (values.astype(np.int64) & ((1 << bits) - 1)).reshape(-1, min(per_word, values.size))
    return np.sum(values << bits * np.arange(values.shape[1]), axis=1).astype(np.uint32)


def packed(kind, codes):
    """Words of codes and of high bits, as they follow each other in a row."""
    if kind == "w8":
        return fields(codes, 8), []
    bits = weight_kind(kind).code_bits - 4
    return fields(codes, 4), fields(codes >> 4, bits) if bits else []


def prefill_sm90_pairs(kind, codes, parts_of_scale=2):
    """The pairs a thread of the Hopper kernel makes of 16 codes, under every scale, in the order of the codes."""
    words, high = packed(kind, codes)
    parts = words.reshape(-1, 2)
    scales = [SCALES.astype(np.uint32)] * len(parts)
    pairs = _unpack_tile.tile_pairs(
        kind, [list(part) for part in parts], high[0] if len(high) else None, scales, 0, PtxWords(), parts_of_scale
    )
    each = len(pairs) // len(words)
    return pairs, [w * 2 * each + j + each * half for w in range(len(words)) for j in range(each) for half in range(2)]


def prefill_sm100_pairs(kind, codes):
    """The pairs a thread of the Blackwell kernel makes of 64 codes, under every scale; they are in order."""
    words, high = packed(kind, codes)
    scales = [SCALES.astype(np.uint32)] * (64 // weight_kind(kind).group_size)
    return _row_unpack.scaled_pairs(kind, list(words), list(high), scales, PtxWords()), list(range(64))


def worst_error(kind, unpack, columns, factor):
    """The largest relative error of any legal code under any scale."""
    half = 1 << weight_kind(kind).code_bits - 1
    legal = np.resize(np.arange(-half + (kind == "w8"), half), -(-2 * half // columns) * columns)
    exact_scales, worst = SCALES.view(np.float16).astype(np.float64), 0.0
    for codes in legal.reshape(-1, columns):
        pairs, order = unpack(kind, codes)
        for i, pair in enumerate(pairs):
            halves = np.ascontiguousarray(pair).view(ml_dtypes.bfloat16).reshape(-1, 2).astype(np.float64)
            exact = exact_scales[:, None] * codes[order[2 * i : 2 * i + 2]]
            error = np.abs(halves * factor - exact)
            worst = max(worst, np.max(np.divide(error, np.abs(exact), out=error, where=exact != 0)))
    return worst


@pytest.mark.parametrize(
    ("unpack", "columns", "factors"),
    [(prefill_sm90_pairs, 16, _unpack_tile.FACTORS), (prefill_sm100_pairs, 64, dict.fromkeys(KINDS, 1.0))],
    ids=["prefill_sm90", "prefill_sm100"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_no_code_and_scale_are_further_off_than_one_rounding(kind, unpack, columns, factors, monkeypatch):
    ptx.install(monkeypatch)
    worst = worst_error(kind, unpack, columns, factors[kind])
    assert worst == pytest.approx(WORST, rel=1e-9)
    assert worst < 1 / 256


def test_a_q4_scale_in_one_part_is_off_by_two_roundings(monkeypatch):
    ptx.install(monkeypatch)
    worst = worst_error("q4", functools.partial(prefill_sm90_pairs, parts_of_scale=1), 16, _unpack_tile.factor("q4", 1))
    assert worst == pytest.approx(1.86 / 256, rel=1e-2)


def worst_q4_weight(n, k):
    """A q4 weight whose codes are all 7 or -7, under the scale that rounding scale and product hurts most."""
    codes = np.random.default_rng(0).choice([-7, 7], (n, k)).astype(np.int8)
    scale = np.float16(0x127 / 256 * 2.0**-7)
    scales = np.full((n, k // 64), scale).view(np.uint16)
    return planes_of("q4", layouts.pack((codes, scales), FORMATS["q4"]), n, k), codes * float(scale)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("out_dtype", [jnp.float32, jnp.bfloat16])
def test_a_float32_result_of_the_worst_weight_holds_the_criterion(out_dtype):
    n, k = 64, 128
    planes, weight = worst_q4_weight(n, k)
    x = random_x(32, k)
    call = Call("q4", n, k, out_dtype, with_sms(H100, 1), interpret=INTERPRET)
    y = prefill_sm90.run(jnp.asarray(x), planes, PrefillConfig(32, 64, 2, consumers=1), call)
    error = relative_l2(np.asarray(y), x.astype(np.float64) @ weight.T)
    assert error <= 1 / 256 if out_dtype == jnp.float32 else 1.8 / 256 < error <= 2.1 / 256
