"""The closed registry of nine persistent numeric formats (tensor-formats §1, §3)."""

from ninfer_jax.formats._registry import BF16 as BF16
from ninfer_jax.formats._registry import FORMATS as FORMATS
from ninfer_jax.formats._registry import FP8_E4M3FN_ROW_BF16S as FP8_E4M3FN_ROW_BF16S
from ninfer_jax.formats._registry import FP32 as FP32
from ninfer_jax.formats._registry import I32 as I32
from ninfer_jax.formats._registry import NVFP4 as NVFP4
from ninfer_jax.formats._registry import Q4G64_F16S as Q4G64_F16S
from ninfer_jax.formats._registry import Q5G64_F16S as Q5G64_F16S
from ninfer_jax.formats._registry import Q6G64_F16S as Q6G64_F16S
from ninfer_jax.formats._registry import W8G32_F16S as W8G32_F16S
from ninfer_jax.formats._registry import get_format as get_format
from ninfer_jax.formats._spec import BlockScaledFormat as BlockScaledFormat
from ninfer_jax.formats._spec import DirectFormat as DirectFormat
from ninfer_jax.formats._spec import Format as Format
from ninfer_jax.formats._spec import GroupedFormat as GroupedFormat
from ninfer_jax.formats._spec import QuantizedFormat as QuantizedFormat
from ninfer_jax.formats._spec import RowScaledFormat as RowScaledFormat
