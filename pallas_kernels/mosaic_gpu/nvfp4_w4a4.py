"""NVFP4 weights times NVFP4 activations on Blackwell's block-scaled tensor cores. Opt-in by name; not run on a GPU.

    y[m, n] = f[m] / divisor * sum over k of (xc[m, k] * xs[m, k // 16]) * (wc[n, k] * ws[n, k // 16])

Both operands are E2M1 codes with an E4M3FN scale for every 16 columns, so this *quantizes activations*: another numeric
contract than every other kernel here, with a criterion of its own, relative L2 <= 0.16 against the bfloat16
activations, and never a default. `quantize_activations` is the encoder. The kernel is prefill_sm100's without its
unpackers: the copier brings the stored code plane and the stored 128x4 scale tiles of W as they are (no copy, no bit
moved), the multiplier copies a stage's scales from shared to tensor memory and multiplies (mxf4nvf4, 16 columns a
scale), the finisher applies f and the divisor. Rows of W are the 128 lanes. The interpreter has no block-scaled
multiply: there `_stand_in` multiplies the same values, exact in bfloat16. Source: gpu-kernels, storage-layouts.
"""

import dataclasses
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, UInt8

from pallas_kernels.hardware import B200, Hardware
from pallas_kernels.mosaic_gpu._epilogue import Epilogue, finish_sums
from pallas_kernels.mosaic_gpu._prefill_plan_sm100 import (
    OUT_SLOTS,
    OUT_TOKENS,
    TMEM_COLUMNS,
    PrefillPlan,
    row_layout,
)
from pallas_kernels.mosaic_gpu._row_tiles import tile_transforms
from pallas_kernels.mosaic_gpu._row_unpack import LANES, rows_twin
from pallas_kernels.mosaic_gpu.prefill_sm100 import launch
from pallas_kernels.planes import WeightPlanes
from pallas_kernels.tiling import require_fits, require_one_of

#: The name this implementation is asked for by.
IMPLEMENTATION = "mosaic_nvfp4_w4a4"
#: The relative L2 error, against bfloat16 activations, that is allowed.
CRITERION = 0.16
_LARGEST_CODE, _LARGEST_SCALE = 6.0, 448.0
#: What a row is multiplied by at most, so that rows of tiny values do not overflow the factor.
_LARGEST_FACTOR = 2.0**100
_BLOCK, _SCALE_TILE = 16, 64
_SMEM_RESERVE = 2048


@dataclasses.dataclass(frozen=True)
class W4A4Config:
    """How the kernel cuts up y = x @ W.T.

    Attributes:
      block_m: rows of x a block computes at a time, 128 or 256: whole scale tiles.
      block_k: columns of x and W in one stage, 128 or 256.
      stages: stages of the ring that the copier fills ahead of the multiplier.
    """

    block_m: int = 128
    block_k: int = 256
    stages: int = 4

    def __post_init__(self) -> None:
        require_one_of("block_m", self.block_m, (128, 256))
        require_one_of("block_k", self.block_k, (128, 256))
        require_one_of("stages", self.stages, tuple(range(2, 9)))


def quantize_activations(
    x: Float[Array, "m k"],
) -> tuple[UInt8[Array, "m half_k"], UInt8[Array, "tiles_m tiles_k 32 4 4"], Float[Array, " m"]]:
    """x[m, k] is about f[m] * scale[m, k // 16] * code[m, k].

    A row's factor maps its largest magnitude to 6 * 448, the largest a code times a scale can be:

        f = amax(row) / 2688,   scale = E4M3FN(amax(block) / f / 6),   code = E2M1(x / f / scale)

    both rounded to nearest, ties to even, 1 / 6 being the float32 next to it; a block whose scale rounds to zero gets zero codes. Rows are independent of
    each other. A row with a value that is not finite gets a factor that is not finite.

    Args:
      x: [m, k], k a multiple of 64.

    Returns:
      codes: two a byte, the even column in the low nibble.
      scales: as NVFP4 stores them, [m // 128, k // 64, m % 32, m % 128 // 32, k // 16 % 4], zero past m.
      factors: float32 f.
    """
    m, k = x.shape
    blocks = x.astype(jnp.float32).reshape(m, k // _BLOCK, _BLOCK)
    largest = jnp.max(jnp.abs(blocks), axis=(1, 2))
    whole = _LARGEST_CODE * _LARGEST_SCALE
    inverse = jnp.where(largest == 0, 1.0, jnp.minimum(whole / largest, _LARGEST_FACTOR))
    blocks = blocks * inverse[:, None, None]
    # No quotient but the one above: compilers turn others into products with a reciprocal, and halfway points move.
    values = _round_to_e4m3fn(jnp.max(jnp.abs(blocks), axis=2) * (1.0 / _LARGEST_CODE))
    scales, values = values.astype(jnp.float8_e4m3fn), values[:, :, None]
    codes = jnp.where(values > 0, _e2m1_codes(blocks, values), 0).reshape(m, k)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    words = jnp.pad(lax.bitcast_convert_type(scales, jnp.uint8), ((0, -m % LANES), (0, 0)))
    tiles = words.reshape(-1, 4, 32, k // _SCALE_TILE, 4).transpose(0, 3, 2, 1, 4)
    factors = jnp.where(jnp.isfinite(largest), 1.0 / inverse, jnp.nan)
    return packed.astype(jnp.uint8), tiles, factors


def _round_to_e4m3fn(values: jax.Array) -> jax.Array:
    """float32 values from 0 to 448, and a little more, to the nearest E4M3FN value, ties to even.

    Written out because the conversion itself rounds twice on some backends, through binary16.
    """
    binade = lax.bitcast_convert_type(lax.bitcast_convert_type(values, jnp.uint32) & 0x7F800000, jnp.float32)
    step = jnp.maximum(binade, 2.0**-6) * 2.0**-3
    return jnp.minimum(jnp.rint(values / step) * step, _LARGEST_SCALE)


def _e2m1_codes(values: jax.Array, unit: jax.Array) -> jax.Array:
    """The nearest E2M1 code of values / unit, ties to the even code; beyond 6 the largest."""
    size = jnp.abs(values)
    # Halfway points between 0, 0.5, 1, 1.5, 2, 3, 4 and 6, exact times a unit of 4 bits; one whose upper neighbor is
    # even belongs to that one.
    code = sum((size > t * unit).astype(jnp.int32) for t in (0.25, 1.25, 2.5, 5.0))
    code = code + sum((size >= t * unit).astype(jnp.int32) for t in (0.75, 1.75, 3.5))
    return code | jnp.where(values < 0, 8, 0)


class _Plan(PrefillPlan):
    """Sizes of one launch, and how its stages are copied and multiplied."""

    def __init__(self, m: int, n: int, k: int, config: W4A4Config, out_dtype: Any):
        self.config, self.kind, self.parts, self.unpackers = config, "nvfp4", 1, 0
        self.m, self.n_out, self.out_dtype = m, n, jnp.dtype(out_dtype)
        self.m_tiles, self.n_tiles = -(-m // config.block_m), n // LANES
        self.k_steps = self.steps = -(-k // config.block_k)
        self.split_k, self.tiles = 1, self.m_tiles * self.n_tiles
        self.padded_rows, self.out_tokens = n, OUT_TOKENS
        self.out_tile = 128 // self.out_dtype.itemsize
        self.accumulators = 2 if _tmem_columns(config, 2) <= TMEM_COLUMNS else 1

    @property
    def scale_tiles(self) -> int:
        """128 row scale tiles of a stage's x."""
        return self.config.block_m // LANES

    def scratch(self, interpret: bool) -> dict[str, Any]:
        """Shared memory, tensor memory and barriers."""
        config, stages, size = self.config, self.config.stages, self.out_dtype.itemsize
        units, fp4, fp8 = config.block_k // _SCALE_TILE, jnp.float4_e2m1fn, jnp.float8_e4m3fn
        swizzle = config.block_k // 2
        transforms = (plgpu.TilingTransform((8, 2 * swizzle)), plgpu.SwizzleTransform(swizzle))
        scale_columns = stages * config.block_k // _BLOCK
        barrier = lambda count: plgpu.Barrier(num_barriers=count, orders_tensor_core=True)
        scratch = {
            "w": plgpu.SMEM((stages, LANES, config.block_k), fp4, transforms=transforms),
            "x": plgpu.SMEM((stages, config.block_m, config.block_k), fp4, transforms=transforms),
            "w_scales": plgpu.SMEM((stages, 1, units, 32, 16), fp8),
            "x_scales": plgpu.SMEM((stages, self.scale_tiles, units, 32, 16), fp8),
            "out": plgpu.SMEM(
                (OUT_SLOTS, OUT_TOKENS, LANES), self.out_dtype, transforms=tile_transforms(self.out_tile * size, size)
            ),
            "sums": plgpu.TMEM((LANES, self.accumulators * config.block_m), jnp.float32),
            "full": plgpu.Barrier(num_arrivals=4, num_barriers=stages),
            "empty": barrier(stages),
            "summed": barrier(self.accumulators),
            "read": barrier(self.accumulators),
        }
        if interpret:
            scratch["stand_in_w"] = plgpu.SMEM((stages, LANES, config.block_k), jnp.bfloat16)
            scratch["stand_in_x"] = plgpu.SMEM((stages, config.block_m, config.block_k), jnp.bfloat16)
        else:
            layout = plgpu.TMEMLayout.SCALES_LAYOUT
            scratch["w_scales_tmem"] = plgpu.TMEM((LANES, scale_columns), fp8, layout=layout)
            scratch["x_scales_tmem"] = plgpu.TMEM((config.block_m, scale_columns), fp8, layout=layout)
        return scratch

    def copy_stage(self, gmem: dict[str, Any], smem: dict[str, Any], m0: Any, n0: Any, step: Any, slot: Any) -> None:
        """Start the copies of K step `step` of x from token m0 on and of W from row n0 on into a stage."""
        config, full = self.config, smem["full"].at[slot]
        units = config.block_k // _SCALE_TILE
        columns, tiles = pl.ds(step * config.block_k, config.block_k), pl.ds(step * units, units)
        copies = {
            "w": (pl.ds(n0, LANES), columns),
            "x": (pl.ds(m0, config.block_m), columns),
            "w_scales": (pl.ds(n0 // LANES, 1), tiles),
            "x_scales": (pl.ds(m0 // LANES, self.scale_tiles), tiles),
        }
        for name, where in copies.items():
            plgpu.copy_gmem_to_smem(gmem[name].at[where], smem[name].at[slot], full)

    def multiply_stage(
        self, smem: dict[str, Any], slot: Any, accumulator: Any, accumulate: Any, interpret: bool
    ) -> None:
        """Multiply a stage's codes, each operand with its scales, into an accumulator."""
        sums = self.accumulator(smem["sums"], accumulator, 0)
        if interpret:
            _stand_in(smem, slot, sums, accumulate)
            return
        width = self.config.block_k // _BLOCK
        scales = {}
        for name in ("w", "x"):
            scales[name] = smem[f"{name}_scales_tmem"].at[:, pl.ds(slot * width, width)]
            plgpu.async_copy_scales_to_tmem(smem[f"{name}_scales"].at[slot], scales[name])
        plgpu.tcgen05_mma(
            sums, smem["w"].at[slot], smem["x"].at[slot].T, accumulate=accumulate,
            a_scale=scales["w"], b_scale=scales["x"],
        )  # fmt: skip


def _stand_in(smem: dict[str, Any], slot: Any, sums: Any, accumulate: Any) -> None:
    """sums += w @ x.T with codes times scales as bfloat16, which holds them exactly."""
    for name in ("w", "x"):
        codes = lax.bitcast_convert_type(smem[name][slot], jnp.uint4).astype(jnp.uint32)
        words = jnp.sum(codes.reshape(codes.shape[0], -1, 8) << jnp.arange(0, 32, 4, dtype=jnp.uint32), axis=2)
        scales = lax.bitcast_convert_type(smem[f"{name}_scales"][slot], jnp.uint8)
        scales = scales.reshape(*scales.shape[:-1], 4, 4)
        tiles = lax.bitcast_convert_type(scales, jnp.uint32)
        rows = [
            rows_twin("nvfp4", words[i * LANES : (i + 1) * LANES], None, [tiles[i, u] for u in range(tiles.shape[1])])
            for i in range(tiles.shape[0])
        ]
        smem[f"stand_in_{name}"][slot] = jnp.concatenate(rows)
    plgpu.commit_smem()
    plgpu.tcgen05_mma(sums, smem["stand_in_w"].at[slot], smem["stand_in_x"].at[slot].T, accumulate=accumulate)


def _tmem_columns(config: W4A4Config, accumulators: int) -> int:
    scales = config.stages * config.block_k // _SCALE_TILE * 4 * (1 + config.block_m // LANES)
    return accumulators * config.block_m + scales


def check_config(config: W4A4Config, *, out_bytes: int = 2, hardware: Hardware = B200) -> None:
    """Raise `KernelConfigError` where the kernel cannot run a configuration.

    Args:
      config: the configuration.
      out_bytes: bytes of an element of the result.
      hardware: the device, for its shared memory.
    """
    require_fits(f"{config}: tensor memory (columns)", _tmem_columns(config, 1), TMEM_COLUMNS)
    stage = (LANES + config.block_m) * config.block_k * 9 // 16
    need = config.stages * stage + OUT_SLOTS * OUT_TOKENS * LANES * out_bytes + _SMEM_RESERVE
    require_fits(f"{config}: shared memory (bytes)", need, hardware.smem_per_block)


def candidate_configs(*, m: int) -> tuple[W4A4Config, ...]:
    """Every configuration worth trying for m tokens."""
    sizes = (128,) if m <= 128 else (128, 256)
    return tuple(W4A4Config(block_m, 256, stages) for block_m in sizes for stages in (4,))


def heuristic_config(*, m: int, n: int, hardware: Hardware = B200) -> W4A4Config:
    """The widest tile that still gives every multiprocessor one.

    Args:
      m: tokens.
      n: rows of the weight.
      hardware: the device.
    """
    candidates = candidate_configs(m=m)
    fills = lambda config: -(-m // config.block_m) * -(-n // LANES) >= hardware.sms
    return next((config for config in reversed(candidates) if fills(config)), candidates[0])


def run(
    x: jax.Array,
    planes: WeightPlanes,
    *,
    n: int,
    k: int,
    out_dtype: Any,
    config: W4A4Config,
    bias: jax.Array | None = None,
    residual: jax.Array | None = None,
    activation: str | None = None,
    sms: int = B200.sms,
    interpret: Any = False,
) -> jax.Array:
    """y = quantize_activations(x) @ W.T, plus bias and residual, or gated.

    Args:
      x: bfloat16 [m, k].
      planes: raw planes of the [n, k] NVFP4 weight.
      n: rows of the weight; with an activation they are [gate; up], n / 2 each.
      k: columns of the weight.
      out_dtype: bfloat16 or float32.
      config: how to cut up the work.
      bias: [n] added to each row's product, or None.
      residual: [m, n or n / 2] added to the result by XLA, or None.
      activation: a name of `ACTIVATIONS` for a gated product, applied by XLA, or None.
      sms: blocks that run at once, one a multiprocessor.
      interpret: False, or the parameters of Pallas' GPU interpreter.

    Returns:
      out_dtype [m, n], or [m, n / 2] for a gated product.
    """
    m, later = x.shape[0], activation is not None or residual is not None
    check_config(config, out_bytes=4 if later else jnp.dtype(out_dtype).itemsize)
    codes, scales, factors = quantize_activations(jnp.pad(x, ((0, -m % 8), (0, 0))))
    plan = _Plan(codes.shape[0], n, k, config, jnp.float32 if later else out_dtype)
    epilogue = Epilogue("nvfp4", bias is not None and not later, rows=LANES, row_layout=row_layout())
    operands = {
        "w": _fp4(jnp.asarray(planes.codes)),
        "x": _fp4(codes),
        "w_scales": _scale_tiles(jnp.asarray(planes.scales)),
        "x_scales": _scale_tiles(scales),
        "token_factors": jnp.pad(factors, (0, -factors.shape[0] % config.block_m)),
        **epilogue.operands(planes, None if later else bias, n),
    }
    y = launch(plan, epilogue, operands, min(plan.tiles, sms), interpret)[:m]
    return finish_sums(y, bias, activation, residual, out_dtype) if later else y


def _fp4(codes: jax.Array) -> jax.Array:
    """uint8 [rows, bytes] as float4_e2m1fn [rows, 2 * bytes]."""
    return lax.bitcast_convert_type(codes, jnp.float4_e2m1fn).reshape(codes.shape[0], -1)


def _scale_tiles(scales: jax.Array) -> jax.Array:
    """uint8 [rows / 128, k / 64, 32, 4, 4] as float8_e4m3fn [rows / 128, k / 64, 32, 16]."""
    return lax.bitcast_convert_type(scales.reshape(*scales.shape[:3], 16), jnp.float8_e4m3fn)
