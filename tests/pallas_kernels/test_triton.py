"""The Triton kernels interpreted on the CPU against the oracle, lowered from jax, and refused with a reason.

They have not run on a GPU. The interpreter multiplies the bits of bfloat16 and truncates where it rounds to it, so that
it gets float32 operands, which are the same numbers, and gives float32 results.
"""

import os
import pathlib
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import KernelConfigError, UnsupportedKernelError, WeightPlanes, plane_shapes
from pallas_kernels.hardware import A100, KNOWN_HARDWARE
from pallas_kernels.tiling import WEIGHT_KINDS
from pallas_kernels.triton import TritonConfig, dispatch, heuristic_config, matmul, unsupported_reason
from tests.pallas_kernels.weights import random_weight, random_x, relative_l2

_ROOT = pathlib.Path(__file__).resolve().parents[2]
MISSING = dispatch.missing_reason()
needs_triton = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

#: m, n, k and blocks: one token, a tail in every direction and K split unevenly, and several tiles of tokens.
PRODUCTS = (
    (1, 64, 64, TritonConfig()),
    (5, 75, 330, TritonConfig(split_k=4)),
    (70, 130, 200, TritonConfig(rows=128, tokens=32, warps=8)),
)
IDS = np.array([0, 127, 3, 3, -5, 999], np.int32)


def _shape(kind: str, n: int, k: int) -> tuple[int, int]:
    # nvfp4 has no tails to store.
    return (-(-n // 128) * 128, -(-k // 64) * 64) if kind == "nvfp4" else (n, k)


def _interpret(calls: list, folder: pathlib.Path) -> list[np.ndarray]:
    source, target = folder / "calls", folder / "results"
    source.write_bytes(pickle.dumps(calls))
    run = subprocess.run(
        [sys.executable, "-m", "tests.pallas_kernels.triton_host", str(source), str(target)],
        env={**os.environ, "TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu"},
        cwd=_ROOT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    return pickle.loads(target.read_bytes())


@needs_triton
@pytest.mark.parametrize("kind", WEIGHT_KINDS)
def test_products_are_those_of_the_exactly_decoded_weight(kind, tmp_path):
    calls, references = [], []
    for m, wanted_n, wanted_k, config in PRODUCTS:
        n, k = _shape(kind, wanted_n, wanted_k)
        planes, weight = random_weight(kind, n, k)
        x = random_x(m, k)
        grid, constants = dispatch.matmul_launch(kind, m, n, k, config)
        ordered = np.asarray(dispatch.lane_order(x, kind)).astype(np.float32)
        arrays = [ordered, *map(np.asarray, dispatch.operands(planes))]
        calls.append(("matmul_kernel", arrays, (config.split_k, m, n), grid, constants))
        references.append(x.astype(np.float64) @ weight.T)
    for parts, reference in zip(_interpret(calls, tmp_path), references, strict=True):
        assert parts.shape[1:] == reference.shape
        assert relative_l2(parts.sum(0), reference) < 1e-6


@needs_triton
def test_rows_are_the_exactly_decoded_ones(tmp_path):
    calls, rows = [], []
    for kind in WEIGHT_KINDS:
        n, k = _shape(kind, 128, 600)
        planes, weight = random_weight(kind, n, k)
        grid, constants = dispatch.gather_launch(kind, len(IDS), n, k)
        arrays = [IDS, *map(np.asarray, dispatch.operands(planes))]
        calls.append(("gather_kernel", arrays, (len(IDS), k), grid, constants))
        rows.append(weight[np.clip(IDS, 0, n - 1)].astype(np.float32))
    for result, expected in zip(_interpret(calls, tmp_path), rows, strict=True):
        np.testing.assert_array_equal(result, expected)


def _lowered(function, *arguments) -> str:
    try:
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    except AttributeError as error:
        if "TritonKernel" in str(error):
            pytest.skip("jax's CUDA plugin is not installed: install the extra `aot`")
        raise


@needs_triton
@pytest.mark.parametrize("kind", ["q5", "nvfp4"])
def test_lowers_from_jax_to_one_call(kind):
    n, k = _shape(kind, 75, 200)

    def product(x, planes):
        return matmul(x, WeightPlanes(*planes), kind=kind, n=n, k=k, hardware=A100)

    def rows(ids, planes):
        return dispatch.take_rows(WeightPlanes(*planes), ids, kind=kind, n=n, k=k, hardware=A100)

    planes = tuple(plane_shapes(kind, n, k))
    text = _lowered(product, jax.ShapeDtypeStruct((3, k), jnp.bfloat16), planes)
    assert text.count("@triton_kernel_call") == 1
    assert f"-> (tensor<3x{n}xbf16>" in text
    assert _lowered(rows, jax.ShapeDtypeStruct((3,), jnp.int32), planes).count("@triton_kernel_call") == 1


@needs_triton
def test_more_tiles_of_tokens_than_a_grid_has_are_refused():
    planes, x = WeightPlanes(*plane_shapes("q4", 64, 64)), jax.ShapeDtypeStruct((16 * 65535 + 1, 64), jnp.bfloat16)
    product = lambda x: matmul(x, planes, kind="q4", n=64, k=64, config=TritonConfig(tokens=16), hardware=A100)
    with pytest.raises(KernelConfigError, match="1048561 tokens are more than 65535 tiles: choose more tokens a tile"):
        jax.eval_shape(product, x)


@needs_triton
@pytest.mark.parametrize("dtype", [jnp.uint32, jnp.int8])
def test_row_numbers_of_any_type_are_clipped_before_they_are_cast(dtype):
    rows = lambda ids, planes: dispatch.take_rows(WeightPlanes(*planes), ids, kind="q4", n=300, k=64, hardware=A100)
    arguments = jax.ShapeDtypeStruct((3,), dtype), tuple(plane_shapes("q4", 300, 64))
    call = next(line for line in _lowered(rows, *arguments).splitlines() if "@triton_kernel_call" in line)
    assert "(tensor<3xi32>, " in call


@needs_triton
def test_an_unused_product_lowers_on_every_jax():
    planes = tuple(plane_shapes("q4", 64, 64))

    def unused(x, planes):
        matmul(x, WeightPlanes(*planes), kind="q4", n=64, k=64, hardware=A100)
        return x

    text = _lowered(unused, jax.ShapeDtypeStruct((1, 64), jnp.bfloat16), planes)
    assert "func public @main" in text


def test_without_triton_the_reason_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    problem = {"kind": "q4", "m": 1, "n": 64, "k": 64, "x_dtype": jnp.bfloat16, "out_dtype": jnp.bfloat16}
    reason = unsupported_reason(**problem, hardware=A100)
    assert reason is not None
    assert "triton not installed: install the extra `triton`" in reason
    planes = WeightPlanes(*plane_shapes("q4", 64, 64))
    with pytest.raises(UnsupportedKernelError, match="install the extra `triton`"):
        matmul(jnp.zeros((1, 64), jnp.bfloat16), planes, kind="q4", n=64, k=64, hardware=A100)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"kind": "q3"}, "'q3' is not one of q4"),
        ({"x_dtype": jnp.float32}, "activations are float32; the Triton kernels take bfloat16"),
        ({"out_dtype": jnp.float16}, "the result would be float16"),
        ({"m": 0}, "m=0: the Triton kernels take 1 to 4194240 tokens at a time"),
        ({"m": 4194241}, "m=4194241: the Triton kernels take 1 to 4194240 tokens at a time"),
        ({"kind": "nvfp4", "n": 64}, "multiple of 128"),
        ({"hardware": None}, "jax sees no GPU"),
    ],
)
def test_what_no_kernel_runs_is_refused_with_the_reason(changed, reason, monkeypatch):
    monkeypatch.setattr(dispatch, "missing_reason", lambda: None)
    problem = {"kind": "q4", "m": 1, "n": 64, "k": 64, "x_dtype": jnp.bfloat16, "out_dtype": jnp.bfloat16}
    assert unsupported_reason(**problem, hardware=A100) is None
    assert reason in str(unsupported_reason(**{**problem, "hardware": A100, **changed}))


@pytest.mark.parametrize("gpu", KNOWN_HARDWARE)
def test_few_tokens_get_the_smallest_tile_and_idle_multiprocessors_a_part_of_k(gpu):
    sms = KNOWN_HARDWARE[gpu].sms
    small = heuristic_config(m=1, n=1152, k=17408, sms=sms)
    assert small.tokens == 16
    assert small.split_k > 1
    large = heuristic_config(m=1024, n=34816, k=5120, sms=sms)
    assert (large.tokens, large.split_k) == (64, 1)
    with pytest.raises(ValueError, match="tokens=8 is not allowed: choose one of 16, 32, 64, 128"):
        TritonConfig(tokens=8)
