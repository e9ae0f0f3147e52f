"""Fills in what the teacher says of samples that come unscored, before a step is made with them.

That is so where the candidates are the student's (only the trainer knows them; the PRM engine is asked for their
scores) and where the trainer is the teacher. Owns the order of things on the leading rank; neither torch nor gRPC.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError, DependencyError, HintloopError
from hintloop_contract.messages import DropReason, Sample
from hintloop_contract.tensors import PackedArray, pack
from tokenizers import Tokenizer

from hintloop_trainer.batch import read_example
from hintloop_trainer.errors import ScoringRefusedError
from hintloop_trainer.forced import Forced, Ids
from hintloop_trainer.losses.loading import LoadedLoss
from hintloop_trainer.prm_client import Answer, PrmClient, Question, Unscorable

#: Does work in the background until it succeeds, however long what it depends on is away.
Insist = Callable[[str, Callable[[], Coroutine[Any, Any, Any]]], Any]

OWN_MODEL = "trainer"
_CHECK_IDS = (1, 2)


class Calling(Protocol):
    """Calls a method on all ranks (:class:`ranks.Ranks`)."""

    def call(self, method: str, *arguments: Any) -> Any:
        """The leader's result."""
        ...


@dataclass(frozen=True, slots=True)
class Filling:
    """What has to be filled in. ``own``: the trainer is the teacher. ``chosen``: candidates are the student's."""

    learned: bool
    """The method learns from a teacher at all."""
    own: bool
    chosen: bool
    top_k: int
    weights: str
    batch_size: int
    vocab_size: int
    num_tokens: int
    """Ids that the tokenizer has; a padded model has more."""

    @property
    def needed(self) -> bool:
        """Whether samples come unscored at all."""
        return self.own or self.chosen

    @property
    def has_prm(self) -> bool:
        """Whether a PRM engine is the teacher."""
        return self.learned and not self.own

    @property
    def asks_prm(self) -> bool:
        """Whether the PRM's engine has to score."""
        return self.chosen and not self.own


def filling_from(config: Config, loss: LoadedLoss, vocab_size: int) -> Filling:
    """What the configured method has to fill in.

    Raises:
        ConfigError: more candidates are asked than there are tokens.
    """
    topk = "teacher_topk" in loss.requires
    learned = topk or "teacher_logprobs" in loss.requires if loss.custom else config.advantage.estimator != "grpo"
    top_k = config.topk_opd.top_k if topk else 0
    num_tokens = _num_tokens(Path(config.tokenizer_dir), vocab_size)
    if top_k > num_tokens:
        raise ConfigError(f"topk_opd.top_k {top_k} is more than the vocabulary's {num_tokens} tokens; lower it")
    return Filling(
        learned=learned,
        own=learned and config.prm.teacher_source == "trainer",
        chosen=topk and not config.topk_opd.use_teacher_topk,
        top_k=top_k,
        weights=config.prm.teacher_weights,
        batch_size=config.training.train_batch_size,
        vocab_size=vocab_size,
        num_tokens=num_tokens,
    )


def _num_tokens(tokenizer_dir: Path, vocab_size: int) -> int:
    """No teacher is asked for ids that no tokenizer has; the whole vocabulary where the tokenizer cannot be read."""
    file = tokenizer_dir / "tokenizer.json"
    if not file.is_file():
        return vocab_size
    return min(vocab_size, max(Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True).values()) + 1)


@dataclass(frozen=True, slots=True)
class Filled:
    """Samples by turn id that can be trained now, and those that cannot be scored, with the reason."""

    ready: dict[str, Sample]
    unscorable: dict[str, Unscorable]


class Filler:
    """Fills in samples, one optimizer step's at a time, so that batches are formed as they are for the step."""

    def __init__(self, plan: Filling, ranks: Calling, client: PrmClient | None, insist: Insist) -> None:
        """``client`` may be ``None`` where no PRM engine has to score."""
        self._plan = plan
        self._ranks = ranks
        self._client = client
        self._insist = insist

    def check(self) -> None:
        """See at start whether the PRM engine scores candidates of our choice; waits while it is away.

        Raises:
            ConfigError: it does not, with its reason.
        """
        if not self._plan.asks_prm:
            return
        try:
            (found,) = self._insist("asking the PRM", lambda: self._asked([self._check_question()]))
        except ScoringRefusedError as error:
            raise ConfigError(
                f"topk_opd.use_teacher_topk = false: the teacher cannot score the student's candidates: {error}; set "
                'true, take an engine that can, or prm.teacher_source = "trainer"'
            ) from error
        if isinstance(found, Unscorable):
            raise ConfigError(f"topk_opd.use_teacher_topk = false: the teacher's answer is unusable: {found.detail}")

    def fill(self, samples: Sequence[Sample]) -> Filled:
        """Fill in a collection's samples; those that are scored already, or teach by score alone, stay as they are."""
        result = Filled({}, {})
        for start in range(0, len(samples), self._plan.batch_size):
            self._fill_step(samples[start : start + self._plan.batch_size], result)
        return result

    def _fill_step(self, samples: Sequence[Sample], result: Filled) -> None:
        open_ = [sample for sample in samples if is_open(sample)]
        result.ready.update({sample.turn_id: sample for sample in samples if not is_open(sample)})
        if not open_:
            return
        encoded = [msgspec.msgpack.encode(sample) for sample in samples if is_open(sample)]
        chosen: dict[str, Ids] | None = None
        if self._plan.chosen:
            chosen = self._ranks.call("choose", encoded, self._plan.top_k, self._plan.num_tokens)
        if self._plan.own:
            scores: dict[str, Forced] = self._ranks.call("teach", encoded, self._plan.top_k, chosen)
            model = f"{OWN_MODEL} ({self._plan.weights})"
            result.ready.update(
                {sample.turn_id: with_scores(sample, scores[sample.turn_id], model) for sample in open_}
            )
            return
        assert chosen is not None
        self._ask(open_, chosen, result)

    def _ask(self, samples: Sequence[Sample], chosen: dict[str, Ids], result: Filled) -> None:
        packed = {turn_id: pack(ids, "int32") for turn_id, ids in chosen.items()}
        questions = [Question(_hinted(sample), sample.response_ids, packed[sample.turn_id]) for sample in samples]
        known: dict[int, Answer | Unscorable] = {}
        answers = self._insist("asking the PRM", lambda: self._patiently(questions, known))
        for sample, answer in zip(samples, answers, strict=True):
            scored = answer if isinstance(answer, Unscorable) else self._checked(sample, packed, answer)
            if isinstance(scored, Unscorable):
                result.unscorable[sample.turn_id] = scored
            else:
                result.ready[sample.turn_id] = scored

    def _checked(self, sample: Sample, candidates: Mapping[str, PackedArray], answer: Answer) -> Sample | Unscorable:
        filled = with_answer(sample, candidates[sample.turn_id], answer)
        try:
            read_example(filled, self._plan.vocab_size)
        except HintloopError as error:
            return Unscorable(DropReason.TEACHER_MISSING, str(error))
        return filled

    async def _patiently(
        self, questions: Sequence[Question], known: dict[int, Answer | Unscorable]
    ) -> list[Answer | Unscorable]:
        try:
            return await self._asked(questions, known)
        except ScoringRefusedError as error:
            await self._check_again(error)
            known.update({index: Unscorable(DropReason.TEACHER_MISSING, str(error)) for index in error.at})
            return await self._asked(questions, known)

    async def _check_again(self, refusal: ScoringRefusedError) -> None:
        """Return if the service still does what it could at the start, so that it refuses some samples alone.

        Raises:
            DependencyError: another engine, or another key, is there now. That is no sample's fault.
        """
        try:
            (found,) = await self._asked([self._check_question()])
        except ScoringRefusedError:
            found = None
        if not isinstance(found, Answer) or not refusal.at:
            raise DependencyError("prm", str(refusal)) from refusal

    async def _asked(
        self, questions: Sequence[Question], known: dict[int, Answer | Unscorable] | None = None
    ) -> list[Answer | Unscorable]:
        assert self._client is not None
        return await self._client.score(questions, known)

    def _check_question(self) -> Question:
        candidates = np.arange(self._plan.top_k, dtype=np.int32)[None]
        prompt, response = (pack([token], "int32") for token in _CHECK_IDS)
        return Question(prompt, response, pack(candidates, "int32"))


def is_open(sample: Sample) -> bool:
    """Whether the teacher's part is still to be filled in."""
    return sample.hinted_prompt_ids is not None and sample.teacher_logprobs is None


def _hinted(sample: Sample) -> PackedArray:
    assert sample.hinted_prompt_ids is not None
    return sample.hinted_prompt_ids


def with_scores(sample: Sample, scores: Forced, model: str) -> Sample:
    """``sample`` with what the trainer's own teacher said; nothing is rounded on the way."""

    def packed(values: Any, dtype: str) -> PackedArray | None:
        return None if values is None else pack(values, dtype)

    return msgspec.structs.replace(
        sample,
        teacher_logprobs=pack(scores.logprobs, "float32"),
        teacher_topk_ids=packed(scores.topk_ids, "int32"),
        teacher_topk_logprobs=packed(scores.topk_logprobs, "float32"),
        teacher_tail_logprobs=packed(scores.tail_logprobs, "float32"),
        teacher_model=model,
    )


def with_answer(sample: Sample, candidates: PackedArray, answer: Answer) -> Sample:
    """``sample`` with what the PRM's teacher said of the student's candidates."""
    return msgspec.structs.replace(
        sample,
        teacher_logprobs=answer.logprobs,
        teacher_topk_ids=candidates,
        teacher_topk_logprobs=answer.topk_logprobs,
        teacher_tail_logprobs=answer.tail_logprobs,
        teacher_model=answer.model,
    )
