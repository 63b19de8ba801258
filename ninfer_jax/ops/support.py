"""The support matrix: for every format, shape regime and implementation, how it runs on a device or why it cannot.

The table is asked of the implementations, not written down. A regime is asked with a representative shape.
"""

import dataclasses

from ninfer_jax.formats import FORMATS, DirectFormat
from ninfer_jax.ops._linear import IMPLEMENTATIONS
from ninfer_jax.ops.devices import resolve_device
from ninfer_jax.ops.registry import DECODE_ROWS, Device, Problem, device_text

_N = _K = 4096
_REGIMES = {"M = 1": 1, f"M = 2 to {DECODE_ROWS}": DECODE_ROWS, f"M > {DECODE_ROWS}": 512}


@dataclasses.dataclass(frozen=True)
class SupportRow:
    """One line of the matrix.

    Attributes:
        format: canonical format name.
        regime: rows of x.
        device: platform and kind.
        implementation: registered name.
        supported: whether it can run.
        detail: how it runs, or why it cannot.
    """

    format: str
    regime: str
    device: str
    implementation: str
    supported: bool
    detail: str


def support_table(device: Device | str | None = None) -> tuple[SupportRow, ...]:
    """The matrix for one device, bfloat16 activations and outputs.

    Args:
        device: a `jax.Device`, the name of a GPU that need not be here, such as "h100", or None for the default device.

    Raises:
        UnsupportedError: for an unknown name.
    """
    device = resolve_device(device)
    rows = []
    for spec in FORMATS.values():
        if isinstance(spec, DirectFormat):
            continue
        for regime, m in _REGIMES.items():
            problem = Problem(spec.name, m, _N, _K, "bfloat16", "bfloat16")
            rows += [_row(name, problem, regime, device) for name in IMPLEMENTATIONS]
    return tuple(rows)


def _row(name: str, problem: Problem, regime: str, device: Device) -> SupportRow:
    implementation = IMPLEMENTATIONS[name]
    reason = implementation.supports(problem, device)
    detail = implementation.describe(problem, device) if reason is None else reason
    return SupportRow(problem.format, regime, device_text(device), name, reason is None, detail)
