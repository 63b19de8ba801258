"""Checkpoints to artifacts: planning, the streaming engine, verification, export, comparison and reports."""

from ninfer_jax.convert.blocks import DEFAULT_BLOCK_BYTES as DEFAULT_BLOCK_BYTES, Block as Block
from ninfer_jax.convert.compare import verify_against as verify_against
from ninfer_jax.convert.diff import Difference as Difference, diff_artifacts as diff_artifacts
from ninfer_jax.convert.distributed import ASSEMBLY_SECONDS as ASSEMBLY_SECONDS, join as join, leave as leave
from ninfer_jax.convert.engine import convert as convert, execute as execute
from ninfer_jax.convert.export import Exported as Exported, export_safetensors as export_safetensors
from ninfer_jax.convert.html import write_html as write_html
from ninfer_jax.convert.plan import ConversionPlan as ConversionPlan, plan_conversion as plan_conversion
from ninfer_jax.convert.preflight import Preflight as Preflight
from ninfer_jax.convert.progress import Progress as Progress, silent as silent
from ninfer_jax.convert.remains import Remains as Remains
from ninfer_jax.convert.report import (
    ConversionReport as ConversionReport,
    FormatTotals as FormatTotals,
    TensorReport as TensorReport,
    totals_by_format as totals_by_format,
)
from ninfer_jax.convert.settings import Settings as Settings, planned as planned
from ninfer_jax.convert.verify import Verified as Verified, verify_artifact as verify_artifact
