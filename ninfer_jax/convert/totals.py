"""Reconstruction error of a tensor, summed over blocks in float64.

Sums come from the device by row in float32 and are added here in float64. This module leaves out what the numbers are
compared with. Error is `x - dequantize(quantize(x))` over logical weights.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class ErrorTotals:
    """Sums over the rows seen so far.

    Attributes:
        signal: sum of squared source values.
        noise: sum of squared errors.
        worst: largest absolute error.
    """

    signal: float = 0.0
    noise: float = 0.0
    worst: float = 0.0

    def add(self, other: "ErrorTotals") -> None:
        """Add the sums of other rows."""
        self.signal += other.signal
        self.noise += other.noise
        self.worst = max(self.worst, other.worst)

    @property
    def sqnr_db(self) -> float | None:
        """`10 log10(signal / noise)` in dB; None where either is zero or not finite."""
        if not (0 < self.signal < math.inf and 0 < self.noise < math.inf):
            return None
        return 10 * math.log10(self.signal / self.noise)

    @classmethod
    def of_rows(cls, sums: Iterable[Any] | None, rows: int) -> "ErrorTotals":
        """Totals of the first `rows` of per-row signal, noise and worst arrays; zero where nothing was measured."""
        if sums is None:
            return cls()
        signal, noise, worst = (np.asarray(part)[:rows].astype(np.float64) for part in sums)
        return cls(float(signal.sum()), float(noise.sum()), float(worst.max(initial=0.0)))
