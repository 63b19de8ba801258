"""The first difference between two row blocks of one format, in words and coordinates of the tensor.

Bytes are compared first, because that is fast; only blocks that differ are unpacked.
"""

import numpy as np

from ninfer_jax.formats import DirectFormat, get_format
from ninfer_jax.layouts import plane_row_bytes, unpack
from ninfer_jax.planes import Planes


def same_bytes(expected: Planes, found: Planes) -> bool:
    """True where every plane has the same bytes."""
    pairs = zip(plane_row_bytes(expected), plane_row_bytes(found), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


def first_difference(expected: Planes, found: Planes, format: str, columns: int, start: int) -> str:
    """Name the first word that differs, such as `codes[12, 45] is 0x3, expected 0x5`.

    Args:
        expected: NumPy planes of the rows as they should be.
        found: planes of the same rows as they are.
        format: canonical name.
        columns: weights in a row.
        start: first row of the block.
    """
    if isinstance(get_format(format), DirectFormat):
        return _first("words", np.asarray(expected), np.asarray(found), start) or "no word differs"
    left, right = unpack(expected, format, columns), unpack(found, format, columns)
    for field in left._fields:  # type: ignore[union-attr]
        text = _first(field, np.asarray(getattr(left, field)), np.asarray(getattr(right, field)), start)
        if text:
            return text
    return f"padding bytes of rows from {start} differ; every word is the same"


def _first(field: str, expected: np.ndarray, found: np.ndarray, start: int) -> str | None:
    differs = expected != found
    if not differs.any():
        return None
    at = np.unravel_index(int(differs.argmax()), differs.shape)
    place = [int(index) for index in at]
    if place:
        place[0] += start
    where = f"{field}[{', '.join(map(str, place))}]" if place else field
    return f"{where} is {_show(found[at])}, expected {_show(expected[at])}"


def _show(word: np.generic) -> str:
    if np.issubdtype(word.dtype, np.signedinteger):
        return str(int(word))
    return f"0x{int(word):0{2 * word.dtype.itemsize}x}"
