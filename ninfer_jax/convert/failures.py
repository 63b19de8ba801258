"""Errors of a block, told in the coordinates of its tensor.

A device program only says that something in a block is wrong. Here the block is read again and handed to the eager
door, which finds the first offending coordinate; the message then names the tensor and where the block starts.
"""

from collections.abc import Callable
from typing import NoReturn, TypeVar

from ninfer_jax.codecs import quantize
from ninfer_jax.errors import CastError, ConversionError, EncodeError, InvalidWordsError
from ninfer_jax.recipes import TensorSpec

_Result = TypeVar("_Result")
_DATA_ERRORS = (EncodeError, CastError, InvalidWordsError)


def in_tensor(name: str, start: int, step: Callable[[], _Result]) -> _Result:
    """Run `step` on a block and add the tensor's name and the block's first row to an error about its data.

    Args:
        name: stored name of the tensor.
        start: first row of the block.
        step: the work to do.
    """
    try:
        return step()
    except _DATA_ERRORS as error:
        offset = f", rows counted from row {start}" if start else ""
        raise type(error)(f"tensor {name!r}{offset}: {error}") from error


def raise_encode_error(spec: TensorSpec, start: int, stop: int) -> NoReturn:
    """Find out why rows [start, stop) could not be quantized and raise it.

    Raises:
        EncodeError: names the tensor and the first offending coordinate.
        ConversionError: the block encodes now, so the source changed while it was read.
    """
    block = spec.rows.read(start, stop)
    in_tensor(spec.name, start, lambda: quantize(block, spec.format))
    raise ConversionError(
        f"tensor {spec.name!r}: rows [{start}, {stop}) could not be encoded at first and can be now; "
        "its file changes while it is read, so start again once it is complete"
    )
