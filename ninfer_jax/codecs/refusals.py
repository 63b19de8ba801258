"""Why an encoder refused a source: the first offending coordinate, found on the host (tensor-formats §7.1, §8).

Only runs after an encoder reported failure. It repeats each profile's acceptance rule element by element; it leaves out
everything else about encoding.
"""

import numpy as np

from ninfer_jax._typing import AnyArray
from ninfer_jax.codecs.fp8_row_encoder import REFUSED_MAGNITUDE
from ninfer_jax.codecs.grouped_encoder import refused_maximum
from ninfer_jax.codecs.nvfp4_encoder import LARGEST_DIVISOR, LARGEST_SCALED, SMALLEST_DIVISOR
from ninfer_jax.codecs.sources import INFINITY_WORD
from ninfer_jax.errors import EncodeError
from ninfer_jax.formats import BlockScaledFormat, GroupedFormat, QuantizedFormat


def explain_refusal(
    x: AnyArray, spec: QuantizedFormat, divisor: int | None = None, *, first_row: int = 0
) -> EncodeError:
    """Return the error that names the first value of `x`, in row-major order, which `spec`'s encoder refuses.

    Args:
        x: the source that failed, float32, bfloat16 or float16.
        spec: the format.
        divisor: the binary32 word of a divisor given by the caller (NVFP4), else None.
        first_row: the row of a larger tensor where `x` begins, in whose coordinates the error speaks.
    """
    if divisor is not None and not SMALLEST_DIVISOR <= divisor <= LARGEST_DIVISOR:
        return EncodeError(
            f"{spec.name}: divisor word {divisor:#010x} is not a positive normal binary32 number; take it "
            "from nvfp4_divisor"
        )
    values = np.asarray(x).astype(np.float32)
    magnitudes = values.view(np.uint32) & 0x7FFFFFFF
    if isinstance(spec, BlockScaledFormat):
        limit = INFINITY_WORD if divisor is None else _largest_for(divisor)
    else:
        limit = refused_maximum(spec) if isinstance(spec, GroupedFormat) else REFUSED_MAGNITUDE
    bad = magnitudes >= limit
    at = np.unravel_index(int(bad.argmax()), bad.shape)
    place = f"x[{', '.join(map(str, (at[0] + first_row, *at[1:])))}]"
    if magnitudes[at] >= INFINITY_WORD:
        return EncodeError(
            f"{spec.name}: {place} is {values[at]!s}; only finite values can be quantized ({int(bad.sum())} refused)"
        )
    largest = (np.uint32(limit) - np.uint32(1)).view(np.float32)
    return EncodeError(
        f"{spec.name}: {place} = {values[at]!s} is too large for a scale of the format; magnitudes up to {largest!s} "
        f"can be quantized ({int(bad.sum())} refused)"
    )


def _largest_for(divisor: int) -> int:
    """The smallest binary32 magnitude word that the divisor scales beyond the range of NVFP4."""
    low, high = 0, INFINITY_WORD
    factor = np.uint32(divisor).view(np.float32)
    top = np.uint32(LARGEST_SCALED).view(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        while low < high:
            middle = (low + high) // 2
            if np.uint32(middle).view(np.float32) * factor > top:
                high = middle
            else:
                low = middle + 1
    return low
