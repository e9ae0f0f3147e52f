"""From what the model says of a micro-batch to its loss: advantages, importance weights, reduction, metrics.

Owns the assembly of :class:`LossInputs`; knows nothing of megatron.
Legend: N = trained tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError

from hintloop_trainer.advantages import Coefficients, combined_parts, compute_advantages_and_returns, teacher_term
from hintloop_trainer.batch import Example, MicroBatch, Signals
from hintloop_trainer.errors import LossError, TrainingError
from hintloop_trainer.losses import checking, trial
from hintloop_trainer.losses.importance import Correction, correction_from, importance_weights
from hintloop_trainer.losses.inputs import LossInputs, TokenLosses
from hintloop_trainer.losses.loading import LoadedLoss
from hintloop_trainer.losses.regularisation import Estimator as KlEstimator
from hintloop_trainer.losses.regularisation import kl_term
from hintloop_trainer.megatron.logprobs import Scores
from hintloop_trainer.tally import Tally
from hintloop_trainer.traces import TokenTrace, read_traces

#: Metrics that a micro-batch has or lacks by what its samples have: none of them is a loss's own.
RESERVED = frozenset(
    {
        "advantage",
        "advantage_opd",
        "advantage_rl",
        "engine_difference",
        "engine_difference_abs",
        "entropy",
        "group_share",
        "response_length",
        "score",
        "teacher_minus_student",
        "tis_applied",
        "tis_bounded_share",
        "tis_weight",
    }
)
#: Names of coefficients to their values.
Effective = dict[str, float | str | None]


@dataclass(frozen=True, slots=True)
class Old:
    """Log-probabilities before the step, float32 ``[N]``, at temperature 1 and at the sampling temperature."""

    logprobs_N: torch.Tensor
    tempered_N: torch.Tensor
    candidates_NK: torch.Tensor | None = None
    """Float32, at temperature 1, of the candidates, where a loss asked for them."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A micro-batch's sum of losses (with gradient), its share of what the whole batch's sum is divided by, metrics."""

    total: torch.Tensor
    count: int
    tally: Tally
    traces: list[TokenTrace]
    effective: Effective
    """The coefficients in force; ``None`` for those that the loss did not use."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The configured learning method."""

    loss: LoadedLoss
    coefficients: Coefficients
    clip_low: float
    clip_high: float
    correction: Correction
    per_sample: bool
    """Divide by samples instead of by tokens."""
    group_size: int = 1
    """Fewest answers to one prompt whose scores are normalised against one another; 1 never does."""
    kl_coef: float = 0.0
    """Of the KL to the reference policy; 0 needs no reference."""
    kl_estimator: KlEstimator = "k3"
    entropy_coef: float = 0.0
    """Of the entropy bonus; other than 0 makes the entropy differentiable."""
    traced: bool = False
    """Keep what the teacher said of every token (`opd.log_teacher_logprobs`)."""

    @property
    def wants_candidates(self) -> bool:
        """Whether the student is scored on candidates."""
        return "teacher_topk" in self.loss.requires

    @property
    def wants_teacher(self) -> bool:
        """Whether the teacher's log-probabilities are learned from."""
        if self.loss.custom:
            return bool(self.loss.requires & {"teacher_logprobs", "teacher_topk"})
        return self.coefficients.estimator != "grpo"

    @property
    def wants_scores(self) -> bool:
        """Whether the judge's scores are learned from."""
        if self.loss.custom:
            return "score" in self.loss.requires
        return self.coefficients.estimator != "on_policy_distillation"

    def effective(self) -> Effective:
        """The coefficients in force, as they are on made-up tokens; those of a step are in its :class:`Evaluation`."""
        return trial.tried(self, top_k=1).effective

    def evaluate(self, batch: MicroBatch, scores: Scores, old: Old | None) -> Evaluation:
        """Losses and metrics of a micro-batch.

        Without ``old``, the policy before the step is the policy now: the values themselves, detached.

        Raises:
            LossError: the loss does not do what is expected of it.
        """
        before = old or old_from(scores)
        signals = batch.signals or self.signals(batch.examples)
        inputs, tally = self._inputs(batch, scores, before, signals)
        turn_ids = [example.turn_id for example in batch.examples]
        result, reads = checking.compute(self.loss, inputs, turn_ids)
        total, count = self._reduce(batch, self._regularised(inputs, result.losses_N, tally))
        self._record(tally, batch, inputs, result)
        traces = read_traces(batch, inputs) if self.traced else []
        return Evaluation(total, count, tally, traces, self._effective(inputs, reads, signals))

    def _regularised(self, inputs: LossInputs, losses_N: torch.Tensor, tally: Tally) -> torch.Tensor:
        """The loss with what is added to it, each part counted."""
        tally.add("loss_policy", losses_N)
        if inputs.reference_tempered_N is not None:
            kl_N = kl_term(self.kl_estimator, inputs.tempered_N, inputs.old_tempered_N, inputs.reference_tempered_N)
            tally.add("kl", kl_N)
            tally.add("loss_kl", self.kl_coef * kl_N)
            losses_N = losses_N + self.kl_coef * kl_N
        if self.entropy_coef:
            tally.add("loss_entropy", -self.entropy_coef * inputs.entropy_N)
            losses_N = losses_N - self.entropy_coef * inputs.entropy_N
        return losses_N

    def _reduce(self, batch: MicroBatch, losses_N: torch.Tensor) -> tuple[torch.Tensor, int]:
        if not self.per_sample:
            return losses_N.sum(), batch.num_trained
        lengths = torch.tensor([example.num_trained for example in batch.examples], device=losses_N.device)
        return (losses_N / lengths[batch.sample_N]).sum(), len(batch.examples)

    def _effective(self, inputs: LossInputs, reads: frozenset[str], signals: Signals) -> Effective:
        """From what the loss was given and has read: a coefficient that it left alone has no effect and says so."""
        estimator = self.coefficients.estimator
        advised = "advantages_N" in reads and inputs.advantages_N is not None
        taught = advised and (estimator != "grpo" or self._stands_in(signals))
        combined = advised and estimator == "combine"
        corrected = "tis_weights_N" in reads and self.correction.kind != "off"
        masked = corrected and self.correction.kind == "mask"
        kl = inputs.reference_tempered_N is not None
        return {
            "loss": self.loss.source,
            "estimator": estimator,
            "advantage_clip": inputs.advantage_clip if taught or "advantage_clip" in reads else None,
            "w_rl": self.coefficients.w_rl if combined else None,
            "w_opd": self.coefficients.w_opd if combined else None,
            "group_size": self.group_size if advised and self.group_size > 1 else None,
            "clip_low": inputs.clip_low if "clip_low" in reads else None,
            "clip_high": inputs.clip_high if "clip_high" in reads else None,
            "is_correction": self.correction.kind if corrected else "off",
            "tis_cap": self.correction.cap if corrected else None,
            "tis_floor": self.correction.floor if masked else None,
            "kl_coef": self.kl_coef if kl else 0.0,
            "kl_estimator": self.kl_estimator if kl else None,
            "entropy_coef": self.entropy_coef,
            "loss_reduction": "sample_mean" if self.per_sample else "token_mean",
        }

    def _inputs(self, batch: MicroBatch, scores: Scores, old: Old, signals: Signals) -> tuple[LossInputs, Tally]:
        device = scores.logprobs_N.device
        teacher_N = _optional_tokens([example.teacher_T for example in batch.examples], batch, device)
        signal_N = _scores([_signal(e) for e in batch.examples], batch, device)
        advantages_N = self._advantages(old, teacher_N, signal_N, signals)
        weights_N, tally = self._importance(batch, old)
        if self.coefficients.estimator == "combine" and not self.wants_candidates:
            rl_N, opd_N = combined_parts(self.coefficients, old.logprobs_N, teacher_N, signal_N)
            tally.add("advantage_rl", rl_N)
            tally.add("advantage_opd", opd_N)
        if teacher_N is not None:
            tally.add("teacher_minus_student", (teacher_N - old.logprobs_N)[~teacher_N.isnan()])
        teacher_topk = self.wants_candidates
        return LossInputs(
            logprobs_N=scores.logprobs_N,
            tempered_N=scores.tempered_N,
            old_logprobs_N=old.logprobs_N,
            old_tempered_N=old.tempered_N,
            advantages_N=advantages_N,
            tis_weights_N=weights_N,
            entropy_N=scores.entropy_N,
            sample_N=batch.sample_N,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            advantage_clip=self.coefficients.advantage_clip,
            scores_N=_scores([e.score for e in batch.examples], batch, device),
            teacher_logprobs_N=teacher_N,
            candidates_NK=scores.candidates_NK,
            old_candidates_NK=old.candidates_NK,
            teacher_candidates_NK=_rows(batch, "topk_logprobs_TK", device) if teacher_topk else None,
            teacher_tail_N=_rows(batch, "tail_T", device) if teacher_topk else None,
            reference_tempered_N=self._reference(batch),
        ), tally

    def _reference(self, batch: MicroBatch) -> torch.Tensor | None:
        if not self.kl_coef:
            return None
        if batch.reference_N is None:
            raise TrainingError("training.kl_coef is not 0, but the reference said nothing of a batch")
        return batch.reference_N

    def _advantages(
        self, old: Old, teacher_N: torch.Tensor | None, scores_N: torch.Tensor, signals: Signals
    ) -> torch.Tensor | None:
        if self._stands_in(signals):
            if teacher_N is None or not signals.taught:
                return None
            return teacher_term(old.logprobs_N, teacher_N, self.coefficients.advantage_clip)
        advantages_N, _ = compute_advantages_and_returns(
            self.coefficients, old_logprobs_N=old.logprobs_N, teacher_logprobs_N=teacher_N, scores_N=scores_N
        )
        return advantages_N

    def _stands_in(self, signals: Signals) -> bool:
        """Whether the teacher's terms are a custom loss's advantages, there being no others.

        A loss over candidates learns from the teacher alone, whatever the estimator's own signal is.
        """
        return self.loss.custom and (self.wants_candidates or not signals.estimable)

    def signals(self, examples: Sequence[Example]) -> Signals:
        """What every one of ``examples`` has."""
        taught = [example.teacher_T is not None for example in examples]
        scored = [_signal(example) is not None for example in examples]
        either = [one or other for one, other in zip(taught, scored, strict=True)]
        has_it = {"grpo": scored, "on_policy_distillation": taught, "combine": either}
        return Signals(estimable=all(has_it[self.coefficients.estimator]), taught=all(taught))

    def _importance(self, batch: MicroBatch, old: Old) -> tuple[torch.Tensor, Tally]:
        """Importance weights, and the distance between engine and trainer in the engine's space."""
        device = old.logprobs_N.device
        behaviour_N = torch.cat([example.behaviour_T for example in batch.examples]).to(device)
        temperatures = [example.behaviour_temperature for example in batch.examples]
        known_N = _flags([temperature is not None for temperature in temperatures], batch, device)
        plain_N = _flags([temperature == 1.0 for temperature in temperatures], batch, device)
        old_behaviour_N = torch.where(plain_N, old.logprobs_N, old.tempered_N)
        corrected_N = _flags([example.corrected for example in batch.examples], batch, device)
        weights_N, bounded_N = importance_weights(old_behaviour_N, behaviour_N, corrected_N, self.correction)
        tally = Tally()
        tally.add("engine_difference", (old_behaviour_N - behaviour_N)[known_N])
        tally.add("engine_difference_abs", (old_behaviour_N - behaviour_N)[known_N].abs())
        tally.add("tis_weight", weights_N[corrected_N])
        tally.add("tis_applied", corrected_N.float())
        tally.add("tis_bounded_share", bounded_N[corrected_N].float())
        return weights_N, tally

    def _record(self, tally: Tally, batch: MicroBatch, inputs: LossInputs, result: TokenLosses) -> None:
        if inputs.advantages_N is not None:
            tally.add("advantage", inputs.advantages_N)
        tally.add("entropy", inputs.entropy_N)
        tally.add("response_length", torch.tensor([float(example.num_trained) for example in batch.examples]))
        scored = [float(example.score) for example in batch.examples if example.score is not None]
        tally.add("score", torch.tensor(scored))
        if self.group_size > 1:
            tally.add("group_share", torch.tensor([float(e.relative is not None) for e in batch.examples]))
        for name, values in result.metrics.items():
            if name in tally.moments or name in RESERVED:
                raise LossError(f"loss {self.loss.source} reports {name!r}, which the trainer does too; rename it")
            tally.add(name, values)


def old_from(scores: Scores) -> Old:
    """What ``scores`` will have been before the step."""
    candidates_NK = scores.candidates_NK
    return Old(
        scores.logprobs_N.detach(),
        scores.tempered_N.detach(),
        None if candidates_NK is None else candidates_NK.detach(),
    )


def _signal(example: Example) -> float | None:
    return example.score if example.relative is None else example.relative


def _scores(values: list[float | None] | list[int | None], batch: MicroBatch, device: torch.device) -> torch.Tensor:
    """Each token's sample's value, NaN for none."""
    filled = [float("nan") if value is None else float(value) for value in values]
    return torch.tensor(filled, device=device)[batch.sample_N]


def _flags(values: list[bool], batch: MicroBatch, device: torch.device) -> torch.Tensor:
    return torch.tensor(values, device=device)[batch.sample_N]


def _optional_tokens(parts: list[torch.Tensor | None], batch: MicroBatch, device: torch.device) -> torch.Tensor | None:
    """Token values of all samples end to end, NaN for a sample without any; ``None`` when no sample has them."""
    if all(part is None for part in parts):
        return None
    filled = [
        torch.full((example.num_trained,), float("nan")) if part is None else part
        for part, example in zip(parts, batch.examples, strict=True)
    ]
    return torch.cat(filled).to(device)


def _rows(batch: MicroBatch, name: str, device: torch.device) -> torch.Tensor:
    parts: list[torch.Tensor] = [getattr(example, name) for example in batch.examples]
    return torch.cat(parts).to(device)


def objective_from(config: Config, loss: LoadedLoss) -> Objective:
    """The configured method, tried on made-up tokens.

    Raises:
        ConfigError: a reference KL in a method that distils already.
        LossError: the loss does not do what is expected of it.
    """
    training, advantage = config.training, config.advantage
    distils = loss.custom and bool(loss.requires) and "score" not in loss.requires
    if training.kl_coef and distils and not training.force_kl:
        raise ConfigError(
            f"training.kl_coef {training.kl_coef} is refused with {loss.source}: a loss that learns from the teacher "
            "alone already is a KL, and a second one pulls against the hint; set 0, or training.force_kl = true"
        )
    objective = Objective(
        loss=loss,
        coefficients=Coefficients(
            estimator=advantage.estimator,
            advantage_clip=config.opd.advantage_clip,
            w_rl=advantage.w_rl,
            w_opd=advantage.w_opd,
        ),
        clip_low=training.ppo_clip_epsilon,
        clip_high=training.ppo_clip_epsilon_high or training.ppo_clip_epsilon,
        correction=correction_from(training.is_correction, training.tis_cap, training.tis_floor),
        per_sample=training.loss_reduction == "sample_mean",
        group_size=advantage.group_size if advantage.group_normalisation else 1,
        kl_coef=training.kl_coef,
        kl_estimator=training.kl_estimator,
        entropy_coef=training.entropy_coef,
        traced=config.opd.log_teacher_logprobs or config.console.history,
    )
    trial.tried(objective, config.topk_opd.top_k)
    return objective
