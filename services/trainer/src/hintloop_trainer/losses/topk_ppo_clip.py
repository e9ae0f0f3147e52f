"""The clipped surrogate over a set of candidates at every response token, instead of over the sampled token alone.

Each candidate is an action with an advantage of its own, teacher minus student before the step, and counts by how
likely it was among the candidates. What the sampled token leaves to chance is summed up here instead. The candidates
are the teacher's K likeliest tokens or the student's (`topk_opd.use_teacher_topk`).
"""

from __future__ import annotations

from hintloop_trainer.losses.inputs import LossInputs, TokenLosses
from hintloop_trainer.losses.policy import LOG_LIMIT, clipped_sides, clipped_surrogate

REQUIRES = frozenset({"teacher_topk"})


def compute_loss(inputs: LossInputs) -> TokenLosses:
    """``-sum_k w_k min(ratio_k A_k, clip(ratio_k) A_k)`` per token, at temperature 1; ``[N]``.

    ``w = softmax(old)`` over the K candidates, ``A_k = teacher_k - old_k`` within ±``advantage_clip``, and
    ``ratio_k = exp(student_k - old_k)``; all ``[N, K]``. Neither weights nor advantages carry gradient. Without a clip
    and at ratio 1 the gradient is that of the reverse KL between student and teacher over the candidates.

    Raises:
        ValueError: the candidates, their scores before the step or the teacher's are absent.
    """
    student_NK, old_NK, teacher_NK = inputs.candidates_NK, inputs.old_candidates_NK, inputs.teacher_candidates_NK
    if student_NK is None or old_NK is None or teacher_NK is None:
        raise ValueError("topk_ppo_clip needs candidates with the scores of student, student before the step, teacher")
    # A token that is impossible to one side only: far, but not infinitely.
    old_NK = old_NK.clamp(min=-LOG_LIMIT)
    bound = inputs.advantage_clip
    advantages_NK = (teacher_NK.clamp(min=-LOG_LIMIT) - old_NK).clamp(-bound, bound)
    weights_NK = old_NK.softmax(-1)
    gains_NK, ratio_NK, clipped_NK = clipped_surrogate(
        student_NK.clamp(min=-LOG_LIMIT), old_NK, advantages_NK, inputs.clip_low, inputs.clip_high
    )
    metrics = {
        "topk_advantage": (weights_NK * advantages_NK).sum(-1),
        "ratio_mean": (weights_NK * ratio_NK).sum(-1),
        "clip_fraction": (weights_NK * clipped_NK).sum(-1),
        **{name: (weights_NK * part_NK).sum(-1) for name, part_NK in clipped_sides(clipped_NK, advantages_NK).items()},
    }
    return TokenLosses(-(weights_NK * gains_NK).sum(-1), {name: value.detach() for name, value in metrics.items()})
