"""Advantages of the whole run, from what the trainer says about each step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Advantages:
    """Over trained tokens: mean, standard deviation, shares above and below zero."""

    mean: float
    std: float
    share_positive: float
    share_negative: float

    def as_dict(self) -> dict[str, float]:
        """The same for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StepAdvantages:
    """The same over the ``num_tokens`` of one step."""

    num_tokens: int
    mean: float
    std: float
    share_positive: float
    share_negative: float


def pooled(steps: Iterable[StepAdvantages]) -> Advantages:
    """Over all tokens of all steps; a step's deviation is taken as the population's."""
    every = [step for step in steps if step.num_tokens]
    total = sum(step.num_tokens for step in every)
    if not total:
        return Advantages(0.0, 0.0, 0.0, 0.0)

    def mean_of(values: Iterable[tuple[int, float]]) -> float:
        return math.fsum(num * value for num, value in values) / total

    mean = mean_of((step.num_tokens, step.mean) for step in every)
    square = mean_of((step.num_tokens, step.std**2 + step.mean**2) for step in every)
    return Advantages(
        mean=mean,
        std=math.sqrt(max(0.0, square - mean**2)),
        share_positive=mean_of((step.num_tokens, step.share_positive) for step in every),
        share_negative=mean_of((step.num_tokens, step.share_negative) for step in every),
    )
