"""Whether a sample may still be trained, decided when the batch is formed. Pure.

Owns the reasons of the `train` stage; carrying them out is :mod:`samples`' business.
"""

from __future__ import annotations

from dataclasses import dataclass

from hintloop_contract.config.schema import Config
from hintloop_contract.messages import DropReason, Sample

from hintloop_trainer.lineage import Lineage


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a sample is dropped."""

    reason: DropReason
    detail: str


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules in force. ``requires`` are a custom loss's; ``None`` under the built-in estimators."""

    config: Config
    requires: frozenset[str] | None

    def refusal(self, sample: Sample, lineage: Lineage) -> Refusal | None:
        """The first rule that ``sample`` breaks, or ``None``."""
        return self._age(sample, lineage) or self._shape(sample) or self._signal(sample)

    def _age(self, sample: Sample, lineage: Lineage) -> Refusal | None:
        training = self.config.training
        for version in (sample.version_oldest, sample.version_newest):
            if lineage.behind(version) is None:
                detail = f"version {version} is no ancestor of version {lineage.current}"
                return Refusal(DropReason.ORPHAN_VERSION, detail)
        if sample.version_oldest != sample.version_newest and not training.allow_mixed_version:
            detail = f"made by versions {sample.version_oldest} to {sample.version_newest}"
            return Refusal(DropReason.MIXED_VERSION, detail)
        behind = lineage.behind(sample.version_oldest) or 0
        if behind > training.max_staleness_steps:
            detail = f"{behind} steps old, training.max_staleness_steps is {training.max_staleness_steps}"
            return Refusal(DropReason.STALE, detail)
        return None

    def _shape(self, sample: Sample) -> Refusal | None:
        length, limit = len(sample.prompt_ids) + len(sample.response_ids), self.config.model.max_seq_len
        if length > limit:
            return Refusal(DropReason.TOO_LONG, f"{length} tokens, model.max_seq_len is {limit}")
        if sample.sampling.constrained and not self.config.training.allow_constrained:
            return Refusal(DropReason.CONSTRAINED, "training.allow_constrained is false")
        return None

    def _signal(self, sample: Sample) -> Refusal | None:
        if self.requires is not None:
            return self._custom_signal(sample, self.requires)
        estimator = self.config.advantage.estimator
        if estimator == "grpo":
            return _score_signal(sample)
        if estimator == "on_policy_distillation":
            return _teacher_signal(sample)
        if sample.teacher_logprobs is None and sample.hinted_prompt_ids is None:
            # The score alone has to carry it.
            return _score_signal(sample)
        return None

    def _custom_signal(self, sample: Sample, requires: frozenset[str]) -> Refusal | None:
        if "score" in requires and sample.score is None:
            return Refusal(DropReason.NO_SIGNAL, "no score")
        if sample.hinted_prompt_ids is not None:
            # The teacher's part is filled in before the step.
            return None
        if "teacher_topk" in requires and sample.teacher_topk_ids is None:
            return _teacher_signal(sample) or Refusal(DropReason.TEACHER_MISSING, "no teacher candidates")
        return _teacher_signal(sample) if "teacher_logprobs" in requires else None


def _score_signal(sample: Sample) -> Refusal | None:
    if sample.score is None:
        return Refusal(DropReason.NO_SIGNAL, "no score")
    if sample.score == 0:
        return Refusal(DropReason.NEUTRAL, "score 0")
    return None


def _teacher_signal(sample: Sample) -> Refusal | None:
    if sample.teacher_logprobs is not None or sample.hinted_prompt_ids is not None:
        return None
    if sample.hint is None:
        return Refusal(DropReason.NO_HINT, "no hint")
    return Refusal(DropReason.TEACHER_MISSING, "no teacher log-probabilities")
