"""Errors of a block, told in the coordinates of its tensor.

A device program only says that something in a block is wrong. Here the block is read again and its first offending
value is found on the host; the message names the tensor, row and column.
"""

from collections.abc import Callable
from typing import NoReturn, TypeVar, cast

import numpy as np

from ninfer_jax.codecs import explain_refusal, quantize
from ninfer_jax.errors import CastError, ConversionError, EncodeError
from ninfer_jax.formats import QuantizedFormat, get_format
from ninfer_jax.recipes import TensorSpec

_Result = TypeVar("_Result")


def in_tensor(name: str, step: Callable[[], _Result]) -> _Result:
    """Run `step` on a block and add the tensor's name to an error about its data.

    Args:
        name: stored name of the tensor.
        step: the work to do; it speaks of rows of the tensor.
    """
    try:
        return step()
    except (EncodeError, CastError) as error:
        raise type(error)(f"tensor {name!r}: {error}") from error


def raise_encode_error(spec: TensorSpec, start: int, stop: int) -> NoReturn:
    """Find out why rows [start, stop) could not be quantized and raise it.

    Args:
        spec: the tensor.
        start: first row of the block.
        stop: one past its last row.

    Raises:
        EncodeError: names the tensor and the first offending row and column.
        ConversionError: the block encodes now, so the source changed while it was read.
    """
    block = spec.rows.read(start, stop)
    try:
        quantize(block, spec.format)
    except EncodeError:
        with np.errstate(over="ignore"):  # of float64
            error = explain_refusal(block, cast(QuantizedFormat, get_format(spec.format)), first_row=start)
        raise EncodeError(f"tensor {spec.name!r}: {error}") from None
    raise ConversionError(
        f"tensor {spec.name!r}: rows [{start}, {stop}) could not be encoded at first and can be now; "
        "its file changes while it is read, so start again once it is complete"
    )
