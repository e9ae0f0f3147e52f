"""The learner's loss and gradients against transformers' autograd and plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hintloop_contract.messages import Sample, Sampling
from hintloop_contract.tensors import pack, unpack
from hintloop_trainer import batch as batching
from hintloop_trainer.chains import alone
from hintloop_trainer.errors import LossError, TrainingError
from hintloop_trainer.learner import Learner
from hintloop_trainer.megatron import cpu, logprobs, weights
from hintloop_trainer.megatron.parallel import Layout
from transformers import AutoModelForCausalLM, PreTrainedModel

from .conftest import VOCAB, build_learner, make_sample

SAMPLES = [
    make_sample(turn, num_prompt=3 + turn, num_response=2 + 3 * turn, sampling=Sampling(temperature=0.7))
    for turn in range(4)
]


def make_learner(directory: Path, layout: Layout, **training: Any) -> Learner:
    sections = {name: training.pop(name, {}) for name in ("prm", "advantage")}
    estimator = {"estimator": training.pop("estimator", "on_policy_distillation")}
    sections["advantage"] = {**estimator, **sections["advantage"]}
    model = {"dtype": training.pop("dtype", "float32")}
    return build_learner(directory, layout, model=model, training={"grad_clip": 0.0, **training}, **sections)


def encoded(samples: list[Sample]) -> list[bytes]:
    return [msgspec.msgpack.encode(sample) for sample in samples]


def response_logprobs(reference: PreTrainedModel, sample: Sample, temperature: float) -> torch.Tensor:
    """One sample alone, the plain way: all logits, then look up each response token behind its prefix."""
    prompt, response = unpack(sample.prompt_ids).tolist(), unpack(sample.response_ids).tolist()
    logits = reference(torch.tensor([prompt + response])).logits[0]
    rows = [(logits[len(prompt) + t - 1] / temperature).log_softmax(-1)[token] for t, token in enumerate(response)]
    return torch.stack(rows)


def naive_loss(reference: PreTrainedModel, samples: list[Sample], *, by_sample: bool) -> torch.Tensor:
    """OPD with truncated importance weights, sample by sample, at ratio 1."""
    per_sample = []
    for sample in samples:
        assert sample.teacher_logprobs is not None
        tempered = response_logprobs(reference, sample, sample.sampling.temperature)
        advantage = torch.tensor(unpack(sample.teacher_logprobs)) - response_logprobs(reference, sample, 1.0).detach()
        weight = (tempered.detach() - torch.tensor(unpack(sample.behaviour_logprobs))).exp().clamp(max=2.0)
        per_sample.append(-weight * advantage.clamp(-5, 5) * (tempered - tempered.detach()).exp())
    if by_sample:
        return torch.stack([losses.mean() for losses in per_sample]).mean()
    return torch.cat(per_sample).mean()


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    """The gradient buffers under Hugging Face names."""
    found: dict[str, torch.Tensor] = {}
    for place in weights.places(learner.model, learner.arch, learner.layout):
        pieces = weights.part(place.parameter.main_grad, place.cut, learner.arch)
        found.update(zip(place.parts, pieces, strict=True))
    return found


@pytest.mark.parametrize("micro_batch_size", [1, 3, 4])
@pytest.mark.parametrize("reduction", ["token_mean", "sample_mean"])
@pytest.mark.parametrize(("family", "tied"), [("qwen3", True), ("llama", False), ("qwen2", False)])
def test_loss_and_gradients_equal_autograd_over_the_whole_batch(
    student: Callable[..., Path], layout: Layout, family: str, tied: bool, reduction: str, micro_batch_size: int
) -> None:
    directory = student(family, tied=tied)
    learner = make_learner(directory, layout, micro_batch_size=micro_batch_size, loss_reduction=reduction)
    learner.begin([encoded(SAMPLES)])
    result = learner.step(0)

    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    loss = naive_loss(reference, SAMPLES, by_sample=reduction == "sample_mean")
    loss.backward()
    expected = {name: parameter.grad for name, parameter in reference.named_parameters()}
    assert result.loss == pytest.approx(loss.item(), abs=1e-5)
    norm = torch.cat([grad.reshape(-1) for grad in expected.values()]).norm().item()
    assert result.grad_norm == pytest.approx(norm, rel=1e-4)
    ours = gradients(learner)
    assert ours.keys() == expected.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(ours[name], grad, rtol=1e-3, atol=1e-5 * norm)


def test_bfloat16_weights_follow_float32_ones(student: Callable[..., Path], layout: Layout) -> None:
    learner = make_learner(student(), layout, dtype="bfloat16", learning_rate=1e-5)
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    for _ in range(3):
        learner.begin([encoded(SAMPLES)])
        learner.step(0)
    parameters = dict(learner.model.named_parameters())
    assert all(parameter.dtype == torch.bfloat16 for parameter in parameters.values())
    mains = [p.main_param for p in parameters.values()]
    assert all(main.dtype == torch.float32 for main in mains)
    # Steps far below bfloat16's resolution are kept in the float32 weights.
    moved = [
        (main - before[name].float()).abs().max() for (name, _), main in zip(parameters.items(), mains, strict=True)
    ]
    assert min(moved) > 1e-6


def test_the_first_adamw_step_is_the_learning_rate(student: Callable[..., Path], layout: Layout) -> None:
    learner = make_learner(student(), layout, learning_rate=1e-3)
    before = learner.model.decoder.final_layernorm.weight.detach().clone()
    learner.begin([encoded(SAMPLES)])
    learner.step(0)
    moved = (learner.model.decoder.final_layernorm.weight - before).abs()
    torch.testing.assert_close(moved.median(), torch.tensor(1e-3), rtol=1e-2, atol=0)


def test_the_learning_rate_rises_over_the_first_steps(student: Callable[..., Path], layout: Layout) -> None:
    directory = student()
    learner = make_learner(directory, layout, learning_rate=1e-3, lr_warmup_steps=3)
    plain = make_learner(directory, layout, learning_rate=1e-3)
    rates = []
    for _ in range(6):
        learner.begin([encoded(SAMPLES)])
        rates.append(learner.step(0).effective["learning_rate"])
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])
    plain.begin([encoded(SAMPLES)])
    assert plain.step(0).effective["learning_rate"] == 1e-3


def test_a_first_step_of_a_rising_rate_moves_by_its_share(student: Callable[..., Path], layout: Layout) -> None:
    learner = make_learner(student(), layout, learning_rate=1e-3, lr_warmup_steps=3)
    before = learner.model.decoder.final_layernorm.weight.detach().clone()
    learner.begin([encoded(SAMPLES)])
    learner.step(0)
    moved = (learner.model.decoder.final_layernorm.weight - before).abs()
    torch.testing.assert_close(moved.median(), torch.tensor(2.5e-4), rtol=1e-2, atol=0)


def test_without_old_values_the_result_is_that_of_a_forward_of_its_own(
    student: Callable[..., Path], layout: Layout
) -> None:
    directory = student()
    shortcut, explicit = make_learner(directory, layout), make_learner(directory, layout)
    shortcut.begin([encoded(SAMPLES)])
    explicit.begin([encoded(SAMPLES)])
    explicit._plans[0].old = explicit._score_before(explicit._plans[0].batches)
    one, two = shortcut.step(0), explicit.step(0)
    assert one.loss == two.loss
    assert one.grad_norm == two.grad_norm
    assert two.tally.of("ratio_mean").mean == 1.0


def test_scores_do_not_depend_on_chunks_or_padding(student: Callable[..., Path], layout: Layout) -> None:
    learner = make_learner(student(), layout)
    examples = [batching.read_example(sample, VOCAB) for sample in SAMPLES]
    together = batching.collate(alone(examples), candidates=False, device=torch.device("cpu"))
    with cpu.quietly():
        hidden = learner._hidden(learner.replicated, together).flatten(0, 1)[together.rows_N]
        arguments = (learner.model, hidden, together.targets_N, together.temperatures_N, VOCAB)
        whole, chunked = logprobs.score(*arguments), logprobs.score(*arguments, chunk_bytes=4 * VOCAB * 3)
    for name in ("logprobs_N", "tempered_N", "entropy_N"):
        torch.testing.assert_close(getattr(whole, name), getattr(chunked, name), rtol=1e-6, atol=1e-6)
    with cpu.quietly():
        (one,) = torch.autograd.grad(whole.tempered_N.sum(), hidden, retain_graph=True)
        (two,) = torch.autograd.grad(chunked.tempered_N.sum(), hidden)
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
    each = [batching.collate(alone([example]), candidates=False, device=torch.device("cpu")) for example in examples]
    apart = [learner._score_before([batch])[0].logprobs_N for batch in each]
    torch.testing.assert_close(torch.cat(apart), whole.logprobs_N.detach(), rtol=1e-5, atol=1e-5)


def test_entropy_equals_the_plain_one(student: Callable[..., Path], layout: Layout) -> None:
    learner = make_learner(student(), layout)
    with torch.no_grad(), cpu.quietly():
        logits = logprobs.local_logits(learner.model, torch.randn(7, 64), VOCAB)
    plain = logits.log_softmax(-1)
    torch.testing.assert_close(logprobs.entropy(logits, logits.logsumexp(-1)), -(plain.exp() * plain).sum(-1))


def test_forced_scores_equal_transformers(student: Callable[..., Path], layout: Layout) -> None:
    directory = student("llama", tied=False)
    ids = [5, 3, 99, 130, 0, 7, 7]
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        plain = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [plain[position, token].item() for position, token in enumerate(ids[1:])]
    assert make_learner(directory, layout).score(ids) == pytest.approx(expected, abs=1e-5)


def with_topk(sample: Sample, reference: PreTrainedModel, k: int) -> Sample:
    """Give a sample the candidates of ``reference``."""
    ids = unpack(sample.prompt_ids).tolist() + unpack(sample.response_ids).tolist()
    start = len(unpack(sample.prompt_ids)) - 1
    with torch.no_grad():
        plain = reference(torch.tensor([ids])).logits[0, start:-1].double().log_softmax(-1)
    best = plain.topk(k, -1)
    tail = torch.log1p(-best.values.exp().sum(-1))
    return msgspec.structs.replace(
        sample,
        teacher_topk_ids=pack(best.indices.numpy(), "int32"),
        teacher_topk_logprobs=pack(best.values.numpy(), "float16"),
        teacher_tail_logprobs=pack(tail.numpy(), "float32"),
    )


def test_topk_loss_pulls_the_student_to_the_teacher(student: Callable[..., Path], layout: Layout) -> None:
    teacher = AutoModelForCausalLM.from_pretrained(student(seed=7), dtype=torch.float32)
    samples = [with_topk(sample, teacher, 8) for sample in SAMPLES]
    learner = make_learner(
        student(), layout, custom_loss_path="topk_reverse_kl.py", learning_rate=3e-3, estimator="grpo"
    )
    losses = []
    for _ in range(12):
        learner.begin([encoded(samples)])
        losses.append(learner.step(0).loss)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("tokens", [None, 200])
def test_samples_scored_with_another_number_of_candidates_make_a_step_together(
    student: Callable[..., Path], layout: Layout, tokens: int | None
) -> None:
    teacher = AutoModelForCausalLM.from_pretrained(student(seed=7), dtype=torch.float32)
    samples = [with_topk(sample, teacher, k) for sample, k in zip(SAMPLES, (8, 3, 8, 3), strict=True)]
    learner = make_learner(
        student(), layout, custom_loss_path="topk_reverse_kl.py", estimator="grpo", micro_batch_tokens=tokens
    )
    totals = []
    for sample in samples:
        found = learner.differentiate(learner.plan(learner.read(encoded([sample]))))
        totals.append(found[1].total)
    learner.begin([encoded(samples)])
    expected = sum(totals) / sum(len(unpack(sample.response_ids)) for sample in samples)
    assert learner.step(0).loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("tail", [float("-inf"), -16.6])
def test_candidates_that_are_the_whole_vocabulary_give_the_whole_kl(
    student: Callable[..., Path], layout: Layout, tail: float
) -> None:
    directory = student()
    teacher, ours = (
        AutoModelForCausalLM.from_pretrained(at, dtype=torch.float64) for at in (student(seed=7), directory)
    )
    samples, expected = [], []
    for sample in SAMPLES:
        known = with_topk(sample, teacher, VOCAB)
        ids = unpack(sample.prompt_ids).tolist() + unpack(sample.response_ids).tolist()
        start = len(unpack(sample.prompt_ids)) - 1
        with torch.no_grad():
            rows = [network(torch.tensor([ids])).logits[0, start:-1].log_softmax(-1) for network in (ours, teacher)]
        best = rows[1].topk(VOCAB, -1)
        fields = {
            "teacher_topk_logprobs": pack(best.values.numpy(), "float32"),
            "teacher_tail_logprobs": pack([tail] * len(best.values), "float32"),
        }
        samples.append(msgspec.structs.replace(known, **fields))
        expected.append((rows[0].exp() * (rows[0] - rows[1])).sum(-1))
    learner = make_learner(directory, layout, custom_loss_path="topk_reverse_kl.py", estimator="grpo")
    learner.begin([encoded(samples)])
    result = learner.step(0)
    assert result.loss == pytest.approx(torch.cat(expected).mean().item(), rel=1e-5)
    assert result.tally.of("topk_student_tail_mass").largest < 1e-6


def test_topk_reports_the_teacher_term_though_every_sample_has_a_score(
    student: Callable[..., Path], layout: Layout
) -> None:
    teacher = AutoModelForCausalLM.from_pretrained(student(seed=7), dtype=torch.float32)
    samples = [msgspec.structs.replace(with_topk(sample, teacher, 8), score=-1) for sample in SAMPLES]
    learner = make_learner(student(), layout, custom_loss_path="topk_reverse_kl.py", estimator="grpo")
    learner.begin([encoded(samples)])
    tally = learner.step(0).tally
    advantage, term = tally.of("advantage"), tally.of("teacher_minus_student")
    # Clipped, but of the same signs; scores would all be -1.
    assert (advantage.count, advantage.positive, advantage.negative) == (term.count, term.positive, term.negative)
    assert advantage.largest == pytest.approx(min(term.largest, learner.config.opd.advantage_clip))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("inputs.logprobs_N * LATER", "gave nan for .* first for token 0 of turn turn-000"),
        ("inputs.logprobs_N[: len(inputs.logprobs_N) - (LATER != 1)]", "expected one for each of"),
        ("inputs.logprobs_N + 1 / (LATER == 1)", "ZeroDivisionError in line 5"),
    ],
)
def test_a_custom_loss_that_goes_wrong_later_stops_before_any_weight_changes(
    student: Callable[..., Path], layout: Layout, body: str, message: str
) -> None:
    directory = student()
    own = loss_file(directory, body.replace("LATER", "(1 if inputs.logprobs_N.max() > -3 else float('nan'))"))
    learner = make_learner(directory, layout, custom_loss_path=own)
    before = [parameter.detach().clone() for parameter in learner.model.parameters()]
    learner.begin([encoded(SAMPLES)])
    with pytest.raises(LossError, match=message):
        learner.step(0)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))


def test_a_built_in_loss_that_is_not_finite_changes_nothing(student: Callable[..., Path], layout: Layout) -> None:
    learner = make_learner(student(), layout, entropy_coef=3e38)
    before = [parameter.detach().clone() for parameter in learner.model.parameters()]
    learner.begin([encoded(SAMPLES)])
    with pytest.raises(TrainingError, match="no step was made"):
        learner.step(0)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))


def loss_file(directory: Path, body: str) -> str:
    """A custom loss whose ``compute_loss`` is ``body``; its name."""
    (directory / "own.py").write_text(
        "import torch\n"
        "from hintloop_trainer.losses.inputs import TokenLosses\n"
        "REQUIRES = {'teacher_logprobs'}\n"
        f"def compute_loss(inputs):\n    return TokenLosses({body})\n"
    )
    return "own.py"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "body",
    [
        # The square root has an infinite slope at zero, and 0 * inf is not a number: the loss stays finite.
        "(0 * inputs.logprobs_N).abs().sqrt() if inputs.logprobs_N.max() < -3 else inputs.logprobs_N",
        # Slopes that float32 can hold, whose norm it cannot.
        "(inputs.logprobs_N - inputs.logprobs_N.detach()) * 3e38",
    ],
)
def test_a_gradient_that_is_not_finite_changes_nothing(
    student: Callable[..., Path], layout: Layout, dtype: str, body: str
) -> None:
    directory = student()
    learner = make_learner(directory, layout, dtype=dtype, custom_loss_path=loss_file(directory, body))
    before = [parameter.detach().clone() for parameter in learner.model.parameters()]
    learner.begin([encoded(SAMPLES)])
    with pytest.raises(TrainingError, match="gradient is not finite"):
        learner.step(0)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))
    # Nothing of it is left for the next step either.
    learner.objective = make_learner(directory, layout, dtype=dtype).objective
    learner.begin([encoded(SAMPLES)])
    learner.step(0)
    assert all(bool(parameter.isfinite().all()) for parameter in learner.model.parameters())


def test_decay_acts_on_matrices_alone(student: Callable[..., Path], layout: Layout) -> None:
    learner = make_learner(student(), layout, learning_rate=1e-3, weight_decay=0.5)
    before = {name: parameter.detach().clone() for name, parameter in learner.model.named_parameters()}
    learner.begin([encoded(SAMPLES)])
    result = learner.step(0)
    assert result.effective["weight_decay"] == 0.5
    plain = make_learner(student(), layout, learning_rate=1e-3)
    plain.begin([encoded(SAMPLES)])
    plain.step(0)
    without = dict(plain.model.named_parameters())
    for name, parameter in learner.model.named_parameters():
        expected = without[name] - 1e-3 * 0.5 * before[name] if parameter.dim() > 1 else without[name]
        torch.testing.assert_close(parameter, expected, rtol=0, atol=1e-6)


def test_scores_of_one_prompt_are_normalised_over_the_whole_step(student: Callable[..., Path], layout: Layout) -> None:
    prompt = pack([4, 8, 15], "int32")
    samples = [make_sample(turn, prompt_ids=prompt, score=1 if turn else -1) for turn in range(4)]
    settings = {"group_normalisation": True, "group_size": 3}
    learner = make_learner(student(), layout, micro_batch_size=1, estimator="grpo", advantage=settings)
    learner.begin([encoded(samples)])
    result = learner.step(0)
    advantage = result.tally.of("advantage")
    # Three above the mean of 1/2 by a third of what the fourth is below it; all in micro-batches of their own.
    assert advantage.mean == pytest.approx(0.0, abs=1e-5)
    assert advantage.largest == pytest.approx(1.5 / 0.75**0.5, rel=1e-5)
    assert (advantage.positive, advantage.negative) == (12, 4)
    assert (result.effective["group_size"], result.tally.of("group_share").mean) == (3, 1.0)
    assert result.tally.of("score").mean == 0.5
