"""The KL to a reference, against exact sums over a small vocabulary."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hintloop_trainer.losses.regularisation import Estimator, kl_term
from hypothesis import given
from hypothesis import strategies as st

ESTIMATORS = get_args(Estimator)
GENERATOR = torch.Generator().manual_seed(4)
LOGITS = torch.randn(7, generator=GENERATOR, dtype=torch.float64)
REFERENCE = torch.randn(7, generator=GENERATOR, dtype=torch.float64).log_softmax(-1)


def naive(estimator: str, new: float, old: float, reference: float) -> float:
    d = reference - new
    values = {
        "k1": math.exp(new - old) * (old - reference),
        "k2": 0.5 * d * d,
        "k3": math.exp(reference) / math.exp(new) - 1 - d,
    }
    return values[estimator]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(new=st.floats(-9, 0), old=st.floats(-9, 0), reference=st.floats(-9, 0))
def test_the_value_is_the_textbook_one(estimator: Estimator, new: float, old: float, reference: float) -> None:
    columns = (torch.tensor([value], dtype=torch.float64) for value in (new, old, reference))
    expected = naive(estimator, new, old, reference)
    assert kl_term(estimator, *columns).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_derivative_equals_finite_differences(estimator: Estimator) -> None:
    new = torch.tensor([-0.3, -2.0, -4.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-0.5, -2.0, -3.0], dtype=torch.float64)
    reference = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda point: kl_term(estimator, point, old, reference), (new,))


def mean_over_samples(estimator: Estimator) -> tuple[float, torch.Tensor]:
    """Mean of value and derivative over every token that the student may sample, each with its probability."""
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    terms = kl_term(estimator, logprobs, logprobs.detach(), REFERENCE)
    mean = (logprobs.detach().exp() * terms).sum()
    (gradient,) = torch.autograd.grad(mean, logits)
    return mean.item(), gradient


def exact(*, forward: bool) -> tuple[float, torch.Tensor]:
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    kl = (
        (REFERENCE.exp() * (REFERENCE - logprobs)).sum() if forward else (logprobs.exp() * (logprobs - REFERENCE)).sum()
    )
    (gradient,) = torch.autograd.grad(kl, logits)
    return kl.item(), gradient


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_mean_value_is_the_kl(estimator: Estimator) -> None:
    assert mean_over_samples(estimator)[0] == pytest.approx(exact(forward=False)[0], rel=1e-9)


@pytest.mark.parametrize(("estimator", "forward"), [("k1", False), ("k2", False), ("k3", True)])
def test_the_mean_derivative_is_that_of_a_kl(estimator: Estimator, forward: bool) -> None:
    torch.testing.assert_close(mean_over_samples(estimator)[1], exact(forward=forward)[1])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_far_apart_it_stays_finite_and_pulls_the_right_way(estimator: Estimator) -> None:
    new = torch.tensor([-300.0, -0.1], requires_grad=True)
    old, reference = torch.tensor([-300.0, -0.1]), torch.tensor([-0.1, -300.0])
    kl_term(estimator, new, old, reference).sum().backward()
    assert new.grad is not None
    assert bool(new.grad.isfinite().all())
    # Descending raises the token that the reference wants, and lowers the one that it does not.
    assert new.grad.sign().tolist() == [-1, 1]
