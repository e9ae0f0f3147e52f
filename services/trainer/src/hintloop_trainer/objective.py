"""From what the model says of a micro-batch to its loss: advantages, importance weights, reduction, metrics.

Owns the assembly of :class:`LossInputs`; knows nothing of megatron.
Legend: N = trained tokens of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError

from hintloop_trainer.advantages import Coefficients, compute_advantages_and_returns, teacher_term
from hintloop_trainer.batch import MicroBatch
from hintloop_trainer.errors import LossError
from hintloop_trainer.losses.inputs import LossInputs, TokenLosses
from hintloop_trainer.losses.loading import LoadedLoss
from hintloop_trainer.losses.policy import tis_weights
from hintloop_trainer.megatron.logprobs import Scores
from hintloop_trainer.tally import Tally
from hintloop_trainer.traces import TokenTrace, read_traces


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


@dataclass(frozen=True, slots=True)
class Objective:
    """The configured learning method."""

    loss: LoadedLoss
    coefficients: Coefficients
    clip_low: float
    clip_high: float
    tis_cap: float | None
    per_sample: bool
    """Divide by samples instead of by tokens."""
    kl_coef: float = 0.0
    """Of the KL to the reference policy; 0 needs no reference."""
    entropy_coef: float = 0.0
    """Of the entropy bonus; other than 0 makes the entropy differentiable."""
    traced: bool = False
    """Keep what the teacher said of every token (`opd.log_teacher_logprobs`)."""

    @property
    def wants_candidates(self) -> bool:
        """Whether the student is scored on the teacher's candidates."""
        return "teacher_topk" in self.loss.requires

    @property
    def wants_teacher(self) -> bool:
        """Whether the teacher's log-probabilities are learned from."""
        if self.loss.custom:
            return bool(self.loss.requires & {"teacher_logprobs", "teacher_topk"})
        return self.coefficients.estimator != "grpo"

    def effective(self) -> dict[str, float | str | None]:
        """The coefficients in force, read from what the loss is given."""
        return {
            "loss": self.loss.source,
            "estimator": self.coefficients.estimator,
            "advantage_clip": self.coefficients.advantage_clip,
            "w_rl": self.coefficients.w_rl,
            "w_opd": self.coefficients.w_opd,
            "clip_low": self.clip_low,
            "clip_high": self.clip_high,
            "tis_cap": self.tis_cap,
            "loss_reduction": "sample_mean" if self.per_sample else "token_mean",
        }

    def evaluate(self, batch: MicroBatch, scores: Scores, old: Old | None) -> Evaluation:
        """Losses and metrics of a micro-batch.

        Without ``old``, the policy before the step is the policy now: the values themselves, detached.
        """
        before = old or old_from(scores)
        inputs, tally = self._inputs(batch, scores, before)
        result = self.loss.compute(inputs)
        if result.losses_N.shape != inputs.logprobs_N.shape:
            raise LossError(
                f"loss {self.loss.source} gave losses of shape {tuple(result.losses_N.shape)}, expected one for each "
                f"of {batch.num_trained} tokens"
            )
        total, count = self._reduce(batch, result.losses_N)
        self._record(tally, batch, inputs, result)
        return Evaluation(total, count, tally, read_traces(batch, inputs) if self.traced else [])

    def _reduce(self, batch: MicroBatch, losses_N: torch.Tensor) -> tuple[torch.Tensor, int]:
        if not self.per_sample:
            return losses_N.sum(), batch.num_trained
        lengths = torch.tensor([example.num_trained for example in batch.examples], device=losses_N.device)
        return (losses_N / lengths[batch.sample_N]).sum(), len(batch.examples)

    def _inputs(self, batch: MicroBatch, scores: Scores, old: Old) -> tuple[LossInputs, Tally]:
        device = scores.logprobs_N.device
        teacher_N = _optional_tokens([example.teacher_T for example in batch.examples], batch, device)
        score_values = [float("nan") if e.score is None else float(e.score) for e in batch.examples]
        scores_N = torch.tensor(score_values, device=device)[batch.sample_N]
        advantages_N = self._advantages(old, teacher_N, scores_N)
        weights_N, tally = self._importance(batch, old)
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
            scores_N=scores_N,
            teacher_logprobs_N=teacher_N,
            candidates_NK=scores.candidates_NK,
            teacher_candidates_NK=_rows(batch, "topk_logprobs_TK", device) if teacher_topk else None,
            teacher_tail_N=_rows(batch, "tail_T", device) if teacher_topk else None,
        ), tally

    def _advantages(self, old: Old, teacher_N: torch.Tensor | None, scores_N: torch.Tensor) -> torch.Tensor | None:
        # A loss over the teacher's candidates learns from the teacher alone, whatever the estimator's own signal is.
        if self.loss.custom and (self.wants_candidates or not self._estimable(teacher_N, scores_N)):
            if teacher_N is None or bool(teacher_N.isnan().any()):
                return None
            return teacher_term(old.logprobs_N, teacher_N, self.coefficients.advantage_clip)
        advantages_N, _ = compute_advantages_and_returns(
            self.coefficients, old_logprobs_N=old.logprobs_N, teacher_logprobs_N=teacher_N, scores_N=scores_N
        )
        return advantages_N

    def _estimable(self, teacher_N: torch.Tensor | None, scores_N: torch.Tensor) -> bool:
        scored = not bool(scores_N.isnan().any())
        taught = teacher_N is not None and not bool(teacher_N.isnan().any())
        return {"grpo": scored, "on_policy_distillation": taught, "combine": scored and taught}[
            self.coefficients.estimator
        ]

    def _importance(self, batch: MicroBatch, old: Old) -> tuple[torch.Tensor, Tally]:
        """Truncated importance weights, and the distance between engine and trainer in the engine's space."""
        device = old.logprobs_N.device
        behaviour_N = torch.cat([example.behaviour_T for example in batch.examples]).to(device)
        temperatures = [example.behaviour_temperature for example in batch.examples]
        known_N = _flags([temperature is not None for temperature in temperatures], batch, device)
        plain_N = _flags([temperature == 1.0 for temperature in temperatures], batch, device)
        old_behaviour_N = torch.where(plain_N, old.logprobs_N, old.tempered_N)
        corrected_N = _flags([example.corrected for example in batch.examples], batch, device)
        weights_N = tis_weights(old_behaviour_N, behaviour_N, corrected_N, self.tis_cap)
        tally = Tally()
        tally.add("engine_difference", (old_behaviour_N - behaviour_N)[known_N])
        tally.add("engine_difference_abs", (old_behaviour_N - behaviour_N)[known_N].abs())
        tally.add("tis_weight", weights_N[corrected_N])
        tally.add("tis_applied", corrected_N.float())
        return weights_N, tally

    def _record(self, tally: Tally, batch: MicroBatch, inputs: LossInputs, result: TokenLosses) -> None:
        if inputs.advantages_N is not None:
            tally.add("advantage", inputs.advantages_N)
        tally.add("entropy", inputs.entropy_N)
        tally.add("response_length", torch.tensor([float(example.num_trained) for example in batch.examples]))
        scored = [float(example.score) for example in batch.examples if example.score is not None]
        tally.add("score", torch.tensor(scored))
        for name, values in result.metrics.items():
            tally.add(name, values)


def old_from(scores: Scores) -> Old:
    """What ``scores`` will have been before the step."""
    candidates_NK = scores.candidates_NK
    return Old(
        scores.logprobs_N.detach(),
        scores.tempered_N.detach(),
        None if candidates_NK is None else candidates_NK.detach(),
    )


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
    """The configured method.

    Raises:
        ConfigError: it asks for what is not supported yet.
    """
    training = config.training
    if training.kl_coef:
        raise ConfigError(
            f"training.kl_coef {training.kl_coef} is not yet supported: the reference KL is not computed; set 0.0"
        )
    return Objective(
        loss=loss,
        coefficients=Coefficients(
            estimator=config.advantage.estimator,
            advantage_clip=config.opd.advantage_clip,
            w_rl=config.advantage.w_rl,
            w_opd=config.advantage.w_opd,
        ),
        clip_low=training.ppo_clip_epsilon,
        clip_high=training.ppo_clip_epsilon_high or training.ppo_clip_epsilon,
        tis_cap=training.tis_cap,
        per_sample=training.loss_reduction == "sample_mean",
        traced=config.opd.log_teacher_logprobs,
    )
