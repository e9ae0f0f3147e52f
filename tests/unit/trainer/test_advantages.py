from __future__ import annotations

import pytest
import torch
from hintloop_trainer.advantages import Coefficients, compute_advantages_and_returns

STUDENT = torch.tensor([-1.2, -0.8, -2.1, -0.5])
TEACHER = torch.tensor([-0.9, -1.5, -1.8, -0.3])
NAN = float("nan")


def test_teacher_minus_student_by_hand() -> None:
    advantages, returns = compute_advantages_and_returns(
        Coefficients("on_policy_distillation", 5.0), old_logprobs_N=STUDENT, teacher_logprobs_N=TEACHER
    )
    torch.testing.assert_close(advantages, torch.tensor([0.3, -0.7, 0.3, 0.2]))
    torch.testing.assert_close(returns, advantages)


def test_the_teacher_term_is_bounded_on_both_sides() -> None:
    advantages, _ = compute_advantages_and_returns(
        Coefficients("on_policy_distillation", 0.25), old_logprobs_N=STUDENT, teacher_logprobs_N=TEACHER
    )
    torch.testing.assert_close(advantages, torch.tensor([0.25, -0.25, 0.25, 0.2]))


def test_equal_teacher_and_student_teach_nothing() -> None:
    advantages, _ = compute_advantages_and_returns(
        Coefficients("on_policy_distillation", 5.0), old_logprobs_N=STUDENT, teacher_logprobs_N=STUDENT
    )
    assert not advantages.any()


def test_grpo_gives_every_token_the_score() -> None:
    scores = torch.tensor([1.0, 1.0, -1.0, -1.0])
    advantages, _ = compute_advantages_and_returns(
        Coefficients("grpo", 5.0), old_logprobs_N=STUDENT, teacher_logprobs_N=TEACHER, scores_N=scores
    )
    torch.testing.assert_close(advantages, scores)


def test_combine_weighs_both_parts_and_takes_either() -> None:
    advantages, _ = compute_advantages_and_returns(
        Coefficients("combine", 5.0, w_rl=0.5, w_opd=2.0),
        old_logprobs_N=STUDENT,
        teacher_logprobs_N=torch.tensor([-0.9, -1.5, NAN, NAN]),
        scores_N=torch.tensor([1.0, NAN, -1.0, 0.0]),
    )
    torch.testing.assert_close(advantages, torch.tensor([0.5 + 0.6, -1.4, -0.5, 0.0]))


def test_advantages_carry_no_gradient() -> None:
    old = STUDENT.clone().requires_grad_()
    advantages, returns = compute_advantages_and_returns(
        Coefficients("combine", 5.0), old_logprobs_N=old, teacher_logprobs_N=TEACHER, scores_N=torch.ones(4)
    )
    assert not advantages.requires_grad
    assert not returns.requires_grad


@pytest.mark.parametrize(
    ("estimator", "message"),
    [("on_policy_distillation", "teacher"), ("grpo", "scores"), ("combine", "neither")],
)
def test_an_absent_signal_is_an_error(estimator: str, message: str) -> None:
    missing = torch.tensor([NAN, -1.0, -1.0, -1.0])
    with pytest.raises(ValueError, match=message):
        compute_advantages_and_returns(
            Coefficients(estimator, 5.0),  # type: ignore[arg-type]
            old_logprobs_N=STUDENT,
            teacher_logprobs_N=missing,
            scores_N=missing,
        )
