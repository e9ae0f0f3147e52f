"""Turns judged turns into samples: hinted prompt, forced scores, packed arrays; or drops them, and says why."""

from __future__ import annotations

import time
from typing import Any

import structlog
from hintloop_contract.broker import Broker, Entry
from hintloop_contract.config.needs import SignalNeeds
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import DropReason, JudgedTurn, Sample, TurnRecord
from hintloop_contract.tensors import pack, unpack
from hintloop_contract.worker import Discard, Forward, Outcome

from hintloop_teacher.control import RecentTurns
from hintloop_teacher.engine import TeacherEngine
from hintloop_teacher.errors import RecordError, TeachError
from hintloop_teacher.forced import ForcedScores
from hintloop_teacher.hints import hint_block
from hintloop_teacher.metrics import TeacherMetrics
from hintloop_teacher.rendering import Renderer, read_request

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

    async def _scored(self, judged: JudgedTurn, record: TurnRecord, hint: str | None) -> Sample:
        prompt_ids = [int(token) for token in unpack(record.prompt_ids)]
        response_ids = [int(token) for token in unpack(record.response_ids)]
        if hint is not None:
            turn = judged.turn
            request = read_request(
                turn.engine, turn.engine_url, record.messages, record.tools, record.rendering, prompt_ids
            )
            block = hint_block(self._config.opd.hint_format, hint)
            prompt_ids = await self._renderer.hinted_ids(request, block)
        # Without a hint the whole block is left out: the null hint is the captured prompt itself.
        scorer = self._engine.scorer
        scores = await scorer.score(prompt_ids, response_ids, self._needs.top_k)
        self._metrics.tokens.inc(len(response_ids))
        return _sample(judged, record, scores, scorer.facts.model, len(prompt_ids))


def _sample(
    judged: JudgedTurn,
    record: TurnRecord,
    scores: ForcedScores | None = None,
    teacher_model: str | None = None,
    num_hinted_prompt_tokens: int | None = None,
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
        teacher_topk_logprobs=pack(scores.topk_logprobs, "float16") if scores and with_topk else None,
        teacher_tail_logprobs=pack(scores.tail_logprobs, "float32") if scores and with_topk else None,
        teacher_model=teacher_model,
        num_hinted_prompt_tokens=num_hinted_prompt_tokens,
    )
