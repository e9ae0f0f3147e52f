"""Reverse KL between student and teacher over the teacher's K candidates and one bin for all other tokens.

No advantage and no PPO clip: the loss itself is the distance, differentiated through every bin.
"""

from __future__ import annotations

import torch

from hintloop_trainer.losses.inputs import LossInputs, TokenLosses

REQUIRES = frozenset({"teacher_topk"})

#: The tail's log-mass is not taken below this: past it, float32 cannot tell it from none.
LOG_FLOOR = -30.0


def log1mexp(values: torch.Tensor) -> torch.Tensor:
    """``log(1 - exp(x))`` for x < 0, accurate at both ends."""
    near_one = values > -0.6931472
    safe_small = torch.where(near_one, values, torch.full_like(values, -0.5))
    safe_large = torch.where(near_one, torch.full_like(values, -1.0), values)
    return torch.where(near_one, (-torch.expm1(safe_small)).log(), torch.log1p(-safe_large.exp()))


def log_tail(candidates_NK: torch.Tensor) -> torch.Tensor:
    """Log of the mass outside the candidates, ``[N]``."""
    covered_N = torch.logsumexp(candidates_NK, dim=-1)
    # Rounding can bring the candidates' mass to 1 or a little above, where the tail has no logarithm.
    return log1mexp(covered_N.clamp(max=-1e-7)).clamp(min=LOG_FLOOR)


def compute_loss(inputs: LossInputs) -> TokenLosses:
    """KL(student || teacher) over K + 1 bins, per token, at temperature 1."""
    student_NK, teacher_NK, teacher_tail_N = (
        inputs.candidates_NK,
        inputs.teacher_candidates_NK,
        inputs.teacher_tail_N,
    )
    if student_NK is None or teacher_NK is None or teacher_tail_N is None:
        raise ValueError("topk_reverse_kl needs teacher candidates, their log-probabilities and the tail")
    student_tail_N = log_tail(student_NK)
    candidates_N = (student_NK.exp() * (student_NK - teacher_NK)).sum(-1)
    tail_N = student_tail_N.exp() * (student_tail_N - teacher_tail_N.clamp(min=LOG_FLOOR))
    metrics = {
        "topk_student_tail_mass": student_tail_N.exp().detach(),
        "topk_teacher_tail_mass": teacher_tail_N.exp().detach(),
    }
    return TokenLosses(candidates_N + tail_N, metrics)
