"""What every loss is given and gives back. A custom loss imports these two types and nothing else of the trainer.

Legend: N = trained tokens of a micro-batch, K = teacher candidates. All tensors are float32 on the training
device unless said otherwise; log-probabilities are nats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch, its trained tokens laid end to end. ``logprobs_*`` carry gradient, nothing else does."""

    logprobs_N: torch.Tensor
    """Student at temperature 1."""
    tempered_N: torch.Tensor
    """Student at each sample's sampling temperature."""
    old_logprobs_N: torch.Tensor
    """Student before the step, at temperature 1."""
    old_tempered_N: torch.Tensor
    """Student before the step, at the sampling temperature."""
    advantages_N: torch.Tensor | None
    """``None`` under a custom loss whose samples lack what the estimator needs."""
    tis_weights_N: torch.Tensor
    """Truncated importance weights; 1 where none applies."""
    entropy_N: torch.Tensor
    sample_N: torch.Tensor
    """int64: which sample of the micro-batch a token belongs to."""
    clip_low: float
    """The ratio is bounded below by ``1 - clip_low``."""
    clip_high: float
    """The ratio is bounded above by ``1 + clip_high``."""
    scores_N: torch.Tensor | None = None
    """The sample's score, NaN where it has none."""
    teacher_logprobs_N: torch.Tensor | None = None
    """Teacher at temperature 1, NaN where the sample was not scored."""
    candidates_NK: torch.Tensor | None = None
    """Student at temperature 1 on the teacher's candidates, with gradient; when ``teacher_topk`` is required."""
    teacher_candidates_NK: torch.Tensor | None = None
    """Teacher on its candidates."""
    teacher_tail_N: torch.Tensor | None = None
    """Log of the teacher's mass outside its candidates."""


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """``losses_N`` per token, with gradient; the trainer takes the mean. ``metrics`` are means over tokens."""

    losses_N: torch.Tensor
    metrics: dict[str, torch.Tensor] = field(default_factory=dict)
    """Name to detached ``[N]`` values; reported as means over the whole batch."""


class Loss(Protocol):
    """``compute_loss(inputs: LossInputs) -> TokenLosses``."""

    def __call__(self, inputs: LossInputs) -> TokenLosses:
        """Loss of every token of the micro-batch."""
        ...
