"""The closed registry of nine persistent numeric formats (tensor-formats §1, §3)."""

from ninfer_jax.formats._registry import (
    BF16 as BF16,
    FORMATS as FORMATS,
    FP8_E4M3FN_ROW_BF16S as FP8_E4M3FN_ROW_BF16S,
    FP32 as FP32,
    I32 as I32,
    NVFP4 as NVFP4,
    Q4G64_F16S as Q4G64_F16S,
    Q5G64_F16S as Q5G64_F16S,
    Q6G64_F16S as Q6G64_F16S,
    W8G32_F16S as W8G32_F16S,
    get_format as get_format,
)
from ninfer_jax.formats._spec import (
    BlockScaledFormat as BlockScaledFormat,
    DirectFormat as DirectFormat,
    Format as Format,
    GroupedFormat as GroupedFormat,
    QuantizedFormat as QuantizedFormat,
    RowScaledFormat as RowScaledFormat,
)
