"""The closed registry: exactly nine names, compared and never parsed (tensor-formats §1, §3.2)."""

from collections.abc import Mapping
from types import MappingProxyType

from ninfer_jax.errors import UnknownFormatError
from ninfer_jax.formats._spec import BlockScaledFormat, DirectFormat, Format, GroupedFormat, RowScaledFormat

BF16 = DirectFormat("BF16", word_bits=16, word_dtype="uint16", value_dtype="bfloat16")
FP32 = DirectFormat("FP32", word_bits=32, word_dtype="uint32", value_dtype="float32")
I32 = DirectFormat("I32", word_bits=32, word_dtype="int32", value_dtype="int32")
Q4G64_F16S = GroupedFormat("Q4G64_F16S", bits=4, group_size=64, qmin=-8, qmax=7)
Q5G64_F16S = GroupedFormat("Q5G64_F16S", bits=5, group_size=64, qmin=-16, qmax=15)
Q6G64_F16S = GroupedFormat("Q6G64_F16S", bits=6, group_size=64, qmin=-32, qmax=31)
W8G32_F16S = GroupedFormat("W8G32_F16S", bits=8, group_size=32, qmin=-127, qmax=127)
NVFP4 = BlockScaledFormat("NVFP4", bits=4, group_size=16)
FP8_E4M3FN_ROW_BF16S = RowScaledFormat("FP8_E4M3FN_ROW_BF16S", bits=8)

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            BF16,
            FP32,
            I32,
            Q4G64_F16S,
            Q5G64_F16S,
            Q6G64_F16S,
            W8G32_F16S,
            NVFP4,
            FP8_E4M3FN_ROW_BF16S,
        )
    }
)
"""Read-only mapping of the nine canonical names to their specs, in the order of tensor-formats §1."""


def get_format(name: str | Format) -> Format:
    """Return the spec of a canonical name; a registered spec is returned as it is.

    Args:
        name: one of the nine canonical names, spelled exactly, or a spec from `FORMATS`.

    Returns:
        The registered spec.

    Raises:
        UnknownFormatError: for anything else. Aliases such as `q4` or `INT32` are not names (tensor-formats §3.2).

    Source: tensor-formats §1, §3.2.
    """
    if isinstance(name, Format):
        spec = FORMATS.get(name.name)
        spec = spec if spec == name else None
    else:
        spec = FORMATS.get(name) if isinstance(name, str) else None
    if spec is None:
        given = repr(name) if isinstance(name, str | Format) else f"of type {type(name).__name__}"
        raise UnknownFormatError(
            f"unknown format {given}; the nine formats are {', '.join(FORMATS)} (spelled exactly, no aliases)"
        )
    return spec
