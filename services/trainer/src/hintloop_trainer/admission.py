"""Whether a sample may still be trained, decided when the batch is formed. Pure.

Owns the reasons of the `train` stage; carrying them out is :mod:`samples`' business.
"""

from __future__ import annotations

from dataclasses import dataclass

from hintloop_contract.config.schema import Config
from hintloop_contract.messages import DropReason, Sample

from hintloop_trainer.filling import is_open
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
            return self._teacher_signal(sample)
        if sample.teacher_logprobs is None and not self._is_filled_in(sample):
            # The score alone has to carry it.
            return _score_signal(sample)
        return None

    def _custom_signal(self, sample: Sample, requires: frozenset[str]) -> Refusal | None:
        if "score" in requires and sample.score is None:
            return Refusal(DropReason.NO_SIGNAL, "no score")
        if self._is_filled_in(sample):
            return None
        if "teacher_topk" in requires and sample.teacher_topk_ids is None:
            return self._teacher_signal(sample) or Refusal(DropReason.TEACHER_MISSING, "no teacher candidates")
        return self._teacher_signal(sample) if "teacher_logprobs" in requires else None

    def _is_filled_in(self, sample: Sample) -> bool:
        """Whether the teacher's part is filled in before the step. One left to a trainer that is no teacher (any
        more, for the configuration changed) is not."""
        topk = self.requires is not None and "teacher_topk" in self.requires
        by_us = self.config.prm.teacher_source == "trainer" or (topk and not self.config.topk_opd.use_teacher_topk)
        return by_us and is_open(sample)

    def _teacher_signal(self, sample: Sample) -> Refusal | None:
        if sample.teacher_logprobs is not None or self._is_filled_in(sample):
            return None
        if sample.hint is None:
            return Refusal(DropReason.NO_HINT, "no hint")
        return Refusal(DropReason.TEACHER_MISSING, "no teacher log-probabilities")


def _score_signal(sample: Sample) -> Refusal | None:
    if sample.score is None:
        return Refusal(DropReason.NO_SIGNAL, "no score")
    if sample.score == 0:
        return Refusal(DropReason.NEUTRAL, "score 0")
    return None
