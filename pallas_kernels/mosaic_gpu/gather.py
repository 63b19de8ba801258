"""Rows of a packed weight, decoded: the embedding look-up. Has not run on a GPU.

    y[t, k] = round(code[ids[t], k] * scale[ids[t], k // group]),    nvfp4: ... / divisor

exact in every bit: decoded in float32 and rounded once more where y is bfloat16. A block of the launch is one
warpgroup, which decodes part of the columns of a few rows. What it does over time:

    start    read the ids of its rows, clip them to the weight, and load the packed words of all its rows from device
             memory, each word by the thread that decodes it: codes and high bits once, a scale by all its threads
    then     row by row: decode 8 columns a register (4 where a code takes a byte) and store them next to each other

Nothing passes through shared memory and no thread needs another's values, so rows may start at any byte of a plane, and
nothing but the packed words of the rows asked for is read (a block scale of NVFP4 with the 32 byte sector it lies in).
Where the columns of a row do not divide, the last of its blocks decodes smaller pieces. XLA cuts y where columns are
padded; an fp8 weight whose columns are no multiple of 32 has its packed rows gathered and padded by XLA first. Leaves
out ids that are to be filled or wrapped. Source: storage-layouts; tensor-formats §3, §5; gpu-kernels.
"""

# The oldest jax, which the type checker sees, wants an index in `plgpu.load` and has no `out_type`.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

import functools
from typing import Any, NamedTuple

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.errors import UnsupportedKernelError
from pallas_kernels.hardware import H100, Hardware, visible_hardware
from pallas_kernels.mosaic_gpu import _row_values, dispatch
from pallas_kernels.mosaic_gpu._row_values import TILE_SPANS, WORDS, PackedWords, span_layout
from pallas_kernels.planes import WeightPlanes, check_planes, plane_bytes, row_numbers
from pallas_kernels.tiling import GatherConfig, weight_kind

_SPAN_BYTES = 4 * WORDS
#: Blocks a multiprocessor should have before rows share one.
_BLOCKS_PER_SM = 16
#: Spans of a plane or of a result are counted in 32 bits.
_MOST_SPANS = 2**31


class _Plan(NamedTuple):
    """Sizes of one launch. All static.

    Attributes:
      kind: a name of `WEIGHT_KINDS`.
      tokens: rows to take.
      n: rows of the weight.
      row_spans: spans of 32 bytes of codes of a row.
      rows: rows of a block.
      spans: spans of each row that a block decodes.
    """

    kind: str
    tokens: int
    n: int
    row_spans: int
    rows: int
    spans: int

    @property
    def whole_parts(self) -> int:
        """Blocks that share a row and decode `spans` of it."""
        return self.row_spans // self.spans

    def last_pieces(self) -> list[tuple[int, int]]:
        """First span and number of spans of what the last block of a row decodes where they do not divide."""
        first, pieces = self.whole_parts * self.spans, []
        while first < self.row_spans:
            left = self.row_spans - first
            size = left // TILE_SPANS * TILE_SPANS or next(size for size in (8, 4, 2, 1) if size <= left)
            pieces.append((first, size))
            first += size
        return pieces


def _row_spans(kind: str, k: int) -> int:
    """Spans of a row of codes; what pads fp8 included."""
    return -(-weight_kind(kind).k_padded(k) * weight_kind(kind).code_plane_bits // (8 * _SPAN_BYTES))


def gather_unsupported_reason(
    *, kind: str, tokens: int, n: int, k: int, out_dtype: Any, hardware: Hardware | None = None
) -> str | None:
    """Why the kernel cannot take rows of a weight, or None where it can.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      tokens: rows to take.
      n: rows of the weight.
      k: columns of the weight.
      out_dtype: dtype of the result.
      hardware: the device; None for the first GPU jax sees.
    """
    reason = dispatch.unsupported_reason(
        kind=kind, m=max(tokens, 1), n=n, k=k, x_dtype=jnp.bfloat16, out_dtype=out_dtype, hardware=hardware
    )
    if reason is not None:
        return reason
    if max(n, tokens) * _row_spans(kind, k) >= _MOST_SPANS:
        return f"{n} rows of {k} columns, {tokens} of them taken, are more than the kernel counts: take fewer at a time"
    return None


def heuristic_config(*, kind: str, tokens: int, k: int, hardware: Hardware = H100) -> GatherConfig:
    """As many rows a block as leave every multiprocessor enough blocks to hide how long memory takes.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      tokens: rows to take.
      k: columns of the weight.
      hardware: the device.
    """
    blocks = tokens * -(-_row_spans(kind, k) // TILE_SPANS)
    return GatherConfig(next((rows for rows in (4, 2) if blocks >= rows * _BLOCKS_PER_SM * hardware.sms), 1))


def lower_bound(
    *, kind: str, tokens: int, n: int, k: int, out_dtype: Any = jnp.bfloat16, hardware: Hardware = H100
) -> float:
    """(packed bytes of the rows + bytes of the result) / bandwidth, the seconds no run can beat.

    Args:
      kind: a name of `WEIGHT_KINDS`.
      tokens: rows to take.
      n: rows of the weight.
      k: columns of the weight.
      out_dtype: dtype of the result.
      hardware: the device.
    """
    return hardware.memory_seconds(tokens * (plane_bytes(kind, n, k) / n + k * jnp.dtype(out_dtype).itemsize))


def take_rows(
    planes: WeightPlanes,
    ids: Int[Array, " tokens"],
    *,
    kind: str,
    n: int,
    k: int,
    out_dtype: Any = jnp.bfloat16,
    config: GatherConfig | None = None,
    hardware: Hardware | None = None,
    interpret: Any = False,
) -> Float[Array, "tokens k"]:
    """y[t] = row ids[t] of the [n, k] weight, decoded in float32 and rounded once.

    Args:
      planes: raw planes of the weight.
      ids: rows to take, clipped to 0..n - 1.
      kind: a name of `WEIGHT_KINDS`.
      n: rows of the weight.
      k: columns of the weight.
      out_dtype: bfloat16 or float32.
      config: a configuration instead of the chosen one.
      hardware: the device; None for the first GPU jax sees (an H100 when interpreting).
      interpret: False, or the parameters of Pallas' GPU interpreter.

    Returns:
      out_dtype [tokens, k].

    Raises:
      PlaneShapeError: planes that are not those of such a weight.
      UnsupportedKernelError: the kernel cannot run; the message says why.
    """
    interpreted = interpret is not False and interpret is not None
    hardware = hardware or (H100 if interpreted else visible_hardware())
    out_dtype, tokens = jnp.dtype(out_dtype), ids.shape[0]
    reason = gather_unsupported_reason(kind=kind, tokens=tokens, n=n, k=k, out_dtype=out_dtype, hardware=hardware)
    if reason is not None or hardware is None:
        raise UnsupportedKernelError(f"{kind} [{n}, {k}], {tokens} rows of it: {reason}")
    check_planes(planes, kind=kind, n=n, k=k)
    if not tokens:
        return jnp.zeros((0, k), out_dtype)
    ids = row_numbers(ids, n)
    if kind == "fp8" and k % _SPAN_BYTES:
        planes, ids, n = _padded_rows(planes, jnp.clip(ids, 0, n - 1), k)
    config = config or heuristic_config(kind=kind, tokens=tokens, k=k, hardware=hardware)
    plan = _Plan(kind, tokens, n, _row_spans(kind, k), min(config.rows, tokens), config.spans)
    return _launch(planes, ids, plan, out_dtype, interpret if interpreted else False).reshape(tokens, -1)[:, :k]


def _padded_rows(planes: WeightPlanes, ids: jax.Array, k: int) -> tuple[WeightPlanes, jax.Array, int]:
    """The packed rows asked for as an fp8 weight of their own, of whole spans."""
    codes = jnp.pad(jnp.asarray(planes.codes)[ids], ((0, 0), (0, -k % _SPAN_BYTES)))
    own = planes._replace(codes=codes, scales=jnp.asarray(planes.scales)[ids])
    return own, jnp.arange(ids.shape[0], dtype=jnp.int32), ids.shape[0]


def _arrays(planes: WeightPlanes, ids: jax.Array, plan: _Plan) -> dict[str, jax.Array]:
    """What the kernel reads: the ids, and the planes seen as words of spans, none of them copied."""
    spans = plan.n * plan.row_spans
    words = lambda plane, dtype: lax.bitcast_convert_type(jnp.asarray(plane).reshape(spans, WORDS, -1), dtype)
    arrays = {"ids": ids, "codes": words(planes.codes, jnp.uint32)}
    if planes.high is not None:
        dtype = jnp.uint8 if plan.kind == "q5" else jnp.uint16
        arrays["high"] = words(planes.high, dtype).reshape(spans, WORDS)
    scales = jnp.asarray(planes.scales)
    if plan.kind == "nvfp4":
        # [tile and span, row % 32 and row // 32, group of the span].
        arrays["scales"] = scales.reshape(-1, 128, 4)
        arrays["whole"] = jnp.asarray(planes.divisor).reshape(1)
    else:
        arrays["whole" if plan.kind == "fp8" else "scales"] = scales.reshape(-1)
    return arrays


def _launch(planes: WeightPlanes, ids: jax.Array, plan: _Plan, out_dtype: Any, interpret: Any) -> jax.Array:
    """out_dtype [tokens * row_spans, columns of a span]."""
    columns = WORDS * _row_values.columns_of_word(plan.kind)
    kernel = plgpu.kernel(
        functools.partial(_body, plan, interpret is not False),
        out_type=jax.ShapeDtypeStruct((plan.tokens * plan.row_spans, columns), out_dtype),
        grid=(plan.whole_parts + bool(plan.last_pieces()), -(-plan.tokens // plan.rows)),
        grid_names=("part", "rows"),
        # A thread stores what it loaded itself: none has to wait for another.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        interpret=interpret,
    )
    return kernel(_arrays(planes, ids, plan))


def _body(plan: _Plan, interpret: bool, gmem: dict[str, Any], y_gmem: Any) -> None:
    """The kernel: one block. The last one takes a row again where rows do not divide."""
    part, block = lax.axis_index("part"), lax.axis_index("rows")
    tokens = [jnp.minimum(block * plan.rows + i, plan.tokens - 1) for i in range(plan.rows)]
    rows = [jnp.clip(gmem["ids"][token], 0, plan.n - 1) for token in tokens]

    def decode(first: Any, spans: int) -> None:
        packed = [_load(plan, gmem, row, first, spans) for row in rows]
        for token, words in zip(tokens, packed, strict=True):
            values = _row_values.row_values(plan.kind, words, out_dtype=y_gmem.dtype, interpret=interpret)
            _store(y_gmem.at[pl.ds(token * plan.row_spans + first, spans), :], values)

    if plan.whole_parts:

        @pl.when(part < plan.whole_parts)
        def _whole() -> None:
            decode(part * plan.spans, plan.spans)

    if pieces := plan.last_pieces():

        @pl.when(part == plan.whole_parts)
        def _last() -> None:
            for first, spans in pieces:
                decode(first, spans)


def _store(place: Any, values: jax.Array) -> None:
    # jax 0.11 has no such call and asks nothing of a store; later, one that writes half sectors has to say so.
    if hasattr(plgpu, "store"):
        plgpu.store(place, values, optimized=False)
    else:
        place[...] = values


def _load(plan: _Plan, gmem: dict[str, Any], row: Any, first: Any, count: int) -> PackedWords:
    """The packed words of some spans of a row."""
    spans = pl.ds(row * plan.row_spans + first, count)
    load = functools.partial(plgpu.load, optimized=False)
    layout, scales_layout = span_layout(count, WORDS), _row_values.scales_layout(plan.kind, count)
    codes = load(gmem["codes"].at[spans, :], layout=layout)
    if plan.kind == "fp8":
        return PackedWords(codes, whole=gmem["whole"][row].astype(jnp.uint32) << 16)
    if plan.kind == "nvfp4":
        tiles = pl.ds(lax.div(row, 128) * plan.row_spans + first, count)
        place = lax.rem(row, 32) * 4 + lax.div(lax.rem(row, 128), 32)
        scales = load(gmem["scales"].at[tiles, place, :], layout=scales_layout)
        return PackedWords(codes, scales=scales, whole=gmem["whole"][0])
    high = load(gmem["high"].at[spans, :], layout=layout) if "high" in gmem else None
    return PackedWords(codes, high, load(gmem["scales"].at[spans], layout=scales_layout))
