"""The clipped policy-gradient surrogate, at the sampling temperature, with truncated importance weights."""

from __future__ import annotations

import torch

from hintloop_trainer.losses.inputs import LossInputs, TokenLosses

REQUIRES: frozenset[str] = frozenset()


def compute_loss(inputs: LossInputs) -> TokenLosses:
    """``-w * min(ratio * A, clip(ratio) * A)`` per token.

    The ratio is that of the policy now to the policy before the step, both at the sampling temperature. The
    weight ``w`` accounts for the engine's policy having differed from the trainer's when the answer was made.
    """
    if inputs.advantages_N is None:
        raise ValueError("the policy loss needs advantages")
    ratio_N = (inputs.tempered_N - inputs.old_tempered_N).exp()
    bounded_N = ratio_N.clamp(1.0 - inputs.clip_low, 1.0 + inputs.clip_high)
    plain_N = ratio_N * inputs.advantages_N
    clipped_N = bounded_N * inputs.advantages_N
    losses_N = -inputs.tis_weights_N * torch.minimum(plain_N, clipped_N)
    metrics = {
        "ratio_mean": ratio_N.detach(),
        "clip_fraction": (clipped_N < plain_N).float().detach(),
    }
    return TokenLosses(losses_N, metrics)


def tis_weights(
    old_behaviour_N: torch.Tensor, behaviour_N: torch.Tensor, applies_N: torch.Tensor, cap: float | None
) -> torch.Tensor:
    """``min(exp(old - behaviour), cap)`` where it applies (bool ``[N]``), else 1; all 1 without a cap.

    Both log-probabilities are of the same space: that in which the engine reported.
    """
    ones_N = torch.ones_like(behaviour_N)
    if cap is None:
        return ones_N
    difference_N = torch.where(applies_N, old_behaviour_N - behaviour_N, torch.zeros_like(behaviour_N))
    return torch.where(applies_N, difference_N.exp().clamp(max=cap), ones_N).detach()
