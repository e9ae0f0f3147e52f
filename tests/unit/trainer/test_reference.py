"""The whole loss through a real model: in float64 against finite differences, and the reference beside the student."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hintloop_contract.messages import Sample, Sampling
from hintloop_contract.tensors import pack, unpack
from hintloop_trainer import batch as batching
from hintloop_trainer import reference
from hintloop_trainer.chains import alone
from hintloop_trainer.learner import Learner
from hintloop_trainer.megatron import cpu, model, weights
from hintloop_trainer.megatron.parallel import Layout
from hintloop_trainer.reference import Reference
from transformers import AutoModelForCausalLM

from .conftest import make_sample
from .test_learner import encoded, gradients, make_learner, response_logprobs

SAMPLES = [make_sample(turn, num_prompt=4, num_response=3, sampling=Sampling(temperature=0.7)) for turn in range(4)]
KL = {"kl_coef": 0.5, "force_kl": True}


def with_reference(learner: Learner, directory: Path) -> None:
    """Another model as ``learner``'s reference."""
    network = model.build(learner.arch, learner.layout, learner.dtype, learner.config.model.max_seq_len)
    weights.load(network, learner.arch, learner.layout, directory)
    learner.reference = Reference(learner, network)


def widen(learner: Learner) -> None:
    """Everything in float64."""
    learner.dtype = torch.float64
    learner.model = model.build(learner.arch, learner.layout, torch.float64, learner.config.model.max_seq_len)
    weights.load(learner.model, learner.arch, learner.layout, learner.config.model.student_model_path)
    for parameter in learner.model.parameters():
        parameter.data = parameter.data.double()
    learner.replicated = learner.model


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen3", {"estimator": "combine", "kl_coef": 0.5, "entropy_coef": 0.3, "loss_reduction": "sample_mean"}),
        ("llama", {"estimator": "on_policy_distillation", "is_correction": "mask", "kl_estimator": "k1", **KL}),
        ("qwen2", {"estimator": "grpo", "kl_coef": 0.5, "kl_estimator": "k2", "tis_cap": None}),
    ],
)
def test_gradients_of_a_real_model_equal_finite_differences(
    student: Callable[..., Path], layout: Layout, family: str, settings: dict[str, Any]
) -> None:
    learner = make_learner(student(family, tied=False), layout, **settings)
    widen(learner)
    with_reference(learner, student(family, tied=False, seed=5))
    learner.reference._frozen.double()  # type: ignore[union-attr]
    examples = [batching.read_example(sample, learner.arch.vocab_size) for sample in SAMPLES]
    plain = batching.collate(alone(examples), candidates=False, device=torch.device("cpu"))
    assert learner.reference is not None
    with cpu.quietly():
        (batch,) = learner.reference.beside([plain])
        (old,) = learner._score_before([plain])

        def total() -> torch.Tensor:
            hidden_SBH = learner._hidden(learner.model, batch)
            found: torch.Tensor = learner.objective.evaluate(batch, learner._scores(batch, hidden_SBH), old).total
            return found

        parameters = [parameter for parameter in learner.model.parameters() if parameter.requires_grad]
        slopes = torch.autograd.grad(total(), parameters)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            way = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
            expected = sum(float((slope * part).sum()) for slope, part in zip(slopes, way, strict=True))
            sides, step = [], 1e-6
            for sign in (1.0, -2.0, 1.0):
                with torch.no_grad():
                    for parameter, part in zip(parameters, way, strict=True):
                        parameter.add_(part, alpha=sign * step)
                    sides.append(float(total()))
            assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(expected, rel=1e-5)


def naive_kl(estimator: str, d: torch.Tensor) -> torch.Tensor:
    """At ratio 1; the derivative of the first is that of the penalty ``ratio * (old - reference)``."""
    if estimator == "k1":
        return -d.detach() * (1.0 + (d.detach() - d))
    return d.square() / 2 if estimator == "k2" else d.exp() - d - 1


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_kl_to_another_model_equals_transformers(
    student: Callable[..., Path], layout: Layout, estimator: str
) -> None:
    directory, other = student(), student(seed=5)
    silent = [make_silent(sample, directory) for sample in SAMPLES]
    learner = make_learner(directory, layout, micro_batch_size=3, kl_estimator=estimator, **KL)
    with_reference(learner, other)
    learner.begin([encoded(silent)])
    result = learner.step(0)

    ours, theirs = (AutoModelForCausalLM.from_pretrained(at, dtype=torch.float64) for at in (directory, other))
    new = torch.cat([response_logprobs(ours, sample, 0.7) for sample in silent])
    with torch.no_grad():
        held = torch.cat([response_logprobs(theirs, sample, 0.7) for sample in silent])
    loss = 0.5 * naive_kl(estimator, held - new).mean()
    loss.backward()
    assert result.tally.of("loss_kl").mean == pytest.approx(loss.item(), rel=1e-5)
    assert result.effective["kl_coef"] == 0.5
    expected = {name: parameter.grad for name, parameter in ours.named_parameters()}
    norm = torch.cat([grad.reshape(-1) for grad in expected.values()]).norm().item()
    for name, grad in gradients(learner).items():
        torch.testing.assert_close(grad.double(), expected[name], rtol=1e-3, atol=3e-5 * norm)


def make_silent(sample: Sample, directory: Path) -> Sample:
    """A sample whose teacher says just what the student does: all that is left to learn from is the reference."""
    network = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        said = response_logprobs(network, sample, 1.0)
    return make_sample(
        int(sample.turn_id.removeprefix("turn-")),
        num_prompt=4,
        num_response=3,
        teacher_logprobs=pack(said.numpy(), "float32"),
    )


def test_at_first_the_reference_is_the_student_and_stays_so(student: Callable[..., Path], layout: Layout) -> None:
    learner = make_learner(student(), layout, learning_rate=1e-2, num_epochs=2, **KL)
    learner.begin([encoded(SAMPLES)])
    first, second = learner.step(0), learner.step(0)
    assert first.tally.of("kl").largest == 0.0
    assert second.tally.of("kl").mean > 1e-4
    once = learner._plans[0].batches[0].reference_N
    learner.begin([encoded(SAMPLES)])
    again = learner._plans[0].batches[0].reference_N
    assert once is not None
    assert again is not None
    assert torch.equal(once, again)


def test_the_reference_holds_the_student(student: Callable[..., Path], layout: Layout) -> None:
    def distance(kl_coef: float) -> float:
        learner = make_learner(student(), layout, learning_rate=3e-3, kl_coef=kl_coef, kl_estimator="k2", force_kl=True)
        for _ in range(8):
            learner.begin([encoded(SAMPLES)])
            last = learner.step(0)
        return last.tally.of("kl").mean

    assert distance(3.0) < 0.5 * distance(1e-9)


def test_without_a_coefficient_there_is_no_copy(student: Callable[..., Path], layout: Layout) -> None:
    assert reference.make(make_learner(student(), layout)) is None


def test_the_first_weights_are_held_once_where_the_teacher_has_them(
    student: Callable[..., Path], layout: Layout
) -> None:
    learner = make_learner(student(), layout, prm={"teacher_source": "trainer"}, **KL)
    assert learner.own_teacher is not None
    assert learner.reference is not None
    assert learner.reference._frozen is learner.own_teacher.network


def test_a_teacher_that_agrees_gives_exactly_no_gradient(student: Callable[..., Path], layout: Layout) -> None:
    learner = make_learner(student(), layout)
    learner.begin([encoded(SAMPLES)])
    plan = learner._plans[0]
    said = {
        example.turn_id: part
        for batch, old in zip(plan.batches, learner._score_before(plan.batches), strict=True)
        for example, part in zip(
            batch.examples, old.logprobs_N.split([e.num_trained for e in batch.examples]), strict=True
        )
    }
    silent = [
        make_sample(
            turn, num_prompt=4, num_response=3, teacher_logprobs=pack(said[f"turn-{turn:04d}"].numpy(), "float32")
        )
        for turn in range(4)
    ]
    learner.begin([encoded(silent)])
    result = learner.step(0)
    assert (result.loss, result.grad_norm) == (0.0, 0.0)
    assert not any(bool(grad.any()) for grad in gradients(learner).values())


def test_the_gradient_of_every_weight_follows_the_teacher(student: Callable[..., Path], layout: Layout) -> None:
    def slopes(shift: float) -> dict[str, torch.Tensor]:
        samples = []
        for turn, sample in enumerate(SAMPLES):
            assert sample.teacher_logprobs is not None
            taught = pack(unpack(sample.teacher_logprobs) - shift, "float32")
            samples.append(make_sample(turn, num_prompt=4, num_response=3, teacher_logprobs=taught))
        learner = make_learner(student(), layout)
        learner.begin([encoded(samples)])
        learner.step(0)
        return {name: grad.clone() for name, grad in gradients(learner).items()}

    one, other = slopes(0.0), slopes(0.1)
    assert all(not torch.equal(one[name], other[name]) for name in one)


def test_the_entropy_bonus_opens_the_distribution(student: Callable[..., Path], layout: Layout) -> None:
    def entropy(coefficient: float) -> float:
        learner = make_learner(student(), layout, learning_rate=3e-3, entropy_coef=coefficient)
        for _ in range(3):
            learner.begin([encoded(SAMPLES)])
            last = learner.step(0)
        assert last.effective["entropy_coef"] == coefficient
        return last.tally.of("entropy").mean

    assert entropy(2.0) > entropy(0.0) + 0.05
