from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hintloop_trainer.losses import policy, topk_ppo_clip, topk_reverse_kl
from hintloop_trainer.losses.inputs import LossInputs
from hypothesis import given, settings
from hypothesis import strategies as st

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


def naive_policy_loss(batch: LossInputs) -> list[float]:
    """The surrogate case by case, in plain Python."""
    assert batch.advantages_N is not None
    losses = []
    for new, old, advantage, weight in zip(
        batch.tempered_N.tolist(),
        batch.old_tempered_N.tolist(),
        batch.advantages_N.tolist(),
        batch.tis_weights_N.tolist(),
        strict=True,
    ):
        ratio = math.exp(new - old)
        if advantage >= 0:
            gain = min(ratio, 1 + batch.clip_high) * advantage
        else:
            gain = max(ratio, 1 - batch.clip_low) * advantage
        losses.append(-weight * gain)
    return losses


def test_policy_loss_equals_the_naive_one() -> None:
    batch = inputs(tis_weights_N=torch.tensor([1.0, 0.5, 2.0, 1.0, 0.1, 1.5], dtype=torch.float64))
    result = policy.compute_loss(batch)
    np.testing.assert_allclose(result.losses_N.numpy(), naive_policy_loss(batch), rtol=1e-12)


def test_policy_loss_counts_what_was_clipped_on_each_side() -> None:
    old = torch.zeros(4, dtype=torch.float64) - 1.0
    new = old + torch.tensor([math.log(1.25), math.log(1.35), math.log(0.75), math.log(0.75)])
    batch = inputs(
        tempered_N=new,
        old_tempered_N=old,
        advantages_N=torch.tensor([1.0, 1.0, -1.0, 1.0], dtype=torch.float64),
        tis_weights_N=torch.ones(4, dtype=torch.float64),
    )
    clipped = policy.compute_loss(batch).metrics["clip_fraction"]
    # 1.25 is inside the wider upper side; 0.75 is clipped only where it would be rewarded.
    assert clipped.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_policy_gradient_equals_finite_differences() -> None:
    batch = inputs()
    point = batch.tempered_N.clone().requires_grad_()

    def total(values: torch.Tensor) -> torch.Tensor:
        return policy.compute_loss(inputs_with(batch, tempered_N=values)).losses_N.sum()

    assert torch.autograd.gradcheck(total, (point,), eps=1e-6, atol=1e-6)


def inputs_with(batch: LossInputs, **fields: Any) -> LossInputs:
    return LossInputs(**{name: getattr(batch, name) for name in LossInputs.__slots__} | fields)


def test_the_gradient_follows_the_teacher() -> None:
    def gradient(advantages: list[float]) -> list[float]:
        point = torch.tensor([-1.0, -1.0], requires_grad=True)
        batch = inputs(
            tempered_N=point,
            old_tempered_N=point.detach(),
            advantages_N=torch.tensor(advantages),
            tis_weights_N=torch.ones(2),
        )
        policy.compute_loss(batch).losses_N.sum().backward()
        assert point.grad is not None
        return point.grad.tolist()

    assert gradient([0.5, -0.25]) == pytest.approx([-0.5, 0.25])
    assert gradient([-0.5, 0.25]) == pytest.approx([0.5, -0.25])


def test_an_absurd_step_still_has_a_gradient_of_the_right_sign() -> None:
    """Log-ratios at which exp overflows in float32."""
    new = torch.tensor([199.0, 199.0, -201.0, -201.0], requires_grad=True)
    batch = inputs(
        tempered_N=new,
        old_tempered_N=torch.full((4,), -1.0),
        advantages_N=torch.tensor([1.0, -1.0, 1.0, -1.0]),
        tis_weights_N=torch.ones(4),
    )
    policy.compute_loss(batch).losses_N.sum().backward()
    assert new.grad is not None
    assert bool(new.grad.isfinite().all())
    # Clipped where it would be rewarded for going on; pulled back where it went the wrong way; gone at ratio 0.
    assert new.grad.sign().tolist() == [0, 1, 0, 0]


@given(
    new=st.lists(st.floats(-12, 0), min_size=1, max_size=6),
    data=st.data(),
    low=st.floats(0.01, 0.9),
    high=st.floats(0.01, 0.9),
)
def test_the_surrogate_equals_the_naive_one_everywhere(
    new: list[float], data: st.DataObject, low: float, high: float
) -> None:
    def column(least: float, most: float) -> torch.Tensor:
        values = st.lists(st.floats(least, most), min_size=len(new), max_size=len(new))
        return torch.tensor(data.draw(values), dtype=torch.float64)

    batch = inputs(
        tempered_N=torch.tensor(new, dtype=torch.float64),
        old_tempered_N=column(-12, 0),
        advantages_N=column(-6, 6),
        tis_weights_N=column(0, 2),
        clip_low=low,
        clip_high=high,
    )
    np.testing.assert_allclose(policy.compute_loss(batch).losses_N.numpy(), naive_policy_loss(batch), rtol=1e-9)


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
    batch = topk_inputs(torch.tensor(np.log(student)), teacher, k=5)
    result = topk_reverse_kl.compute_loss(batch)
    np.testing.assert_allclose(result.losses_N.numpy(), naive_reverse_kl(student, teacher, 5), rtol=1e-9)
    assert (result.losses_N > 0).all()


def test_topk_reverse_kl_of_equal_distributions_is_zero() -> None:
    _, teacher = distributions(6, 40)
    batch = topk_inputs(torch.tensor(np.log(teacher)), teacher, k=5)
    assert topk_reverse_kl.compute_loss(batch).losses_N.abs().max() < 1e-9


def test_the_bins_and_the_tail_sum_to_one() -> None:
    student, teacher = distributions(50, 40)
    batch = topk_inputs(torch.tensor(np.log(student)), teacher, k=8)
    assert batch.candidates_NK is not None
    tail = topk_reverse_kl.log_tail(batch.candidates_NK)
    torch.testing.assert_close(batch.candidates_NK.exp().sum(-1) + tail.exp(), torch.ones(50, dtype=torch.float64))


def test_topk_gradient_equals_finite_differences() -> None:
    _, teacher = distributions(3, 12)
    logits = torch.tensor(rng.normal(0, 1, (3, 12)), requires_grad=True)

    def total(values: torch.Tensor) -> torch.Tensor:
        return topk_reverse_kl.compute_loss(topk_inputs(values, teacher, k=4)).losses_N.sum()

    assert torch.autograd.gradcheck(total, (logits,), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("student", "teacher", "tail"),
    [
        # Nothing is left for the tail, on either side.
        ([0.0, -40.0], [0.0, -40.0], -60.0),
        # The candidates are the whole vocabulary: the teacher's tail has no mass at all, the student's rounds to some.
        ([math.log(0.25), math.log(0.75)], [math.log(0.5), math.log(0.5)], -math.inf),
        # Rounded, the student's candidates have more than all the mass.
        ([math.log(0.25), math.log(0.75) + 1e-6], [math.log(0.5), math.log(0.5)], -math.inf),
        # A candidate that the student rules out, and one that the teacher does.
        ([-math.inf, math.log(0.5)], [math.log(0.5), math.log(0.25)], math.log(0.25)),
        ([math.log(0.5), math.log(0.25)], [-math.inf, math.log(0.5)], math.log(0.5)),
    ],
)
def test_bins_without_mass_stay_finite(
    student: list[float], teacher: list[float], tail: float, dtype: torch.dtype
) -> None:
    point = torch.tensor([student], dtype=dtype, requires_grad=True)
    batch = inputs(
        candidates_NK=point,
        teacher_candidates_NK=torch.tensor([teacher], dtype=dtype),
        teacher_tail_N=torch.tensor([tail], dtype=dtype),
    )
    loss = topk_reverse_kl.compute_loss(batch).losses_N
    loss.sum().backward()
    assert point.grad is not None
    assert bool(point.grad.isfinite().all())
    floor = topk_reverse_kl.LOG_FLOOR
    expected = sum(math.exp(p) * (p - max(q, floor)) for p, q in zip(student, teacher, strict=True) if p > -math.inf)
    left = 1 - sum(math.exp(p) for p in student)
    if left > 1e-7:
        expected += left * (math.log(left) - max(tail, floor))
    assert loss.item() == pytest.approx(expected, abs=1e-5)


@settings(max_examples=50)
@given(logits=st.lists(st.floats(-30, 30), min_size=3, max_size=12), k=st.integers(1, 12))
def test_the_tail_is_what_the_candidates_leave(logits: list[float], k: int) -> None:
    logprobs = torch.tensor([logits], dtype=torch.float64).log_softmax(-1)
    candidates = logprobs.topk(min(k, len(logits)), -1).values
    total = candidates.exp().sum() + topk_reverse_kl.log_tail(candidates).exp().sum()
    assert total.item() == pytest.approx(1.0, abs=2e-7)


def topk_clip_inputs(new: torch.Tensor, old: torch.Tensor, teacher: torch.Tensor) -> LossInputs:
    return inputs(candidates_NK=new, old_candidates_NK=old, teacher_candidates_NK=teacher, advantage_clip=1.5)


def random_candidates(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Student, student before the step and teacher on 4 of 9 tokens at 6 positions."""
    generator = torch.Generator().manual_seed(seed)
    before = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    now = before + 0.4 * torch.randn(6, 9, generator=generator, dtype=torch.float64)
    teacher = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    new, old, taught = (values.log_softmax(-1)[:, :4] for values in (now, before, teacher))
    return new, old, taught


def naive_topk_clip(batch: LossInputs) -> list[float]:
    """Candidate by candidate, each with its own advantage, weighed by how likely it was among them."""
    assert batch.candidates_NK is not None
    assert batch.old_candidates_NK is not None
    assert batch.teacher_candidates_NK is not None
    losses = []
    rows = (batch.candidates_NK, batch.old_candidates_NK, batch.teacher_candidates_NK)
    for new, old, teacher in zip(*(row.tolist() for row in rows), strict=True):
        mass = sum(math.exp(value) for value in old)
        loss = 0.0
        for n, o, t in zip(new, old, teacher, strict=True):
            advantage = max(-batch.advantage_clip, min(batch.advantage_clip, t - o))
            ratio = math.exp(n - o)
            within = max(1 - batch.clip_low, min(1 + batch.clip_high, ratio))
            loss -= math.exp(o) / mass * min(ratio * advantage, within * advantage)
        losses.append(loss)
    return losses


def test_clipped_candidates_equal_the_naive_form_and_finite_differences() -> None:
    new, old, teacher = random_candidates(0)
    batch = topk_clip_inputs(new, old, teacher)
    result = topk_ppo_clip.compute_loss(batch)
    np.testing.assert_allclose(result.losses_N.numpy(), naive_topk_clip(batch), rtol=1e-12)
    assert 0 < result.metrics["clip_fraction"].mean() < 1

    def total(values: torch.Tensor) -> torch.Tensor:
        return topk_ppo_clip.compute_loss(topk_clip_inputs(values, old, teacher)).losses_N.sum()

    assert torch.autograd.gradcheck(total, (new.clone().requires_grad_(),), eps=1e-7, atol=1e-6)


def test_clipped_candidates_have_the_reverse_kl_as_their_slope_at_the_start() -> None:
    """Over all candidates there are, the surrogate at ratio 1 points where KL(student || teacher) falls."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = (0.2 * torch.randn(3, 5, generator=generator, dtype=torch.float64)).log_softmax(-1)
    student = logits.log_softmax(-1)
    batch = inputs(
        candidates_NK=student,
        old_candidates_NK=student.detach(),
        teacher_candidates_NK=teacher,
        advantage_clip=50.0,
    )
    (ours,) = torch.autograd.grad(topk_ppo_clip.compute_loss(batch).losses_N.sum(), logits, retain_graph=True)
    (exact,) = torch.autograd.grad((student.exp() * (student - teacher)).sum(), logits)
    torch.testing.assert_close(ours, exact)


def test_clipped_candidates_of_an_equal_teacher_teach_nothing() -> None:
    new, old, _ = random_candidates(2)
    point = new.clone().requires_grad_()
    topk_ppo_clip.compute_loss(topk_clip_inputs(point, old, old)).losses_N.sum().backward()
    assert point.grad is not None
    assert not bool(point.grad.any())


@pytest.mark.parametrize("side", ["new", "old", "teacher"])
def test_clipped_candidates_that_one_side_rules_out_stay_finite(side: str) -> None:
    values = dict(zip(("new", "old", "teacher"), random_candidates(3), strict=True))
    values[side] = values[side].clone()
    values[side][0, 1] = -math.inf
    point = values["new"].requires_grad_()
    loss = topk_ppo_clip.compute_loss(topk_clip_inputs(point, values["old"], values["teacher"])).losses_N
    loss.sum().backward()
    assert bool(loss.isfinite().all())
    assert point.grad is not None
    assert bool(point.grad.isfinite().all())
