"""Sums over tokens and samples that add up across micro-batches and ranks. Means are taken once, at the end.

Of a few names the values themselves are kept, float32, so that percentiles over all ranks are exact: a batch has no
more than some hundred thousand trained tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

#: Names whose values are kept.
KEPT = ("advantage", "teacher_minus_student", "engine_difference")
PERCENTILES = (1, 5, 50, 95, 99)


@dataclass(slots=True)
class Moments:
    """Count, sum, sum of squares, largest magnitude, and how many were above and below zero."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    largest: float = 0.0
    positive: int = 0
    negative: int = 0

    def add(self, other: Moments) -> None:
        """Add another's."""
        self.count += other.count
        self.total += other.total
        self.squares += other.squares
        self.largest = max(self.largest, other.largest)
        self.positive += other.positive
        self.negative += other.negative

    @property
    def mean(self) -> float:
        """Mean; 0 of nothing."""
        return self.total / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """Population standard deviation; 0 of nothing."""
        if not self.count:
            return 0.0
        return math.sqrt(max(0.0, self.squares / self.count - self.mean**2))

    @property
    def share_positive(self) -> float:
        """Share above zero."""
        return self.positive / self.count if self.count else 0.0

    @property
    def share_negative(self) -> float:
        """Share below zero."""
        return self.negative / self.count if self.count else 0.0


@dataclass(slots=True)
class Tally:
    """Moments by name, and the values of those in :data:`KEPT`."""

    moments: dict[str, Moments] = field(default_factory=dict)
    values: dict[str, list[np.ndarray[Any, Any]]] = field(default_factory=dict)
    """Float32, each ``[N]`` of one micro-batch."""

    def add(self, name: str, values: torch.Tensor) -> None:
        """Add detached values of any shape."""
        flat = values.detach().double().reshape(-1)
        if not flat.numel():
            return
        sums = torch.stack([flat.sum(), flat.square().sum(), flat.abs().max(), (flat > 0).sum(), (flat < 0).sum()])
        total, squares, largest, positive, negative = sums.tolist()
        self.of(name).add(Moments(flat.numel(), total, squares, largest, int(positive), int(negative)))
        if name in KEPT:
            self.values.setdefault(name, []).append(flat.float().cpu().numpy())

    def of(self, name: str) -> Moments:
        """Moments of ``name``, empty when nothing was added."""
        return self.moments.setdefault(name, Moments())

    def percentiles(self, name: str) -> dict[int, float]:
        """:data:`PERCENTILES` of a kept name's values, interpolated; empty when there were none."""
        parts = self.values.get(name)
        if not parts:
            return {}
        found = np.percentile(np.concatenate(parts), PERCENTILES)
        return dict(zip(PERCENTILES, found.tolist(), strict=True))

    def share_beyond(self, name: str, bound: float) -> float:
        """Share of a kept name's values whose magnitude is above ``bound``; 0 of none."""
        parts = self.values.get(name)
        return float(np.mean(np.abs(np.concatenate(parts)) > bound)) if parts else 0.0

    def merge(self, others: Iterable[Tally]) -> Tally:
        """Add the others' moments and values to this one's, and return it."""
        for other in others:
            for name, moments in other.moments.items():
                self.of(name).add(moments)
            for name, parts in other.values.items():
                self.values.setdefault(name, []).extend(parts)
        return self
