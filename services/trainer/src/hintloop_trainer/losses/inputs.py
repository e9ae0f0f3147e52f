"""What every loss is given and gives back. A custom loss imports these two types and nothing else of the trainer.

Legend: N = trained tokens of a micro-batch, K = candidates. All tensors are float32 on the training device unless said
otherwise; log-probabilities are nats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch, its trained tokens laid end to end.

    ``logprobs_N``, ``tempered_N`` and ``candidates_NK`` carry gradient, ``entropy_N`` does under
    `training.entropy_coef`; nothing else does.
    """

    logprobs_N: torch.Tensor
    """Student at temperature 1."""
    tempered_N: torch.Tensor
    """Student at each sample's sampling temperature."""
    old_logprobs_N: torch.Tensor
    """Student before the step, at temperature 1."""
    old_tempered_N: torch.Tensor
    """Student before the step, at the sampling temperature."""
    advantages_N: torch.Tensor | None
    """``None`` under a custom loss, where a sample of the step lacks what the estimator needs."""
    tis_weights_N: torch.Tensor
    """Importance weights, bounded or masked as `training.is_correction` says; 1 where none applies."""
    entropy_N: torch.Tensor
    """Of the student's distribution at temperature 1, nats."""
    sample_N: torch.Tensor
    """int64: which sample of the micro-batch a token belongs to."""
    clip_low: float
    """The ratio is bounded below by ``1 - clip_low``."""
    clip_high: float
    """The ratio is bounded above by ``1 + clip_high``."""
    advantage_clip: float = 5.0
    """Bound of the teacher term, nats (`opd.advantage_clip`)."""
    scores_N: torch.Tensor | None = None
    """The sample's score, NaN where it has none."""
    teacher_logprobs_N: torch.Tensor | None = None
    """Teacher at temperature 1, NaN where the sample was not scored."""
    candidates_NK: torch.Tensor | None = None
    """Student at temperature 1 on the candidates, with gradient; when ``teacher_topk`` is required."""
    old_candidates_NK: torch.Tensor | None = None
    """Student before the step on the candidates."""
    teacher_candidates_NK: torch.Tensor | None = None
    """Teacher on the candidates."""
    teacher_tail_N: torch.Tensor | None = None
    """Log of the teacher's mass outside the candidates; minus infinity where that is none."""
    reference_tempered_N: torch.Tensor | None = None
    """The student's first weights at the sampling temperature; only when `training.kl_coef` is not 0."""


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """``losses_N`` per token, with gradient; the trainer takes the mean. ``metrics`` are means over tokens."""

    losses_N: torch.Tensor
    """Float ``[N]``, on the device of the inputs."""
    metrics: dict[str, torch.Tensor] = field(default_factory=dict)
    """Name to detached ``[N]`` values; reported as means over the whole batch."""


class Loss(Protocol):
    """``compute_loss(inputs: LossInputs) -> TokenLosses``."""

    def __call__(self, inputs: LossInputs) -> TokenLosses:
        """Loss of every token of the micro-batch."""
        ...
