"""Turns judged turns into samples: hinted prompt, forced scores, packed arrays; or drops them, and says why."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import structlog
from hintloop_contract.broker import Broker, Entry
from hintloop_contract.config.needs import SignalNeeds
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import DropReason, JudgedTurn, Sample, TurnRecord
from hintloop_contract.tensors import pack, unpack
from hintloop_contract.worker import Discard, Forward, Outcome

from hintloop_teacher.control import RecentTurns
from hintloop_teacher.engine import TeacherEngine
from hintloop_teacher.errors import (
    MisalignedError,
    MissingError,
    RecordError,
    RefusedError,
    RenderMismatchError,
    TeachError,
    TooLongError,
    UnsupportedError,
)
from hintloop_teacher.forced import ForcedScores
from hintloop_teacher.hints import Message, hint_block
from hintloop_teacher.metrics import TeacherMetrics
from hintloop_teacher.rendering import Hinted, Renderer, read_request

#: Under `combine` these cost a turn its hint only; its score still teaches.
HINT_ONLY = (DropReason.NO_HINT, DropReason.NO_HINT_PLACE, DropReason.RENDER_MISMATCH, DropReason.TOO_LONG)


class TurnTeacher:
    """The stream worker's handler."""

    def __init__(
        self,
        config: Config,
        needs: SignalNeeds,
        broker: Broker,
        renderer: Renderer,
        engine: TeacherEngine,
        metrics: TeacherMetrics,
        recent: RecentTurns | None = None,
    ) -> None:
        """``needs``: whether and with how many candidates turns are scored. ``recent`` keeps turns for the control."""
        self._config = config
        self._needs = needs
        self._broker = broker
        self._renderer = renderer
        self._engine = engine
        self._metrics = metrics
        self._recent = recent
        self._log = structlog.get_logger()

    async def __call__(self, entry: Entry[Any]) -> Outcome:
        """Teach one judged turn. Raises ``DependencyError`` when an engine is away."""
        started = time.monotonic()
        outcome = await self._teach(entry.message)
        self._metrics.seconds.observe(time.monotonic() - started)
        name = "forwarded" if isinstance(outcome, Forward) else str(outcome.reason)
        self._metrics.turns.labels(outcome=name).inc()
        return outcome

    async def _teach(self, judged: JudgedTurn) -> Outcome:
        turn = judged.turn
        current = (await self._broker.weights()).current
        allowed = self._config.training.max_staleness_steps
        # The configured steps are counted in versions: every optimizer step publishes exactly one.
        if current is not None and current - turn.version_oldest > allowed:
            behind = f"made by version {turn.version_oldest}, current is {current}"
            return Discard(DropReason.STALE, f"{behind}, allowed are {allowed} steps")
        record = await self._broker.get_turn(turn.turn_id)
        if record is None:
            raise RecordError(f"turn {turn.turn_id}: its record is gone; was it ended elsewhere?")
        if self._recent is not None:
            self._recent.add(turn, record)
        length, limit = len(record.prompt_ids) + len(record.response_ids), self._config.model.max_seq_len
        if length > limit:
            return Discard(DropReason.TOO_LONG, f"{length} tokens; model.max_seq_len is {limit}")
        return await self._scored_or_not(judged, record)

    async def _scored_or_not(self, judged: JudgedTurn, record: TurnRecord) -> Outcome:
        hint = judged.judgement.hint
        has_score = judged.judgement.score in (-1, 1)
        if not self._needs.teacher:
            return Forward(_sample(judged, record))
        if hint is None and self._config.opd.drop_sample_without_hint:
            if self._needs.either and has_score:
                return Forward(_sample(judged, record))
            return Discard(DropReason.NO_HINT, "the method needs a hint")
        try:
            return Forward(await self._scored(judged, record, hint))
        except TeachError as error:
            if self._needs.either and has_score and error.reason in HINT_ONLY:
                self._metrics.opd_parts_dropped.labels(reason=str(error.reason)).inc()
                self._log.info("taught by score alone", turn_id=judged.turn_id, reason=error.reason, detail=str(error))
                return Forward(_sample(judged, record))
            return Discard(error.reason, str(error))

    async def _left_to_trainer(self, judged: JudgedTurn, record: TurnRecord, hint: str | None) -> Sample:
        """The prompt with its hint; scores are the trainer's business."""
        turn, hinted_ids = judged.turn, [int(token) for token in unpack(record.prompt_ids)]
        if hint is not None:
            request = read_request(
                turn.engine, turn.engine_url, record.messages, record.tools, record.rendering, hinted_ids
            )
            block = hint_block(self._config.opd.hint_format, hint)
            hinted_ids = (await self._renderer.hinted(request, block)).ids
        length, limit = len(hinted_ids) + len(record.response_ids), self._config.model.max_seq_len
        if length > limit:
            raise TooLongError(f"{length} tokens with the hint; model.max_seq_len is {limit}")
        sample = _sample(judged, record, num_hinted_prompt_tokens=len(hinted_ids))
        return msgspec.structs.replace(sample, hinted_prompt_ids=pack(hinted_ids, "int32"))

    async def _scored(self, judged: JudgedTurn, record: TurnRecord, hint: str | None) -> Sample:
        if self._needs.by_trainer:
            return await self._left_to_trainer(judged, record, hint)
        prompt_ids = [int(token) for token in unpack(record.prompt_ids)]
        response_ids = [int(token) for token in unpack(record.response_ids)]
        scorer = self._engine.scorer
        # Without a hint the whole block is left out: the null hint is the captured prompt itself.
        hinted, messages = Hinted(prompt_ids, None), None
        if hint is not None or not scorer.dialect.takes_ids:
            turn = judged.turn
            request = read_request(
                turn.engine, turn.engine_url, record.messages, record.tools, record.rendering, prompt_ids
            )
            hinted = Hinted(prompt_ids, request.messages or None)
            if hint is not None:
                hinted = await self._renderer.hinted(request, hint_block(self._config.opd.hint_format, hint))
        if not scorer.dialect.takes_ids:
            messages = _with_answer(hinted, record)
        try:
            scores = await scorer.score(hinted.ids, response_ids, self._needs.top_k, messages=messages)
        except (UnsupportedError, RefusedError, MissingError, MisalignedError) as error:
            # One turn's trouble, or an engine that can teach no more? Then none of the turns that wait is to blame.
            await self._engine.check_again(str(error))
            raise
        self._metrics.tokens.inc(len(response_ids))
        dtype = self._config.topk_opd.logprobs_dtype
        return _sample(judged, record, scores, scorer.facts.model, len(hinted.ids), topk_dtype=dtype)


def _with_answer(hinted: Hinted, record: TurnRecord) -> list[Message]:
    if hinted.messages is None:
        raise RenderMismatchError("the PRM engine takes messages, and only the ids of this turn's prompt are known")
    answer = json.loads(record.answer)
    return [*hinted.messages, {"role": "assistant", **answer}]


def _sample(
    judged: JudgedTurn,
    record: TurnRecord,
    scores: ForcedScores | None = None,
    teacher_model: str | None = None,
    num_hinted_prompt_tokens: int | None = None,
    *,
    topk_dtype: str = "float16",
) -> Sample:
    turn = judged.turn
    with_topk = scores is not None and scores.topk_ids is not None
    return Sample(
        turn_id=turn.turn_id,
        tenant=turn.tenant,
        session_id=turn.session_id,
        prompt_ids=record.prompt_ids,
        response_ids=record.response_ids,
        behaviour_logprobs=record.logprobs,
        behaviour_space=turn.behaviour_space,
        sampling=turn.sampling,
        finish_reason=turn.finish_reason,
        version_oldest=turn.version_oldest,
        version_newest=turn.version_newest,
        captured_ms=turn.captured_ms,
        score=judged.judgement.score,
        hint=judged.judgement.hint,
        teacher_logprobs=pack(scores.logprobs, "float32") if scores else None,
        teacher_topk_ids=pack(scores.topk_ids, "int32") if scores and with_topk else None,
        teacher_topk_logprobs=pack(scores.topk_logprobs, topk_dtype) if scores and with_topk else None,
        teacher_tail_logprobs=pack(scores.tail_logprobs, "float32") if scores and with_topk else None,
        teacher_model=teacher_model,
        num_hinted_prompt_tokens=num_hinted_prompt_tokens,
    )
