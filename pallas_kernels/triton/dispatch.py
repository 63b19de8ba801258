"""The Triton kernels called from jax, and why they cannot be. They have not run on a GPU.

Everything Triton needs is imported when a kernel is called. jax-triton 0.4.1 gives jax a rule for unused results with
two arguments; jax 0.12 and later calls it with three, so that a rule of three takes its place here. Leaves out gated
products and epilogues, which XLA adds. Source: gpu-kernels, storage-layouts.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from jaxtyping import Array, BFloat16, Float, Int

from pallas_kernels.errors import KernelConfigError, PlaneShapeError, UnsupportedKernelError
from pallas_kernels.hardware import Hardware, visible_hardware
from pallas_kernels.planes import WeightPlanes, check_planes, plane_shapes, row_numbers
from pallas_kernels.tiling import WEIGHT_KINDS, weight_kind
from pallas_kernels.triton.plan import TritonConfig, heuristic_config

_CAPABILITIES = ((8, 0), (8, 9), (9, 0), (10, 0), (12, 0))
_NEEDED = "8.0 (A100), 8.9 (RTX 40), 9.0 (H100, H200), 10.0 (B200) or 12.0 (RTX 50)"
_GATHER_BLOCK = 512
#: Programs a grid has along any axis but the first, and so tokens in blocks of 64, which is what many tokens get.
_MOST_PROGRAMS = 65535
_MOST_TOKENS = 64 * _MOST_PROGRAMS
#: Named because triton announces another default.
COMPILER_OPTIONS = {"enable_fp_fusion": True}


def missing_reason() -> str | None:
    """What is not installed, or None."""
    missing = [
        p for p, m in (("jax-triton", "jax_triton"), ("triton", "triton")) if importlib.util.find_spec(m) is None
    ]
    if missing:
        return f"{' and '.join(missing)} not installed: install the extra `triton`"
    version = importlib.metadata.version("jax-triton")
    if jax.__version_info__ >= (0, 12) and _numbers(version) < (0, 4, 1):
        return f"jax-triton {version} does not work with jax {jax.__version__}: install jax-triton 0.4.1 or newer"
    return None


def unsupported_reason(
    *, kind: str, m: int, n: int, k: int, x_dtype: Any, out_dtype: Any, hardware: Hardware | None = None
) -> str | None:
    """Why no Triton kernel runs a problem, or None where one does.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      m: tokens.
      n: rows of the weight.
      k: columns of the weight.
      x_dtype: dtype of the activations.
      out_dtype: dtype of the result.
      hardware: the device; None for the first GPU jax sees.
    """
    if kind not in WEIGHT_KINDS:
        return f"weight kind {kind!r} is not one of {', '.join(WEIGHT_KINDS)}"
    reason = missing_reason()
    if reason is not None:
        return reason
    hardware = hardware or visible_hardware()
    if hardware is None:
        return f"jax sees no GPU; the Triton kernels need one of compute capability {_NEEDED}"
    if hardware.compute_capability not in _CAPABILITIES:
        return f"{hardware.name} has compute capability {hardware.capability}; the Triton kernels need {_NEEDED}"
    if jnp.dtype(x_dtype) != jnp.bfloat16:
        return f"activations are {jnp.dtype(x_dtype).name}; the Triton kernels take bfloat16: cast x, or use XLA"
    if jnp.dtype(out_dtype) not in (jnp.bfloat16, jnp.float32):
        return f"the result would be {jnp.dtype(out_dtype).name}; the Triton kernels give bfloat16 or float32"
    if not 1 <= m <= _MOST_TOKENS:
        return f"m={m}: the Triton kernels take 1 to {_MOST_TOKENS} tokens at a time"
    try:
        plane_shapes(kind, n, k)
    except PlaneShapeError as error:
        return str(error)
    return None


def gather_unsupported_reason(
    *, kind: str, tokens: int, n: int, k: int, out_dtype: Any, hardware: Hardware | None = None
) -> str | None:
    """Why the Triton kernel cannot take rows of a weight, or None where it can.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      tokens: rows to take.
      n: rows of the weight.
      k: columns of the weight.
      out_dtype: dtype of the result.
      hardware: the device; None for the first GPU jax sees.
    """
    # Rows are along the first axis of the grid: there may be any number of them.
    return unsupported_reason(kind=kind, m=1, n=n, k=k, x_dtype=jnp.bfloat16, out_dtype=out_dtype, hardware=hardware)


def explain(*, m: int, n: int, k: int, hardware: Hardware) -> str:
    """One line on the configuration of a problem."""
    return f"triton on {hardware.name}, heuristic {heuristic_config(m=m, n=n, k=k, sms=hardware.sms)}"


def matmul(
    x: BFloat16[Array, "m k"], planes: WeightPlanes, *, kind: str, n: int, k: int, out_dtype: Any = None,
    config: TritonConfig | None = None, hardware: Hardware | None = None,
) -> Float[Array, "m n"]:  # fmt: skip
    """y = x @ W.T, summed in float32 and rounded once.

    Args:
      x: bfloat16 [m, k].
      planes: raw planes of the [n, k] weight.
      kind: a name of `WEIGHT_KINDS`.
      n: rows of the weight.
      k: columns of the weight.
      out_dtype: bfloat16 or float32; None for x's dtype.
      config: a configuration instead of the chosen one.
      hardware: the device; None for the first GPU jax sees.

    Returns:
      out_dtype [m, n].

    Raises:
      KernelConfigError: a given configuration would cut the tokens into too many tiles.
      PlaneShapeError: planes that are not those of such a weight.
      UnsupportedKernelError: no kernel runs it; the message says why.
    """
    out_dtype = jnp.dtype(x.dtype if out_dtype is None else out_dtype)
    hardware = _require(kind, x.shape[0], n, k, x.dtype, out_dtype, hardware)
    if x.ndim != 2 or x.shape[1] != k:
        raise PlaneShapeError(f"x has shape {list(x.shape)}; a [{n}, {k}] weight needs [m, {k}]")
    check_planes(planes, kind=kind, n=n, k=k)
    m = x.shape[0]
    config = config or heuristic_config(m=m, n=n, k=k, sms=hardware.sms)
    if -(-m // config.tokens) > _MOST_PROGRAMS:
        raise KernelConfigError(f"{config}: {m} tokens are more than {_MOST_PROGRAMS} tiles: choose more tokens a tile")
    grid, constants = matmul_launch(kind, m, n, k, config)
    parts = _call(
        "matmul_kernel", (lane_order(x, kind), *operands(planes)), hardware, grid,
        jax.ShapeDtypeStruct((config.split_k, m, n), jnp.float32 if config.split_k > 1 else out_dtype),
        config.warps, config.stages, **constants, DOT=_language().bfloat16,
    )  # fmt: skip
    return parts[0] if config.split_k == 1 else parts.sum(0).astype(out_dtype)


def take_rows(
    planes: WeightPlanes, ids: Int[Array, " tokens"], *, kind: str, n: int, k: int, out_dtype: Any = jnp.bfloat16,
    hardware: Hardware | None = None,
) -> Float[Array, "tokens k"]:  # fmt: skip
    """y[t] = row ids[t] of the [n, k] weight, decoded in float32 and rounded once.

    Args:
      planes: raw planes of the weight.
      ids: rows to take, clipped to 0..n - 1.
      kind: a name of `WEIGHT_KINDS`.
      n: rows of the weight.
      k: columns of the weight.
      out_dtype: bfloat16 or float32.
      hardware: the device; None for the first GPU jax sees.

    Returns:
      out_dtype [tokens, k].

    Raises:
      PlaneShapeError: planes that are not those of such a weight.
      UnsupportedKernelError: no kernel runs it; the message says why.
    """
    tokens = ids.shape[0]
    hardware = _require(kind, 1, n, k, jnp.bfloat16, out_dtype, hardware)
    check_planes(planes, kind=kind, n=n, k=k)
    result = jax.ShapeDtypeStruct((tokens, k), jnp.dtype(out_dtype))
    if not tokens:
        return jnp.zeros(result.shape, result.dtype)
    grid, constants = gather_launch(kind, tokens, n, k)
    return _call("gather_kernel", (row_numbers(ids, n), *operands(planes)), hardware, grid, result, 4, 1, **constants)


def matmul_launch(kind: str, m: int, n: int, k: int, config: TritonConfig) -> tuple[tuple[int, int, int], dict]:
    """Grid and constants of `matmul_kernel`, DOT aside."""
    grid = (-(-n // config.rows), -(-m // config.tokens), config.split_k)
    return grid, {
        "M": m, "N": n, "K": k, "KIND": kind, "BITS": weight_kind(kind).code_bits,
        "BLOCK_N": config.rows, "BLOCK_M": config.tokens, "SPLIT": config.split_k,
    }  # fmt: skip


def gather_launch(kind: str, tokens: int, n: int, k: int) -> tuple[tuple[int, int], dict]:
    """Grid and constants of `gather_kernel`."""
    constants = {"N": n, "K": k, "KIND": kind, "BITS": weight_kind(kind).code_bits, "BLOCK": _GATHER_BLOCK}
    return (tokens, -(-k // _GATHER_BLOCK)), constants


def lane_order(x: BFloat16[Array | np.ndarray, "m k"], kind: str) -> BFloat16[Array, "m padded"]:
    """x with zeros up to a multiple of 64 columns; for codes in nibbles the even columns of each 64 come first."""
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % 64)))
    if weight_kind(kind).code_plane_bits == 8:
        return x
    return x.reshape(x.shape[0], -1, 32, 2).swapaxes(2, 3).reshape(x.shape)


def operands(planes: WeightPlanes) -> tuple[Any, ...]:
    """Codes, high bits, scales and divisor; a plane its kind does not have, which no kernel reads, is the codes'."""
    absent = planes.codes
    divisor = absent if planes.divisor is None else planes.divisor
    return planes.codes, absent if planes.high is None else planes.high, planes.scales, divisor


def _require(kind: str, m: int, n: int, k: int, x_dtype: Any, out_dtype: Any, hardware: Hardware | None) -> Hardware:
    hardware = hardware or visible_hardware()
    reason = unsupported_reason(kind=kind, m=m, n=n, k=k, x_dtype=x_dtype, out_dtype=out_dtype, hardware=hardware)
    if reason is not None or hardware is None:
        raise UnsupportedKernelError(f"{kind} [{n}, {k}], {m} tokens: {reason}")
    return hardware


def _call(
    kernel: str, arrays: tuple[Any, ...], hardware: Hardware, grid: tuple[int, ...], result: jax.ShapeDtypeStruct,
    warps: int, stages: int, **constants: Any,
) -> jax.Array:  # fmt: skip
    major, minor = hardware.compute_capability
    call, newer = _jax_triton()
    named = {"out_type": result, "backend_options": COMPILER_OPTIONS}
    return call(
        *map(jnp.asarray, arrays),
        kernel=getattr(importlib.import_module("pallas_kernels.triton._kernels"), kernel),
        grid=grid,
        num_warps=warps,
        num_stages=stages,
        compute_capability=major * 10 + minor,
        **(named if newer else {"out_shape": result, **COMPILER_OPTIONS}),
        **constants,
    )


@functools.cache
def _jax_triton() -> tuple[Any, bool]:
    """`triton_call`, and whether it is that of 0.4 or newer."""
    module, version = importlib.import_module("jax_triton"), _numbers(importlib.metadata.version("jax-triton"))
    if jax.__version_info__ >= (0, 12) and version <= (0, 4, 1):
        primitive = importlib.import_module("jax_triton.triton_lib").triton_kernel_call_p
        partial_eval.dce_rules[primitive] = _keep  # pyright: ignore[reportArgumentType]
    return module.triton_call, version >= (0, 4)


def _keep(used_results: list[bool], live_operands: list[bool], equation: Any) -> tuple[list[bool], Any]:
    """The rule of three arguments: a kernel is kept with all of its operands."""
    return [True] * len(equation.invars), equation


def _language() -> Any:
    return importlib.import_module("triton.language")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
