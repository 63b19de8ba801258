"""Read quantized words of a checkpoint, after checking that the tensor has any."""

from ninfer_jax.recipes import WordSource
from ninfer_jax.sources import SourceTensor
from ninfer_jax.words import QuantizedWords


def words_of(tensor: SourceTensor, start: int, stop: int) -> QuantizedWords:
    """Words of rows [start, stop)."""
    assert isinstance(tensor, WordSource)
    return tensor.read_words(start, stop)
