"""What becomes of a turn under each fault of the judge's engine: the table of defined outcomes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hintloop_contract import worker
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import JudgedTurn
from hintloop_contract.redis_broker import RedisBroker
from hintloop_contract.streams import DEAD, JUDGED, TURNS
from hintloop_judge.wiring import build_deps, run_worker

from .conftest import StandInEngine, is_hint, link

ANSWER = "Rain is water that falls from the clouds in drops."
HINT = "[HINT_START]One sentence.[HINT_END]"
NO_HINT = "[NO_HINT]"


@contextlib.asynccontextmanager
async def judging(broker: RedisBroker, engine: StandInEngine, **changes: Any) -> AsyncIterator[None]:
    """A judge at work on the stream."""
    # An answer that comes too late is asked for again, and what the engine was told to say next has moved on.
    prm = {"prm_url": engine.url, "timeout_s": 60.0, "deadline_s": 180.0, **changes.get("prm", {})}
    opd = {"judge_temperature": 0.5, **changes.get("opd", {})}
    advantage = {"estimator": changes.get("estimator", "combine")}
    deps = await build_deps(Config.model_validate({"prm": prm, "opd": opd, "advantage": advantage}), broker)
    stop = asyncio.Event()
    working = asyncio.create_task(run_worker(deps, stop))
    try:
        yield
    finally:
        stop.set()
        # It would only wait for the end of its reading.
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working


@dataclass
class Outcome:
    """Where a turn ended."""

    judged: list[JudgedTurn] = field(default_factory=list)
    drops: dict[tuple[str, str], int] = field(default_factory=dict)

    def said(self) -> Any:
        """``(score, hint)`` of the judged turn, or the reason of the drop."""
        if self.judged:
            (turn,) = self.judged
            return turn.judgement.score, turn.judgement.hint
        ((stage, reason),) = self.drops
        assert stage == "judge"
        return reason


async def outcome(broker: RedisBroker, limit_s: float = 60.0) -> Outcome:
    """Wait until the one turn left the stream, and say where it went."""
    async with asyncio.timeout(limit_s):
        while (await broker.counts(TURNS)).length:
            await asyncio.sleep(0.02)
    judged = [entry.message for entry in await broker.read(JUDGED, "test", 10, 1)]
    assert (await broker.counts(DEAD)).length == 0
    return Outcome([turn for turn in judged if isinstance(turn, JudgedTurn)], (await broker.funnel()).drops)


def told(scores: list[Any], hints: list[Any]) -> Any:
    """Answer score questions by ``scores`` in turn, hint questions by ``hints``; no schema, no several choices."""
    left = {"score": list(scores), "hint": list(hints)}

    def reply(body: dict[str, Any]) -> Any:
        if "response_format" in body or "n" in body:
            return 400
        answers = left["hint" if is_hint(body) else "score"]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return [answer] if isinstance(answer, str) else answer

    return reply


HASTY = {"timeout_s": 0.4, "deadline_s": 2.0, "circuit_open_s": 0.3}
#: What the engine does for ever; the turn waits, counts nothing, and is judged once the engine is well again.
AWAY: dict[str, dict[str, Any]] = {
    "429": {"reply": lambda body: 429},
    "500": {"reply": lambda body: 500},
    "refused key": {"reply": lambda body: 401},
    "timeout": {"seconds": 30.0},
    "slow drip": {"drip": True},
    "garbage JSON": {"reply": lambda body: b"<html>busy</html>"},
}


@pytest.mark.parametrize("fault", AWAY)
async def test_an_engine_that_is_away_costs_no_turn(
    broker: RedisBroker, engine: StandInEngine, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(worker, "MAX_BACKOFF_S", 0.3)
    for name, value in AWAY[fault].items():
        setattr(engine, name, value)
    await link(broker, "turn-a", "Too long, turn-a.", ANSWER)
    async with judging(broker, engine, prm=HASTY):
        async with asyncio.timeout(60):
            while not engine.num_asked:
                await asyncio.sleep(0.02)
        await asyncio.sleep(1.2)
        assert (await broker.counts(TURNS)).length == 1
        assert (await broker.counts(JUDGED)).length == 0
        assert (await broker.counts(DEAD)).length == 0
        assert (await broker.funnel()).drops == {}
        engine.reply, engine.seconds, engine.drip = told(["\\boxed{-1}"], [HINT]), 0.0, False
        assert (await outcome(broker)).said() == (-1, "One sentence.")


EMPTY = {"texts": [], "finish_reason": "stop"}
CUT = {"texts": ["\\boxed{1}"], "finish_reason": "length"}
UNREADABLE = b'{"choices": [{'

# (fault, scores, hints, score and hint, or the reason of the drop)
VOTES: list[tuple[str, list[Any], list[Any], Any]] = [
    ("all well", ["\\boxed{-1}"], [HINT], (-1, "One sentence.")),
    ("empty votes", [""], [""], "judge_failed"),
    ("no choices", [EMPTY], [EMPTY], "judge_failed"),
    ("cut votes", [CUT], [CUT], "judge_failed"),
    ("questions refused", [400], [400], "judge_failed"),
    ("tied votes, a hint", ["\\boxed{1}", "\\boxed{-1}", "\\boxed{0}"], [HINT], (0, "One sentence.")),
    ("tied votes, no hint", ["\\boxed{1}", "\\boxed{-1}", "\\boxed{0}"], [NO_HINT], "no_signal"),
    ("two boxes that differ", ["\\boxed{1} or \\boxed{-1}"], [NO_HINT], "judge_failed"),
    ("two boxes that agree", ["\\boxed{1}, yes, \\boxed{1}"], [NO_HINT], (1, None)),
    ("no box", ["It was fine."], [HINT], (None, "One sentence.")),
    ("no box in one of three", ["It was fine.", "\\boxed{1}"], [NO_HINT], (1, None)),
    ("no box in two of three", ["Fine.", "Fine.", "\\boxed{1}"], [NO_HINT], "judge_failed"),
    ("one unreadable body", [UNREADABLE, "\\boxed{1}"], [NO_HINT], (1, None)),
    ("hint of 9 characters", ["\\boxed{0}"], ["[HINT_START]Be brief.[HINT_END]"], "no_signal"),
    ("hint of 10 characters", ["\\boxed{0}"], ["[HINT_START]Be briefer[HINT_END]"], (0, "Be briefer")),
    ("hint of 256 characters", ["\\boxed{0}"], [f"[HINT_START]{'x' * 256}[HINT_END]"], (0, "x" * 256)),
    ("hint of 257 characters", ["\\boxed{0}"], [f"[HINT_START]{'x' * 257}[HINT_END]"], "no_signal"),
    ("hint that is the answer", ["\\boxed{0}"], [f"[HINT_START]{ANSWER}[HINT_END]"], "no_signal"),
    ("hint that holds the answer", ["\\boxed{0}"], [f"[HINT_START]Say: {ANSWER}[HINT_END]"], "no_signal"),
    ("two hints in one vote", ["\\boxed{0}"], [HINT + "[HINT_START]In French.[HINT_END]"], "judge_failed"),
    ("hint and none", ["\\boxed{1}"], [HINT + NO_HINT], (1, None)),
]


@pytest.mark.parametrize(("fault", "scores", "hints", "said"), VOTES, ids=[row[0] for row in VOTES])
async def test_votes(
    broker: RedisBroker, engine: StandInEngine, fault: str, scores: list[Any], hints: list[Any], said: Any
) -> None:
    engine.reply = told(scores, hints)
    await link(broker, "turn-a", "Too long, turn-a.", ANSWER)
    async with judging(broker, engine):
        assert (await outcome(broker)).said() == said


async def test_methods_that_learn_from_the_score_alone_drop_a_tie_as_neutral(
    broker: RedisBroker, engine: StandInEngine
) -> None:
    engine.reply = told(["\\boxed{1}", "\\boxed{-1}"], [HINT])
    await link(broker, "turn-a", "Too long, turn-a.", ANSWER)
    async with judging(broker, engine, estimator="grpo", opd={"judge_vote_count": 2}):
        assert (await outcome(broker)).said() == "neutral"


async def test_methods_that_learn_from_hints_drop_a_turn_without_one(
    broker: RedisBroker, engine: StandInEngine
) -> None:
    engine.reply = told(["\\boxed{1}"], ["[HINT_START]Be brief.[HINT_END]"])
    await link(broker, "turn-a", "Too long, turn-a.", ANSWER)
    async with judging(broker, engine, estimator="on_policy_distillation"):
        assert (await outcome(broker)).said() == "no_hint"
