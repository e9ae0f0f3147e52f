"""The whole objective, through logits, against sums in plain Python: losses, their slopes, and what is reported.

Legend: N = trained tokens, V = vocabulary, K = candidates.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError
from hintloop_contract.messages import Sampling
from hintloop_trainer import batch as batching
from hintloop_trainer.batch import Example, MicroBatch
from hintloop_trainer.chains import alone
from hintloop_trainer.errors import LossError
from hintloop_trainer.losses.loading import load_loss
from hintloop_trainer.megatron.logprobs import Scores
from hintloop_trainer.objective import RESERVED, Evaluation, Objective, Old, objective_from

from .conftest import make_sample

V = 7
NAN = float("nan")
LENGTHS = (4, 2, 3)
TEMPERATURES = (0.7, 1.0, 1.3)
#: Of three samples: what the judge and the teacher said; NaN for nothing.
BOTH: dict[str, Any] = {"score": (1, -1, 1), "taught": (True, True, True)}
EITHER: dict[str, Any] = {"score": (1, None, 0), "taught": (False, True, True)}


def objective(tmp_path: Path | None = None, **sections: dict[str, Any]) -> Objective:
    config = Config.model_validate(sections)
    return objective_from(config, load_loss(config.custom_loss, [tmp_path] if tmp_path else []))


def made_batch(score: tuple[int | None, ...], taught: tuple[bool, ...]) -> MicroBatch:
    examples = []
    for number, (length, temperature) in enumerate(zip(LENGTHS, TEMPERATURES, strict=True)):
        sample = make_sample(
            number,
            num_response=length,
            score=score[number],
            sampling=Sampling(temperature=temperature, constrained=number == 2),
            **({} if taught[number] else {"teacher_logprobs": None}),
        )
        examples.append(shrunk(batching.read_example(sample, 131)))
    batch = batching.collate(alone(examples), candidates=False, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(9)
    return dataclasses.replace(batch, reference_N=-3 * torch.rand(sum(LENGTHS), generator=generator).double())


def shrunk(example: Example) -> Example:
    return dataclasses.replace(example, response_T=example.response_T % V, prompt_P=example.prompt_P % V)


def logits(seed: int) -> torch.Tensor:
    return torch.randn(sum(LENGTHS), V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scores(batch: MicroBatch, logits_NV: torch.Tensor) -> Scores:
    plain = logits_NV.log_softmax(-1)
    tempered = (logits_NV / batch.temperatures_N[:, None]).log_softmax(-1)
    rows, ids = torch.arange(len(logits_NV)), batch.targets_N
    return Scores(plain[rows, ids], tempered[rows, ids], -(plain.exp() * plain).sum(-1), None)


def old(batch: MicroBatch, logits_NV: torch.Tensor) -> Old:
    found = scores(batch, logits_NV)
    return Old(found.logprobs_N, found.tempered_N)


def evaluated(method: Objective, batch: MicroBatch, now_NV: torch.Tensor, before_NV: torch.Tensor) -> Evaluation:
    return method.evaluate(batch, scores(batch, now_NV), old(batch, before_NV))


def log_softmax(row: list[float], temperature: float) -> list[float]:
    total = math.log(sum(math.exp(value / temperature) for value in row))
    return [value / temperature - total for value in row]


def naive_total(config: Config, batch: MicroBatch, now: list[list[float]], before: list[list[float]]) -> float:
    """Sample by sample, token by token, case by case."""
    training, total, at = config.training, 0.0, 0
    for example in batch.examples:
        share = example.num_trained if training.loss_reduction == "sample_mean" else 1
        for t in range(example.num_trained):
            total += naive_token(config, example, t, float(batch.reference_N[at]), now[at], before[at]) / share  # type: ignore[index]
            at += 1
    return total


def naive_token(
    config: Config, example: Example, t: int, reference: float, now: list[float], before: list[float]
) -> float:
    training, token, temperature = config.training, int(example.response_T[t]), example.policy_temperature
    advantage = naive_advantage(config, example, t, log_softmax(before, 1.0)[token])
    new, old_ = log_softmax(now, temperature)[token], log_softmax(before, temperature)[token]
    loss = -naive_weight(config, example, t, old_) * naive_gain(config, advantage, new - old_)
    if training.kl_coef:
        d = reference - new
        k = {"k1": math.exp(new - old_) * (old_ - reference), "k2": d * d / 2, "k3": math.exp(d) - d - 1}
        loss += training.kl_coef * k[training.kl_estimator]
    plain = log_softmax(now, 1.0)
    return loss + training.entropy_coef * sum(math.exp(value) * value for value in plain)


def naive_advantage(config: Config, example: Example, t: int, student_old: float) -> float:
    bound = config.opd.advantage_clip
    taught = 0.0
    if example.teacher_T is not None:
        taught = min(bound, max(-bound, float(example.teacher_T[t]) - student_old))
    scored = 0.0 if example.score is None else float(example.score)
    by_estimator = {
        "grpo": scored,
        "on_policy_distillation": taught,
        "combine": config.advantage.w_rl * scored + config.advantage.w_opd * taught,
    }
    return by_estimator[config.advantage.estimator]


def naive_gain(config: Config, advantage: float, log_ratio: float) -> float:
    low, high = config.training.ppo_clip_epsilon, config.training.ppo_clip_epsilon_high
    high = low if high is None else high
    ratio = math.exp(log_ratio)
    if advantage >= 0:
        return min(ratio, 1 + high) * advantage
    return max(ratio, 1 - low) * advantage


def naive_weight(config: Config, example: Example, t: int, old_: float) -> float:
    training = config.training
    if not example.corrected or training.is_correction == "off" or training.tis_cap is None:
        return 1.0
    weight = math.exp(old_ - float(example.behaviour_T[t]))
    if training.is_correction == "truncate":
        return min(weight, training.tis_cap)
    return weight if training.tis_floor <= weight <= training.tis_cap else 0.0


METHODS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"advantage": {"estimator": "on_policy_distillation"}, "opd": {"advantage_clip": 0.9}}, BOTH),
    ({"advantage": {"estimator": "grpo"}, "training": {"ppo_clip_epsilon_high": 0.28}}, BOTH),
    ({"advantage": {"estimator": "combine", "w_rl": 0.5, "w_opd": 2.0}}, BOTH),
    ({"advantage": {"estimator": "combine", "w_rl": 0.5, "w_opd": 2.0}}, EITHER),
    ({"advantage": {"estimator": "grpo"}, "training": {"loss_reduction": "sample_mean", "tis_cap": None}}, BOTH),
    (
        {"advantage": {"estimator": "grpo"}, "training": {"is_correction": "mask", "tis_floor": 0.2, "tis_cap": 1.5}},
        BOTH,
    ),
    ({"advantage": {"estimator": "grpo"}, "training": {"is_correction": "off", "entropy_coef": 0.3}}, BOTH),
    ({"advantage": {"estimator": "grpo"}, "training": {"kl_coef": 0.4, "kl_estimator": "k1"}}, BOTH),
    ({"advantage": {"estimator": "grpo"}, "training": {"kl_coef": 0.4, "kl_estimator": "k2"}}, BOTH),
    ({"training": {"kl_coef": 0.4, "force_kl": True, "entropy_coef": 0.2, "loss_reduction": "sample_mean"}}, BOTH),
]


@pytest.mark.parametrize(("sections", "signal"), METHODS)
def test_loss_and_slope_equal_plain_sums_and_finite_differences(
    sections: dict[str, Any], signal: dict[str, Any]
) -> None:
    config, method, batch = Config.model_validate(sections), objective(**sections), made_batch(**signal)
    before, now = logits(0), (logits(0) + 0.3 * logits(1)).requires_grad_()
    found = evaluated(method, batch, now, before)
    point, origin = now.detach().tolist(), before.tolist()
    assert found.total.item() == pytest.approx(naive_total(config, batch, point, origin), rel=1e-7)
    assert found.count == (len(LENGTHS) if method.per_sample else sum(LENGTHS))

    (slope,) = torch.autograd.grad(found.total, now)
    step, expected = 1e-5, np.zeros((sum(LENGTHS), V))
    for n, v in np.ndindex(*expected.shape):
        sides = []
        for sign in (1, -1):
            moved = [row[:] for row in point]
            moved[n][v] += sign * step
            sides.append(naive_total(config, batch, moved, origin))
        expected[n, v] = (sides[0] - sides[1]) / (2 * step)
    np.testing.assert_allclose(slope.numpy(), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_without_values_before_the_step_the_ratio_is_one() -> None:
    method, batch = objective(), made_batch(**BOTH)
    now = logits(0)
    alone = method.evaluate(batch, scores(batch, now), None)
    assert alone.total.item() == evaluated(method, batch, now, now).total.item()
    assert alone.tally.of("ratio_mean").mean == 1.0


def test_a_teacher_that_agrees_gives_exactly_no_gradient() -> None:
    method, batch = objective(), made_batch(**BOTH)
    now = logits(0).requires_grad_()
    said = scores(batch, now).logprobs_N.detach().split(list(LENGTHS))
    agreeing = [dataclasses.replace(e, teacher_T=part) for e, part in zip(batch.examples, said, strict=True)]
    found = method.evaluate(dataclasses.replace(batch, examples=tuple(agreeing)), scores(batch, now), None)
    (slope,) = torch.autograd.grad(found.total, now)
    assert found.total.item() == 0.0
    assert not bool(slope.any())


def test_the_reference_that_agrees_holds_nothing() -> None:
    method = objective(training={"kl_coef": 1.0, "force_kl": True})
    now = logits(0).requires_grad_()
    batch = made_batch(**BOTH)
    batch = dataclasses.replace(batch, reference_N=scores(batch, now).tempered_N.detach())
    found = method.evaluate(batch, scores(batch, now), None)
    assert (found.tally.of("kl").largest, found.tally.of("loss_kl").total) == (0.0, 0.0)


@pytest.mark.parametrize("kl_coef", [0.05, 2.0])
def test_coefficients_are_those_that_move_the_loss(kl_coef: float) -> None:
    """What is reported as in force is measured on the loss itself."""
    method, batch = objective(training={"kl_coef": kl_coef, "force_kl": True, "entropy_coef": 0.25}), made_batch(**BOTH)
    now = logits(0)
    found = evaluated(method, batch, now, now)
    parts = {name: found.tally.of(name).total for name in ("loss_policy", "loss_kl", "loss_entropy", "kl", "entropy")}
    whole = parts["loss_policy"] + parts["loss_kl"] + parts["loss_entropy"]
    assert found.total.item() == pytest.approx(whole)
    assert found.effective["kl_coef"] == pytest.approx(parts["loss_kl"] / parts["kl"])
    assert found.effective["entropy_coef"] == pytest.approx(-parts["loss_entropy"] / parts["entropy"])
    assert found.effective["kl_estimator"] == "k3"


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, {"clip_low": 0.2, "clip_high": 0.2, "advantage_clip": 5.0, "w_rl": None, "tis_cap": 2.0, "kl_coef": 0.0}),
        (
            {"advantage": {"estimator": "grpo"}, "training": {"ppo_clip_epsilon_high": 0.28, "tis_cap": None}},
            {"clip_high": 0.28, "advantage_clip": None, "tis_cap": None, "is_correction": "off"},
        ),
        (
            {"advantage": {"estimator": "combine", "w_opd": 3.0}, "training": {"is_correction": "mask"}},
            {"w_rl": 1.0, "w_opd": 3.0, "is_correction": "mask", "tis_floor": 0.0},
        ),
        # A distance between distributions knows neither clip nor weights nor advantages.
        (
            {"advantage": {"estimator": "grpo", "custom_loss_function_path": "topk_reverse_kl.py"}},
            {"clip_low": None, "clip_high": None, "advantage_clip": None, "is_correction": "off", "tis_cap": None},
        ),
        (
            {"advantage": {"estimator": "grpo", "custom_loss_function_path": "topk_ppo_clip.py"}},
            {"clip_low": 0.2, "advantage_clip": 5.0, "is_correction": "off"},
        ),
    ],
)
def test_coefficients_that_the_loss_leaves_alone_are_not_reported_as_in_force(
    sections: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = objective(**sections).effective()
    assert {name: found[name] for name in expected} == expected


def test_a_custom_loss_is_given_both_parts_of_combine(tmp_path: Path) -> None:
    write(tmp_path, "inputs.logprobs_N * inputs.advantages_N", requires={"score"})
    method = objective(tmp_path, advantage={"estimator": "combine"}, training={"custom_loss_path": "own.py"})
    batch = made_batch(**EITHER)
    found = method.evaluate(batch, scores(batch, logits(0).requires_grad_()), None)
    assert found.tally.of("advantage").count == sum(LENGTHS)


def write(folder: Path, body: str, *, requires: set[str] | None = None, before: str = "") -> None:
    (folder / "own.py").write_text(
        "import torch\nfrom hintloop_trainer.losses.inputs import TokenLosses\n"
        f"REQUIRES = {requires or {'teacher_logprobs'}!r}\n"
        f"def compute_loss(inputs):\n    {before or 'pass'}\n    return TokenLosses({body})\n"
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("inputs.logprobs_N.mean()", r"shape \(\), expected one for each of 8 tokens"),
        ("inputs.logprobs_N[:-1]", r"shape \(7,\)"),
        ("inputs.logprobs_N.half()", r"torch.float16 losses.*use .float\(\)"),
        ("inputs.sample_N", "torch.int64 losses"),
        ("inputs.logprobs_N.to('meta')", "on meta, expected them on cpu"),
        ("inputs.logprobs_N.detach()", "without a gradient; compute them from logprobs_N"),
        ("inputs.teacher_logprobs_N - inputs.old_logprobs_N", "without a gradient"),
        ("torch.ones(8, requires_grad=True)", "gradient does not reach the student"),
        ("inputs.logprobs_N * float('nan')", "gave nan for 8 of 8 tokens, first for token 0 of turn made-up-0"),
        ("inputs.logprobs_N * inputs.scores_N", "REQUIRES does not ask"),
        ("inputs.logprobs_N - inputs.teacher_candidates_NK", "may be None"),
        ("(0 * inputs.logprobs_N).abs().sqrt()", "its gradient is not finite"),
        ("inputs.no_such_thing", "raised AttributeError in line 6"),
        ("1 / 0", "raised ZeroDivisionError in line 6: division by zero"),
        ("inputs.logprobs_N, {'x': 3}", "metric 'x' as int, expected a detached tensor"),
        ("inputs.logprobs_N, {'entropy': inputs.logprobs_N}", "which the trainer does too; rename it"),
        ("inputs.logprobs_N, {'score': inputs.logprobs_N}", "reports 'score', which the trainer does too"),
        ("inputs.logprobs_N, {'x': inputs.logprobs_N * 1j}", "metric 'x' as torch.complex64"),
        ("inputs.logprobs_N, None", "gave metrics as NoneType, expected a dict"),
        (
            "inputs.logprobs_N * inputs.advantages_N.zero_()",
            r"advantages_N in place; work on a copy \(advantages_N",
        ),
        ("inputs.tempered_N.mul_(2.0)", "changes its input tempered_N in place"),
        ("[1.0]", "gave TokenLosses, expected TokenLosses"),
    ],
)
def test_what_a_custom_loss_does_wrong_is_refused_at_start(tmp_path: Path, body: str, message: str) -> None:
    write(tmp_path, body)
    with pytest.raises(LossError, match=message) as caught:
        objective(tmp_path, training={"custom_loss_path": "own.py"})
    assert "own.py" in str(caught.value)


def test_no_metric_of_a_loss_is_mistaken_for_one_that_samples_decide_about() -> None:
    """What the trainer reports of some micro-batches alone is reserved in all of them."""
    found = set()
    for fields in (BOTH, EITHER, {"score": (1, -1, 1), "taught": (False, False, False)}):
        batch = made_batch(**fields)
        combined = objective(advantage={"estimator": "combine"}, training={"kl_coef": 0.1, "entropy_coef": 0.1})
        found |= set(evaluated(combined, batch, logits(0), logits(1)).tally.moments)
    configured = {"loss_policy", "loss_kl", "loss_entropy", "kl"}
    of_the_loss = {"ratio_mean", "clip_fraction", "clip_fraction_low", "clip_fraction_high"}
    assert found - configured - of_the_loss <= RESERVED


def test_a_bare_tensor_is_no_result(tmp_path: Path) -> None:
    write(tmp_path, "inputs.logprobs_N", before="return inputs.logprobs_N")
    with pytest.raises(LossError, match=r"gave Tensor, expected TokenLosses\(losses_N=a tensor\)"):
        objective(tmp_path, training={"custom_loss_path": "own.py"})


def test_a_custom_loss_may_copy_its_inputs_and_compute_in_float64(tmp_path: Path) -> None:
    write(
        tmp_path,
        "policy.compute_loss(inputs).losses_N.double()",
        before="from hintloop_trainer.losses import policy; import dataclasses; "
        "inputs = dataclasses.replace(inputs, advantages_N=inputs.teacher_logprobs_N)",
    )
    assert objective(tmp_path, training={"custom_loss_path": "own.py"}).loss.custom


def test_values_that_are_no_numbers_later_name_the_turn(tmp_path: Path) -> None:
    write(tmp_path, "inputs.logprobs_N / (inputs.teacher_logprobs_N.sum() - TOTAL)", before="global TOTAL")
    source = (tmp_path / "own.py").read_text()
    batch = made_batch(**BOTH)
    total = float(torch.cat([e.teacher_T for e in batch.examples if e.teacher_T is not None]).sum())
    (tmp_path / "own.py").write_text(source.replace("REQUIRES", f"TOTAL = {total!r}\nREQUIRES", 1))
    method = objective(tmp_path, training={"custom_loss_path": "own.py"})
    with pytest.raises(LossError, match=r"gave -inf for 9 of 9 tokens, first for token 0 of turn turn-0000"):
        method.evaluate(batch, scores(batch, logits(0).requires_grad_()), None)


@pytest.mark.parametrize(
    ("path", "forced", "refused"),
    [("topk_reverse_kl.py", False, True), ("topk_reverse_kl.py", True, False), (None, False, False)],
)
def test_a_reference_kl_beside_a_loss_that_distils_is_refused_unless_forced(
    path: str | None, forced: bool, refused: bool
) -> None:
    def make() -> Objective:
        advantage = {"estimator": "grpo", "custom_loss_function_path": path}
        return objective(advantage=advantage, training={"kl_coef": 0.1, "force_kl": forced})

    if refused:
        with pytest.raises(ConfigError, match="already is a KL"):
            make()
    else:
        assert make().effective()["kl_coef"] == 0.1
