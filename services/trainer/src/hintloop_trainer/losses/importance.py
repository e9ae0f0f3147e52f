"""Importance weights: the engine that answered computes a little differently from the trainer, or had older weights.

Truncated importance sampling cuts a weight to its cap and keeps the token; masked importance sampling leaves the token
out. Both are per token, and bias the gradient a little to bound its variance.
Legend: N = trained tokens of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Kind = Literal["truncate", "mask", "off"]


@dataclass(frozen=True, slots=True)
class Correction:
    """How importance weights are bounded."""

    kind: Kind
    cap: float = float("inf")
    """Largest weight."""
    floor: float = 0.0
    """Smallest weight that a masked correction lets count."""


def correction_from(kind: Kind, cap: float | None, floor: float) -> Correction:
    """The configured correction; no cap is no correction."""
    return Correction("off") if kind == "off" or cap is None else Correction(kind, cap, floor)


def importance_weights(
    old_behaviour_N: torch.Tensor, behaviour_N: torch.Tensor, applies_N: torch.Tensor, correction: Correction
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights float ``[N]`` and, as bool ``[N]``, where a bound acted. Without gradient.

    ``rho = exp(old - behaviour)`` where it applies (bool ``[N]``), else 1. Truncated: ``min(rho, cap)``. Masked:
    ``rho`` within ``[floor, cap]``, else 0; a masked token still counts in what the batch's sum is divided by.
    Both log-probabilities are nats, of the same space: that in which the engine reported.
    """
    ones_N = torch.ones_like(behaviour_N)
    nowhere_N = torch.zeros_like(applies_N)
    if correction.kind == "off":
        return ones_N, nowhere_N
    difference_N = torch.where(applies_N, old_behaviour_N - behaviour_N, torch.zeros_like(behaviour_N))
    rho_N = difference_N.exp().detach()
    above_N = applies_N & (rho_N > correction.cap)
    if correction.kind == "truncate":
        return rho_N.clamp(max=correction.cap), above_N
    outside_N = above_N | (applies_N & (rho_N < correction.floor))
    return rho_N.masked_fill(outside_N, 0.0), outside_N
