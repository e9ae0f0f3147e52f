"""How numbers are distributed, in bounded memory: moments, signs, and percentiles to a hundredth.

Legend: N = values of one call, B = bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Values beyond count at the edge; nats.
EDGE = 40.0
BIN_WIDTH = 0.01
#: The middle of a bin is a multiple of its width, so that an exact 0 is told as one; the edges have one each.
NUM_BINS = round(2 * EDGE / BIN_WIDTH) + 1
FAR = 10.0
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


@dataclass(slots=True)
class Spread:
    """What is known of the values so far."""

    count: int = 0
    total: float = 0.0
    total_squares: float = 0.0
    positive: int = 0
    negative: int = 0
    far: int = 0
    """Values beyond ±:data:`FAR`."""
    bins_B: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))

    def add(self, values: Any) -> None:
        """Take in ``[N]`` finite values."""
        values_N = np.asarray(values, np.float64)
        self.count += len(values_N)
        self.total += float(values_N.sum())
        self.total_squares += float((values_N**2).sum())
        self.positive += int((values_N > 0).sum())
        self.negative += int((values_N < 0).sum())
        self.far += int((np.abs(values_N) > FAR).sum())
        places_N = np.rint((np.clip(values_N, -EDGE, EDGE) + EDGE) / BIN_WIDTH).astype(np.int64)
        np.add.at(self.bins_B, places_N, 1)

    @property
    def mean(self) -> float:
        """Their mean; NaN where there are none."""
        return self.total / self.count if self.count else math.nan

    @property
    def std(self) -> float:
        """Their standard deviation; NaN where there are none."""
        return math.sqrt(max(0.0, self.total_squares / self.count - self.mean**2)) if self.count else math.nan

    def percentile(self, percent: float) -> float:
        """The middle of the bin in which it lies; NaN where there are no values."""
        if not self.count:
            return math.nan
        place = int(np.searchsorted(np.cumsum(self.bins_B), percent / 100 * self.count, side="left"))
        return (min(place, NUM_BINS - 1) - NUM_BINS // 2) * BIN_WIDTH

    def as_dict(self) -> dict[str, Any]:
        """For JSON; empty without values."""
        if not self.count:
            return {}
        return {
            "tokens": self.count,
            "mean": self.mean,
            "std": self.std,
            "share_positive": self.positive / self.count,
            "share_negative": self.negative / self.count,
            "share_above_10": self.far / self.count,
            "percentiles": {str(percent): round(self.percentile(percent), 3) for percent in PERCENTILES},
        }
