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
    x: AnyArray, spec: QuantizedFormat, divisor: np.ndarray | None = None, *, first_row: int = 0
) -> EncodeError:
    """Return the error that names the first value of `x`, in row-major order, which `spec`'s encoder refuses.

    Args:
        x: the source that failed, float32, bfloat16 or float16.
        spec: the format.
        divisor: the binary32 words of divisors given by the caller, one a matrix (NVFP4), else None.
        first_row: the row of a larger tensor where `x` begins, in whose coordinates the error speaks.
    """
    if divisor is not None:
        illegal = divisor[(divisor < SMALLEST_DIVISOR) | (divisor > LARGEST_DIVISOR)]
        if illegal.size:
            return EncodeError(
                f"{spec.name}: divisor word {int(illegal[0]):#010x} is not a positive normal binary32 number; take it "
                "from nvfp4_divisor"
            )
    values = np.asarray(x).astype(np.float32)
    magnitudes = values.view(np.uint32) & 0x7FFFFFFF
    limits = np.broadcast_to(_limits(spec, divisor), magnitudes.shape)
    bad = magnitudes >= limits
    at = np.unravel_index(int(bad.argmax()), bad.shape)
    place = f"x[{', '.join(map(str, (at[0] + first_row, *at[1:])))}]"
    if magnitudes[at] >= INFINITY_WORD:
        return EncodeError(
            f"{spec.name}: {place} is {values[at]!s}; only finite values can be quantized ({int(bad.sum())} refused)"
        )
    largest = (limits[at] - np.uint32(1)).view(np.float32)
    return EncodeError(
        f"{spec.name}: {place} = {values[at]!s} is too large for a scale of the format; magnitudes up to {largest!s} "
        f"can be quantized ({int(bad.sum())} refused)"
    )


def _limits(spec: QuantizedFormat, divisor: np.ndarray | None) -> np.ndarray:
    """The smallest refused binary32 magnitude words, of a shape that broadcasts against the source."""
    if isinstance(spec, GroupedFormat):
        return np.asarray(refused_maximum(spec), np.uint32)
    if not isinstance(spec, BlockScaledFormat):
        return np.asarray(REFUSED_MAGNITUDE, np.uint32)
    if divisor is None:
        return np.asarray(INFINITY_WORD, np.uint32)
    limits = np.array([_largest_for(word) for word in divisor.ravel().tolist()], np.uint32)
    return limits.reshape(*divisor.shape, 1, 1)


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
