"""The clipped policy-gradient surrogate, at the sampling temperature, with importance weights.

Schulman et al., Proximal Policy Optimization (arXiv 1707.06347), equation 7; bounds of their own for either side as
in DAPO (arXiv 2503.14476).
"""

from __future__ import annotations

import torch

from hintloop_trainer.losses.inputs import LossInputs, TokenLosses

REQUIRES: frozenset[str] = frozenset()

#: Past this log-ratio, exp goes on as its tangent: a step may be absurd, but stays a number with the right sign.
LOG_LIMIT = 20.0


def compute_loss(inputs: LossInputs) -> TokenLosses:
    """``-w * min(ratio * A, clip(ratio) * A)`` per token, ``[N]``.

    The ratio is that of the policy now to the policy before the step, both at the sampling temperature. The
    weight ``w`` accounts for the engine's policy having differed from the trainer's when the answer was made.

    Raises:
        ValueError: there are no advantages.
    """
    if inputs.advantages_N is None:
        raise ValueError("the policy loss needs advantages")
    gains_N, ratio_N, clipped_N = clipped_surrogate(
        inputs.tempered_N, inputs.old_tempered_N, inputs.advantages_N, inputs.clip_low, inputs.clip_high
    )
    metrics = {
        "ratio_mean": ratio_N.detach(),
        "clip_fraction": clipped_N.detach(),
        **clipped_sides(clipped_N.detach(), inputs.advantages_N),
    }
    return TokenLosses(-inputs.tis_weights_N * gains_N, metrics)


def clipped_surrogate(
    new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``min(ratio * A, clip(ratio) * A)``, the ratio, and 1.0 where the clip acted; all of the arguments' shape.

    ``new`` and ``old`` are log-probabilities in nats of the same actions, ``advantages`` theirs.
    """
    ratio = bounded_exp(new - old)
    plain = ratio * advantages
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    return torch.minimum(plain, bounded), ratio, (bounded < plain).to(ratio.dtype)


def clipped_sides(clipped: torch.Tensor, advantages: torch.Tensor) -> dict[str, torch.Tensor]:
    """Where the lower and where the upper bound acted: on tokens that are to become rarer, and likelier."""
    return {"clip_fraction_low": clipped * (advantages < 0), "clip_fraction_high": clipped * (advantages > 0)}


def bounded_exp(values: torch.Tensor) -> torch.Tensor:
    """``exp``, that goes on as a straight line past :data:`LOG_LIMIT`, so that neither it nor its slope overflows."""
    return values.clamp(max=LOG_LIMIT).exp() * (1.0 + (values - LOG_LIMIT).clamp(min=0.0))
