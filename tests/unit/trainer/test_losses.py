from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hintloop_trainer.losses import policy, topk_reverse_kl
from hintloop_trainer.losses.inputs import LossInputs

rng = np.random.default_rng(3)


def inputs(**fields: Any) -> LossInputs:
    count = 6
    random = {name: torch.tensor(-rng.uniform(0.1, 4.0, count)) for name in ("logprobs", "old", "advantages")}
    settings: dict[str, Any] = {
        "logprobs_N": random["logprobs"],
        "tempered_N": random["logprobs"],
        "old_logprobs_N": random["old"],
        "old_tempered_N": random["old"],
        "advantages_N": random["advantages"] + 2.0,
        "tis_weights_N": torch.ones(count, dtype=torch.float64),
        "entropy_N": torch.zeros(count),
        "sample_N": torch.zeros(count, dtype=torch.int64),
        "clip_low": 0.2,
        "clip_high": 0.28,
        **fields,
    }
    return LossInputs(**settings)


def naive_policy_loss(given: LossInputs) -> list[float]:
    """The surrogate case by case, in plain Python."""
    assert given.advantages_N is not None
    losses = []
    for new, old, advantage, weight in zip(
        given.tempered_N.tolist(),
        given.old_tempered_N.tolist(),
        given.advantages_N.tolist(),
        given.tis_weights_N.tolist(),
        strict=True,
    ):
        ratio = math.exp(new - old)
        if advantage >= 0:
            gain = min(ratio, 1 + given.clip_high) * advantage
        else:
            gain = max(ratio, 1 - given.clip_low) * advantage
        losses.append(-weight * gain)
    return losses


def test_policy_loss_equals_the_naive_one() -> None:
    given = inputs(tis_weights_N=torch.tensor([1.0, 0.5, 2.0, 1.0, 0.1, 1.5], dtype=torch.float64))
    result = policy.compute_loss(given)
    np.testing.assert_allclose(result.losses_N.numpy(), naive_policy_loss(given), rtol=1e-12)


def test_policy_loss_counts_what_was_clipped_on_each_side() -> None:
    old = torch.zeros(4, dtype=torch.float64) - 1.0
    new = old + torch.tensor([math.log(1.25), math.log(1.35), math.log(0.75), math.log(0.75)])
    given = inputs(
        tempered_N=new,
        old_tempered_N=old,
        advantages_N=torch.tensor([1.0, 1.0, -1.0, 1.0], dtype=torch.float64),
        tis_weights_N=torch.ones(4, dtype=torch.float64),
    )
    clipped = policy.compute_loss(given).metrics["clip_fraction"]
    # 1.25 is inside the wider upper side; 0.75 is clipped only where it would be rewarded.
    assert clipped.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_policy_gradient_equals_finite_differences() -> None:
    given = inputs()
    point = given.tempered_N.clone().requires_grad_()

    def total(values: torch.Tensor) -> torch.Tensor:
        return policy.compute_loss(inputs_with(given, tempered_N=values)).losses_N.sum()

    assert torch.autograd.gradcheck(total, (point,), eps=1e-6, atol=1e-6)


def inputs_with(given: LossInputs, **fields: Any) -> LossInputs:
    return LossInputs(**{name: getattr(given, name) for name in LossInputs.__slots__} | fields)


def test_the_gradient_follows_the_teacher() -> None:
    def gradient(advantages: list[float]) -> list[float]:
        point = torch.tensor([-1.0, -1.0], requires_grad=True)
        given = inputs(
            tempered_N=point,
            old_tempered_N=point.detach(),
            advantages_N=torch.tensor(advantages),
            tis_weights_N=torch.ones(2),
        )
        policy.compute_loss(given).losses_N.sum().backward()
        assert point.grad is not None
        return point.grad.tolist()

    assert gradient([0.5, -0.25]) == pytest.approx([-0.5, 0.25])
    assert gradient([-0.5, 0.25]) == pytest.approx([0.5, -0.25])


def test_tis_weights_are_truncated_and_only_where_they_apply() -> None:
    weights = policy.tis_weights(
        torch.tensor([-1.0, -1.0, -1.0, -1.0]),
        torch.tensor([-1.5, -5.0, -0.5, -0.5]),
        torch.tensor([True, True, True, False]),
        2.0,
    )
    assert weights.tolist() == pytest.approx([math.exp(0.5), 2.0, math.exp(-0.5), 1.0])
    assert policy.tis_weights(torch.zeros(1), torch.zeros(1) - 3, torch.tensor([True]), None).tolist() == [1.0]


def distributions(num_tokens: int, vocab: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    raw = rng.normal(0, 2, (2, num_tokens, vocab))
    student, teacher = np.exp(raw) / np.exp(raw).sum(-1, keepdims=True)
    return student, teacher


def topk_inputs(student_logits: torch.Tensor, teacher: np.ndarray[Any, Any], k: int) -> LossInputs:
    ids = torch.tensor(np.argsort(-teacher, axis=-1)[:, :k].copy())
    kept = np.take_along_axis(teacher, ids.numpy(), -1)
    return inputs(
        candidates_NK=student_logits.log_softmax(-1).gather(-1, ids),
        teacher_candidates_NK=torch.tensor(np.log(kept)),
        teacher_tail_N=torch.tensor(np.log(1 - kept.sum(-1))),
    )


def naive_reverse_kl(student: np.ndarray[Any, Any], teacher: np.ndarray[Any, Any], k: int) -> list[float]:
    """KL over explicit bins: the teacher's k best, and everything else added up."""
    losses = []
    for p, q in zip(student, teacher, strict=True):
        best = sorted(range(len(q)), key=lambda token: -q[token])[:k]
        bins_p = [p[token] for token in best] + [sum(p[token] for token in range(len(p)) if token not in best)]
        bins_q = [q[token] for token in best] + [sum(q[token] for token in range(len(q)) if token not in best)]
        losses.append(sum(a * math.log(a / b) for a, b in zip(bins_p, bins_q, strict=True)))
    return losses


def test_topk_reverse_kl_equals_the_naive_one() -> None:
    student, teacher = distributions(6, 40)
    given = topk_inputs(torch.tensor(np.log(student)), teacher, k=5)
    result = topk_reverse_kl.compute_loss(given)
    np.testing.assert_allclose(result.losses_N.numpy(), naive_reverse_kl(student, teacher, 5), rtol=1e-9)
    assert (result.losses_N > 0).all()


def test_topk_reverse_kl_of_equal_distributions_is_zero() -> None:
    _, teacher = distributions(6, 40)
    given = topk_inputs(torch.tensor(np.log(teacher)), teacher, k=5)
    assert topk_reverse_kl.compute_loss(given).losses_N.abs().max() < 1e-9


def test_the_bins_and_the_tail_sum_to_one() -> None:
    student, teacher = distributions(50, 40)
    given = topk_inputs(torch.tensor(np.log(student)), teacher, k=8)
    assert given.candidates_NK is not None
    tail = topk_reverse_kl.log_tail(given.candidates_NK)
    torch.testing.assert_close(given.candidates_NK.exp().sum(-1) + tail.exp(), torch.ones(50, dtype=torch.float64))


def test_topk_gradient_equals_finite_differences() -> None:
    _, teacher = distributions(3, 12)
    logits = torch.tensor(rng.normal(0, 1, (3, 12)), requires_grad=True)

    def total(values: torch.Tensor) -> torch.Tensor:
        return topk_reverse_kl.compute_loss(topk_inputs(values, teacher, k=4)).losses_N.sum()

    assert torch.autograd.gradcheck(total, (logits,), eps=1e-6, atol=1e-7)


def test_a_tail_without_mass_stays_finite() -> None:
    certain = torch.tensor([[0.0, -40.0]], requires_grad=True)
    given = inputs(
        candidates_NK=certain,
        teacher_candidates_NK=torch.tensor([[0.0, -40.0]]),
        teacher_tail_N=torch.tensor([-60.0]),
    )
    loss = topk_reverse_kl.compute_loss(given).losses_N
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert certain.grad is not None
    assert torch.isfinite(certain.grad).all()
