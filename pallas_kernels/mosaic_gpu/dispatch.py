"""The public calls: which kernel a problem gets, with which configuration, and why it gets none.

M up to 16 goes to the decode kernel, more to the prefill kernel, Hopper's or Blackwell's by compute capability, and
every M to the portable kernel on A100, RTX 40 and RTX 50. The kernel that quantizes activations (nvfp4_w4a4) is never
chosen here. A configuration comes from the table of measured ones where it has the problem, else from the kernel's
model of the device. Leaves out the kernels themselves. Source: gpu-kernels, ops-and-criteria.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, BFloat16, Float

from pallas_kernels.autotune import Problem, measured_config
from pallas_kernels.errors import PlaneShapeError, UnsupportedKernelError
from pallas_kernels.hardware import H100, Hardware, visible_hardware
from pallas_kernels.mosaic_gpu import (
    _decode_plan,
    _decode_plan_sm100,
    _portable_plan,
    decode_sm90,
    decode_sm100,
    portable_mma,
    prefill_sm90,
    prefill_sm100,
)
from pallas_kernels.mosaic_gpu.call import Call
from pallas_kernels.mosaic_gpu.planning import Product
from pallas_kernels.planes import WeightPlanes, check_planes, plane_shapes
from pallas_kernels.tiling import WEIGHT_KINDS, DecodeConfig, PortableConfig, PrefillConfig, StreamConfig

_FIRST_JAX, _FIRST_PORTABLE_JAX = (0, 11, 2), (0, 12, 0)
_KERNELS = {
    "decode_sm90": decode_sm90,
    "prefill_sm90": prefill_sm90,
    "decode_sm100": decode_sm100,
    "prefill_sm100": prefill_sm100,
    "portable_mma": portable_mma,
}
#: Where the static counts of kernels that unpack each weight once are.
_STATIC = {"decode_sm90": _decode_plan, "decode_sm100": _decode_plan_sm100, "portable_mma": _portable_plan}
#: Suffix of the kernels of a compute capability.
_ARCHITECTURES = {(9, 0): "sm90", (10, 0): "sm100"}
#: Compute capabilities that the portable kernel serves, whatever the number of tokens.
_PORTABLE = ((8, 0), (8, 9), (12, 0))
_NEEDED = "8.0 (A100), 8.9 (RTX 40), 9.0 (H100, H200), 10.0 (B200) or 12.0 (RTX 50)"
Config = StreamConfig | DecodeConfig | PrefillConfig | PortableConfig


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a call would run.

    Attributes:
      kernel: "decode_sm90", "prefill_sm90", "decode_sm100", "prefill_sm100" or "portable_mma".
      config: its configuration.
      source: "heuristic", "measured" (the packaged table) or "given".
      bound: what limits it at the roofline: "memory", "tensor" or "issue".
      lower_bound_us: microseconds below which no run of it can be.
      hardware: the device it is for.
    """

    kernel: str
    config: Config
    source: str
    bound: str
    lower_bound_us: float
    hardware: str

    def __str__(self) -> str:
        return (
            f"{self.kernel} on {self.hardware}, {self.source} {self.config}: {self.bound} bound, "
            f"at least {self.lower_bound_us:.1f} us"
        )


def kernel_for(m: int, hardware: Hardware = H100) -> str:
    """The kernel that m tokens get on a device."""
    if hardware.compute_capability in _PORTABLE:
        return "portable_mma"
    regime = "decode" if m <= decode_sm90.MAX_M else "prefill"
    return f"{regime}_{_ARCHITECTURES[hardware.compute_capability]}"


def unsupported_reason(
    *, kind: str, m: int, n: int, k: int, x_dtype: Any, out_dtype: Any, hardware: Hardware | None = None
) -> str | None:
    """Why no kernel runs a problem, or None where one does.

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
    if jax.__version_info__ < _FIRST_JAX:
        return f"jax {jax.__version__} is older than 0.11.2, the first the kernels compile with: upgrade jax"
    hardware = hardware or visible_hardware()
    if hardware is None:
        return f"jax sees no GPU; the kernels need one of compute capability {_NEEDED}"
    if hardware.compute_capability in _PORTABLE and jax.__version_info__ < _FIRST_PORTABLE_JAX:
        return f"jax {jax.__version__} is older than 0.12, the first that compiles for a {hardware.name}: upgrade jax"
    if hardware.compute_capability not in (*_ARCHITECTURES, *_PORTABLE):
        return f"{hardware.name} has compute capability {hardware.capability}; the kernels need {_NEEDED}"
    if jnp.dtype(x_dtype) != jnp.bfloat16:
        return f"activations are {jnp.dtype(x_dtype).name}; the kernels take bfloat16: cast x, or use XLA"
    if jnp.dtype(out_dtype) not in (jnp.bfloat16, jnp.float32):
        return f"the result would be {jnp.dtype(out_dtype).name}; the kernels give bfloat16 or float32"
    if m < 1:
        return f"m={m}: the kernels need at least one token"
    try:
        plane_shapes(kind, n, k)
    except PlaneShapeError as error:
        return str(error)
    return None


def explain(
    *, kind: str, m: int, n: int, k: int, gated: bool = False, out_dtype: Any = jnp.bfloat16,
    hardware: Hardware | None = None, config: Config | None = None,
) -> Explanation:  # fmt: skip
    """The kernel and configuration of a problem, and the time it cannot beat.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      m: tokens.
      n: rows of the weight.
      k: columns of the weight.
      gated: whether the rows are [gate; up] of a gated product.
      out_dtype: dtype of the result.
      hardware: the device; None for the first GPU jax sees.
      config: a configuration instead of the chosen one.

    Raises:
      UnsupportedKernelError: no kernel runs it; the message is `unsupported_reason`'s.
    """
    hardware = hardware or visible_hardware()
    reason = unsupported_reason(kind=kind, m=m, n=n, k=k, x_dtype=jnp.bfloat16, out_dtype=out_dtype, hardware=hardware)
    if reason is not None or hardware is None:
        raise UnsupportedKernelError(f"{kind} [{m}, {k}] @ [{n}, {k}].T: {reason}")
    source = "given"
    if config is None:
        config, source = _choose(kind, m, n, k, gated, out_dtype, hardware)
    bound, seconds = lower_bound(kind=kind, m=m, n=n, k=k, gated=gated, out_dtype=out_dtype, hardware=hardware)
    return Explanation(kernel_for(m, hardware), config, source, bound, seconds * 1e6, hardware.name)


def lower_bound(
    *, kind: str, m: int, n: int, k: int, gated: bool = False, out_dtype: Any = jnp.bfloat16, hardware: Hardware = H100
) -> tuple[str, float]:
    """What bounds a problem at the roofline, and the seconds it takes at least.

    memory: every byte of the weight, x and the result once; tensor: 2*m*n*k operations; issue, where the decode kernel
    unpacks each weight once: the static instructions of its main loop.
    """
    product = Product(kind, m, n, k, hardware, gated, jnp.dtype(out_dtype).itemsize)
    times = {"memory": hardware.memory_seconds(product.traffic), "tensor": hardware.tensor_seconds(m, n, k)}
    if m <= decode_sm90.MAX_M:
        times["issue"] = hardware.issue_seconds(n * k, _STATIC[kernel_for(m, hardware)].INSTRUCTIONS[kind])
    bound = max(times, key=lambda name: times[name])
    return bound, times[bound]


def _choose(kind: str, m: int, n: int, k: int, gated: bool, out_dtype: Any, hardware: Hardware) -> tuple[Config, str]:
    kernel, out_bytes = kernel_for(m, hardware), jnp.dtype(out_dtype).itemsize
    measured = measured_config(Problem(kernel, kind, m, n, k, gated, out_bytes), hardware.name)
    if measured is not None:
        return measured, "measured"
    return _KERNELS[kernel].PLANNER.heuristic_config(Product(kind, m, n, k, hardware, gated, out_bytes)), "heuristic"


def heuristic_config(
    *, kind: str, m: int, n: int, k: int, gated: bool = False, out_bytes: int = 2, hardware: Hardware = H100
) -> Config:
    """The candidate with the smallest predicted time, measured tables left aside.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      m: tokens.
      n: rows of the weight ([gate; up] for a gated product).
      k: columns of the weight.
      gated: whether the product is a gated one.
      out_bytes: bytes of an element of the result.
      hardware: the device.
    """
    product = Product(kind, m, n, k, hardware, gated, out_bytes)
    return _KERNELS[kernel_for(m, hardware)].PLANNER.heuristic_config(product)


def candidate_configs(
    *, kind: str, m: int, n: int, k: int, gated: bool = False, out_bytes: int = 2, hardware: Hardware = H100
) -> tuple[Config, ...]:
    """Every configuration worth trying; the arguments are `heuristic_config`'s."""
    product = Product(kind, m, n, k, hardware, gated, out_bytes)
    return _KERNELS[kernel_for(m, hardware)].PLANNER.candidate_configs(product)


def matmul(
    x: BFloat16[Array, "m k"], planes: WeightPlanes, *, kind: str, n: int, k: int, out_dtype: Any = None,
    bias: Float[Array, " n"] | None = None, residual: Float[Array, "m n"] | None = None,
    config: Config | None = None, hardware: Hardware | None = None, interpret: Any = False,
) -> Float[Array, "m n"]:  # fmt: skip
    """y = x @ W.T + bias + residual, summed in float32 and rounded once.

    Args:
      x: bfloat16 [m, k].
      planes: raw planes of the [n, k] weight.
      kind: a name of `WEIGHT_KINDS`.
      n: rows of the weight.
      k: columns of the weight.
      out_dtype: bfloat16 or float32; None for x's dtype.
      bias: [n] or None.
      residual: [m, n] or None.
      config: a configuration instead of the chosen one.
      hardware: the device; None for the first GPU jax sees (an H100 when interpreting).
      interpret: False, or the parameters of Pallas' GPU interpreter.

    Returns:
      out_dtype [m, n].

    Raises:
      PlaneShapeError: planes that are not those of such a weight.
      UnsupportedKernelError: no kernel runs it; the message says why.
    """
    return _run(x, planes, kind, n, k, out_dtype, config, hardware, interpret, bias=bias, residual=residual)


def gated_matmul(
    x: BFloat16[Array, "m k"], planes: WeightPlanes, *, kind: str, n: int, k: int, activation: str = "silu",
    out_dtype: Any = None, bias: Float[Array, " n"] | None = None, residual: Float[Array, "m half"] | None = None,
    config: Config | None = None, hardware: Hardware | None = None, interpret: Any = False,
) -> Float[Array, "m half"]:  # fmt: skip
    """y = act(x @ gate.T) * (x @ up.T) + residual over a [gate; up] parent of n rows.

    Args:
      x: bfloat16 [m, k].
      planes: raw planes of the [n, k] parent, gate rows first.
      kind: a name of `WEIGHT_KINDS`.
      n: rows of the parent, even.
      k: columns of the parent.
      activation: "silu", "gelu_tanh" or "identity".
      out_dtype: bfloat16 or float32; None for x's dtype.
      bias: [n] added before the activation and the product, or None.
      residual: [m, n / 2] or None.
      config: a configuration instead of the chosen one.
      hardware: the device; None for the first GPU jax sees (an H100 when interpreting).
      interpret: False, or the parameters of Pallas' GPU interpreter.

    Returns:
      out_dtype [m, n / 2].

    Raises:
      PlaneShapeError: planes that are not those of such a weight, or an odd n.
      UnsupportedKernelError: no kernel runs it; the message says why.
    """
    if n % 2:
        raise PlaneShapeError(f"a [gate; up] parent of {n} rows has no halves: n must be even")
    return _run(
        x, planes, kind, n, k, out_dtype, config, hardware, interpret,
        bias=bias, residual=residual, activation=activation,
    )  # fmt: skip


def _run(
    x: jax.Array, planes: WeightPlanes, kind: str, n: int, k: int, out_dtype: Any, config: Any,
    hardware: Hardware | None, interpret: Any, **fused: Any,
) -> jax.Array:  # fmt: skip
    interpreted = interpret is not False and interpret is not None
    hardware = hardware or (H100 if interpreted else visible_hardware())
    out_dtype = jnp.dtype(x.dtype if out_dtype is None else out_dtype)
    reason = unsupported_reason(
        kind=kind, m=x.shape[0], n=n, k=k, x_dtype=x.dtype, out_dtype=out_dtype, hardware=hardware
    )
    if reason is not None or hardware is None:
        raise UnsupportedKernelError(f"{kind} {list(x.shape)} @ [{n}, {k}].T: {reason}")
    if x.ndim != 2 or x.shape[1] != k:
        raise PlaneShapeError(f"x has shape {list(x.shape)}; a [{n}, {k}] weight needs [m, {k}]")
    check_planes(planes, kind=kind, n=n, k=k)
    if config is None:
        config, _ = _choose(kind, x.shape[0], n, k, fused.get("activation") is not None, out_dtype, hardware)
    call = Call(kind, n, k, out_dtype, hardware, interpret=interpret if interpreted else False, **fused)
    return _KERNELS[kernel_for(x.shape[0], hardware)].run(x, planes, config, call)
