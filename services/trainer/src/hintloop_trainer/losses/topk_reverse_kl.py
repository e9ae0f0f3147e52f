"""Reverse KL between student and teacher over K candidates and one bin for all other tokens.

No advantage, no PPO clip and no importance weight: the loss itself is the distance, differentiated through every bin.
The candidates are the teacher's K likeliest tokens or the student's (`topk_opd.use_teacher_topk`).
Legend: N = trained tokens of a micro-batch, K = candidates.
"""

from __future__ import annotations

import torch

from hintloop_trainer.losses.inputs import LossInputs, TokenLosses

REQUIRES = frozenset({"teacher_topk"})

#: No log-mass is taken below this: past it, float32 cannot tell it from none.
LOG_FLOOR = -30.0


def log1mexp(values: torch.Tensor) -> torch.Tensor:
    """``log(1 - exp(x))`` for x < 0, accurate at both ends."""
    near_one = values > -0.6931472
    safe_small = torch.where(near_one, values, torch.full_like(values, -0.5))
    safe_large = torch.where(near_one, torch.full_like(values, -1.0), values)
    return torch.where(near_one, (-torch.expm1(safe_small)).log(), torch.log1p(-safe_large.exp()))


def log_tail(candidates_NK: torch.Tensor) -> torch.Tensor:
    """Log of the mass outside the candidates, ``[N]``: candidates and tail sum to 1. float64 inside."""
    covered_N = torch.logsumexp(candidates_NK.double(), dim=-1)
    # Rounding can bring the candidates' mass to 1 or a little above, where the tail has no logarithm; nor has it one
    # where the candidates are the whole vocabulary.
    return log1mexp(covered_N.clamp(max=-1e-7)).clamp(min=LOG_FLOOR).to(candidates_NK.dtype)


def compute_loss(inputs: LossInputs) -> TokenLosses:
    """``sum_k p_k (log p_k - log q_k)`` over K + 1 bins per token, at temperature 1; ``[N]``.

    ``p`` is the student (``candidates_NK`` and what they leave), ``q`` the teacher (``teacher_candidates_NK`` and
    ``teacher_tail_N``). A bin that the student gives nothing counts nothing; one that the teacher gives nothing counts
    as if it gave :data:`LOG_FLOOR`.

    Raises:
        ValueError: the candidates, the teacher's scores of them or its tail are absent.
    """
    student_NK, teacher_NK, teacher_tail_N = (
        inputs.candidates_NK,
        inputs.teacher_candidates_NK,
        inputs.teacher_tail_N,
    )
    if student_NK is None or teacher_NK is None or teacher_tail_N is None:
        raise ValueError("topk_reverse_kl needs teacher candidates, their log-probabilities and the tail")
    student_tail_N = log_tail(student_NK)
    candidates_N = _divergence(student_NK, teacher_NK).sum(-1)
    tail_N = _divergence(student_tail_N, teacher_tail_N)
    metrics = {
        "topk_student_tail_mass": student_tail_N.exp().detach(),
        "topk_teacher_tail_mass": teacher_tail_N.exp().detach(),
    }
    return TokenLosses(candidates_N + tail_N, metrics)


def _divergence(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """``p (log p - log q)`` of each bin; 0 where p is, though its logarithm is minus infinity."""
    empty = student == float("-inf")
    finite = student.masked_fill(empty, LOG_FLOOR)
    return (finite.exp() * (finite - teacher.clamp(min=LOG_FLOOR))).masked_fill(empty, 0.0)
