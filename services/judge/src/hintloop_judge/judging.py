"""Judges turns of the stream: what is asked, what is passed on, what is dropped and why.

The HTTP routes call the same backend; only here a turn can be dropped.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from hintloop_contract.broker import Broker, Entry
from hintloop_contract.config.needs import SignalNeeds
from hintloop_contract.messages import DropReason, JudgedTurn, Judgement, LinkedTurn
from hintloop_contract.worker import Discard, Forward, Outcome
from msgspec import structs

from hintloop_judge.backends import Backend, Opinion
from hintloop_judge.conversation import Exchange, read_exchange
from hintloop_judge.errors import RecordError
from hintloop_judge.metrics import JudgeMetrics
from hintloop_judge.unjudged import judgeable

#: Backend named by a judgement whose score the user gave.
FEEDBACK = "feedback"
NOTHING_TO_JUDGE = "the next state holds no words of a user and no output of a tool, or only a timeout or interruption"


class TurnJudge:
    """The stream worker's handler."""

    def __init__(
        self,
        broker: Broker,
        backend: Backend,
        needs: SignalNeeds,
        metrics: JudgeMetrics,
        *,
        drop_without_hint: bool,
        max_staleness_steps: int,
    ) -> None:
        """``needs``: what the method asks; ``drop_without_hint``: ``opd.drop_sample_without_hint``."""
        self._broker = broker
        self._backend = backend
        self._needs = needs
        self._metrics = metrics
        self._drop_without_hint = drop_without_hint
        self._max_staleness_steps = max_staleness_steps

    async def __call__(self, entry: Entry[Any]) -> Outcome:
        """Judge one linked turn. Raises ``DependencyError`` when the judge's engine is away."""
        started = time.monotonic()
        outcome = await self._judge(entry.message)
        self._metrics.seconds.observe(time.monotonic() - started)
        name = "forwarded" if isinstance(outcome, Forward) else str(outcome.reason)
        self._metrics.turns.labels(outcome=name).inc()
        return outcome

    async def _judge(self, turn: LinkedTurn) -> Outcome:
        current = (await self._broker.weights()).current
        # The configured steps are counted in versions: every optimizer step publishes exactly one.
        if current is not None and current - turn.version_oldest > self._max_staleness_steps:
            behind = f"made by version {turn.version_oldest}, current is {current}"
            return Discard(DropReason.STALE, f"{behind}, allowed are {self._max_staleness_steps} steps")
        record = await self._broker.get_turn(turn.turn_id)
        if record is None:
            raise RecordError(f"turn {turn.turn_id}: its record is gone; was it ended elsewhere?")
        exchange = judgeable(read_exchange(record))
        given = turn.feedback_score
        if given is not None:
            opinion = await self._with_feedback(exchange, given)
        elif exchange is None:
            return Discard(DropReason.NO_SIGNAL, NOTHING_TO_JUDGE)
        else:
            opinion = await self._backend.judge(exchange, score=self._needs.score, hint=self._needs.hint)
        discard = decide(opinion, self._needs, drop_without_hint=self._drop_without_hint)
        if discard is not None:
            return discard
        judgement = opinion.judgement
        self._metrics.scores.labels(score=str(judgement.score)).inc()
        counters = ("hinted",) if judgement.hint is not None else ()
        return Forward(JudgedTurn(turn=turn, judgement=judgement), counters)

    async def _with_feedback(self, exchange: Exchange | None, given: int) -> Opinion:
        """The user's explicit score stands in for a judged one; the hint is asked when there is text for it."""
        if exchange is None or not self._needs.hint:
            return Opinion(Judgement(score=given, backend=FEEDBACK))
        opinion = await self._backend.judge(exchange, score=False, hint=True)
        backend = f"{FEEDBACK}+{opinion.judgement.backend}"
        return replace(opinion, judgement=structs.replace(opinion.judgement, score=given, backend=backend))


def decide(opinion: Opinion, needs: SignalNeeds, *, drop_without_hint: bool) -> Discard | None:
    """Why the method cannot learn from this judgement, or ``None`` when it can."""
    judgement = opinion.judgement
    hint_missing = needs.hint and judgement.hint is None and drop_without_hint
    if needs.either:
        return _either_missing(opinion, hint_missing)
    if hint_missing:
        return _missing(opinion, "hint", DropReason.NO_HINT, "the method needs a hint")
    if needs.score and judgement.score is None:
        return _missing(opinion, "score", DropReason.NO_SIGNAL, "the method needs a score")
    if needs.score and not needs.hint and judgement.score == 0:
        return Discard(DropReason.NEUTRAL, "score 0, and the method learns from the score alone")
    return None


def _either_missing(opinion: Opinion, hint_missing: bool) -> Discard | None:
    if not hint_missing or opinion.judgement.score in (-1, 1):
        return None
    if opinion.failed:
        return Discard(DropReason.JUDGE_FAILED, opinion.why_failed())
    return Discard(DropReason.NO_SIGNAL, f"no hint, and score {opinion.judgement.score} gives no gradient")


def _missing(opinion: Opinion, question: str, reason: DropReason, detail: str) -> Discard:
    if question in opinion.failed:
        return Discard(DropReason.JUDGE_FAILED, f"{question}: {opinion.why_failed()}")
    return Discard(reason, detail)
