"""Advantages: how much more of each token is wanted. A pure function of scores and log-probabilities.

Every turn is one action with one signal, so returns equal advantages; there is neither discount nor value
model. Teacher and student are compared at temperature 1, always.
Legend: N = trained tokens of any number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Estimator = Literal["on_policy_distillation", "grpo", "combine"]


@dataclass(frozen=True, slots=True)
class Coefficients:
    """How scores and teacher terms are weighed."""

    estimator: Estimator
    advantage_clip: float
    """Bound of the teacher term, nats."""
    w_rl: float = 1.0
    w_opd: float = 1.0


def compute_advantages_and_returns(
    coefficients: Coefficients,
    *,
    old_logprobs_N: torch.Tensor,
    teacher_logprobs_N: torch.Tensor | None = None,
    scores_N: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, both float ``[N]`` without gradient.

    ``old_logprobs_N`` and ``teacher_logprobs_N`` are nats at temperature 1; a teacher's NaN says that the
    token's sample was not scored by the teacher. ``scores_N`` holds each token's sample's score; NaN: none.
    Under ``combine`` a sample may lack either part, and that part counts 0.

    Raises:
        ValueError: the part that the estimator lives from is absent.
    """
    old_N = old_logprobs_N.detach()
    if coefficients.estimator == "grpo":
        advantages_N = _whole(scores_N, "scores", "grpo")
    elif coefficients.estimator == "on_policy_distillation":
        teacher_N = _whole(teacher_logprobs_N, "teacher log-probabilities", "on_policy_distillation")
        advantages_N = teacher_term(old_N, teacher_N, coefficients.advantage_clip)
    else:
        advantages_N = _combined(coefficients, old_N, teacher_logprobs_N, scores_N)
    return advantages_N, advantages_N.clone()


def teacher_term(old_N: torch.Tensor, teacher_N: torch.Tensor, clip: float) -> torch.Tensor:
    """Teacher minus student, bounded to ±``clip``: positive where the hint makes the token likelier."""
    return (teacher_N.detach() - old_N).clamp(-clip, clip)


def _whole(values_N: torch.Tensor | None, what: str, estimator: str) -> torch.Tensor:
    if values_N is None or bool(values_N.isnan().any()):
        raise ValueError(f"{estimator} needs {what} for every token; a sample has none")
    return values_N.detach().clone()


def _combined(
    coefficients: Coefficients,
    old_N: torch.Tensor,
    teacher_N: torch.Tensor | None,
    scores_N: torch.Tensor | None,
) -> torch.Tensor:
    nothing_N = torch.full_like(old_N, float("nan"))
    teacher_N = nothing_N if teacher_N is None else teacher_N
    scores_N = nothing_N if scores_N is None else scores_N
    if bool((teacher_N.isnan() & scores_N.isnan()).any()):
        raise ValueError("combine needs a score or teacher log-probabilities for every token; a sample has neither")
    rl_N, opd_N = combined_parts(coefficients, old_N, teacher_N, scores_N)
    return rl_N + opd_N


def combined_parts(
    coefficients: Coefficients, old_N: torch.Tensor, teacher_N: torch.Tensor | None, scores_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the score and what the teacher give to the advantage under ``combine``; 0 where a sample lacks it."""
    rl_N = coefficients.w_rl * scores_N.detach().nan_to_num(0.0)
    if teacher_N is None:
        return rl_N, torch.zeros_like(rl_N)
    return rl_N, coefficients.w_opd * teacher_term(old_N, teacher_N, coefficients.advantage_clip).nan_to_num(0.0)
