"""What becomes of a turn under each method."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.broker import WeightsState
from hintloop_contract.config.needs import SignalNeeds, signal_needs
from hintloop_contract.config.schema import Config, OpdSection
from hintloop_contract.errors import ConfigError
from hintloop_contract.messages import Capture, Judgement, LinkedTurn, Sampling, TurnRecord, Vote
from hintloop_contract.streams import CAPTURES, JUDGED, TURNS
from hintloop_contract.tensors import pack
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_contract.worker import Discard, Forward
from hintloop_judge.backends import Opinion
from hintloop_judge.conversation import Exchange
from hintloop_judge.errors import RecordError
from hintloop_judge.judging import TurnJudge, decide
from hintloop_judge.metrics import JudgeMetrics
from hintloop_judge.rules import RulesBackend
from msgspec import structs

BINARY = SignalNeeds(score=True, hint=False)
OPD = SignalNeeds(score=False, hint=True)
COMBINE = SignalNeeds(score=True, hint=True, either=True)
BOTH = SignalNeeds(score=True, hint=True)


def opinion(score: int | None, hint: str | None, failed: frozenset[str] = frozenset()) -> Opinion:
    votes = (Vote(failed="cut"),) if failed else ()
    return Opinion(Judgement(score=score, hint=hint, votes=votes, backend="rules"), failed)


@pytest.mark.parametrize(
    ("needs", "score", "hint", "drop_without_hint", "reason"),
    [
        (BINARY, 1, None, True, None),
        (BINARY, -1, "h", True, None),
        (BINARY, 0, "h", True, "neutral"),
        (BINARY, None, "h", True, "no_signal"),
        (OPD, None, "h", True, None),
        (OPD, 1, None, True, "no_hint"),
        (OPD, 1, None, False, None),
        (COMBINE, 0, "h", True, None),
        (COMBINE, None, "h", True, None),
        (COMBINE, 1, None, True, None),
        (COMBINE, 0, None, True, "no_signal"),
        (COMBINE, None, None, True, "no_signal"),
        (COMBINE, None, None, False, None),
        (BOTH, 0, "h", True, None),
        (BOTH, None, "h", True, "no_signal"),
        (BOTH, 1, None, True, "no_hint"),
    ],
)
def test_what_each_method_needs(
    needs: SignalNeeds, score: int | None, hint: str | None, drop_without_hint: bool, reason: str | None
) -> None:
    found = decide(opinion(score, hint), needs, drop_without_hint=drop_without_hint)
    assert (found and str(found.reason)) == reason


def test_failed_questions_drop_as_judge_failed() -> None:
    for needs, failed in [(BINARY, {"score"}), (OPD, {"hint"}), (COMBINE, {"score", "hint"}), (COMBINE, {"score"})]:
        found = decide(opinion(None, None, frozenset(failed)), needs, drop_without_hint=True)
        assert found is not None
        assert (str(found.reason), "cut" in found.detail) == ("judge_failed", True)
    assert decide(opinion(None, "h", frozenset({"score"})), COMBINE, drop_without_hint=True) is None


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ({"advantage": {"estimator": "grpo"}}, BINARY),
        ({}, OPD),
        ({"advantage": {"estimator": "combine"}}, COMBINE),
        (
            {"advantage": {"estimator": "grpo", "custom_loss_function_path": "openclaw_opd/losses/topk_reverse_kl.py"}},
            replace(OPD, top_k=64),
        ),
        (
            {
                "advantage": {"estimator": "grpo", "custom_loss_function_path": "any/topk_reverse_kl.py"},
                "topk_opd": {"use_teacher_topk": False},
            },
            replace(OPD, by_trainer=True),
        ),
    ],
)
def test_needs_of_the_configuration(settings: dict[str, Any], needs: SignalNeeds) -> None:
    assert signal_needs(Config.model_validate(settings)) == needs


def test_needs_of_a_custom_loss(tmp_path: Path) -> None:
    def needs(source: str) -> SignalNeeds:
        (tmp_path / "mine.py").write_text(source, encoding="utf-8")
        return signal_needs(Config.model_validate({"advantage": {"custom_loss_function_path": "mine.py"}}), tmp_path)

    assert needs("import nothing_here\nREQUIRES = frozenset({'score', 'teacher_logprobs'})") == BOTH
    assert needs("REQUIRES: set[str] = {'score'}") == BINARY
    for source in ("x = 1", "REQUIRES = {'scores'}", "REQUIRES = set()", "REQUIRES = make()", "def ("):
        with pytest.raises(ConfigError, match=r"mine\.py"):
            needs(source)
    with pytest.raises(ConfigError, match="tried"):
        signal_needs(Config.model_validate({"advantage": {"custom_loss_function_path": "other.py"}}), tmp_path)


class Recorded:
    """A backend that says what it was asked."""

    name = "recorded"
    model = None

    def __init__(self) -> None:
        self.asked: list[tuple[Exchange, bool, bool]] = []

    async def judge(self, exchange: Exchange, *, score: bool, hint: bool) -> Opinion:
        self.asked.append((exchange, score, hint))
        return opinion(1, "One sentence.")

    async def ready(self) -> bool:
        return True

    async def close(self) -> None: ...


def turn(turn_id: str = "t1", version: int = 3) -> LinkedTurn:
    return LinkedTurn(
        turn_id=turn_id, session_id="s", turn_index=0, engine="vllm", engine_url="http://127.0.0.1:1",
        behaviour_space="processed", sampling=Sampling(), version_oldest=version, version_newest=version,
        num_prompt_tokens=2, num_response_tokens=1, captured_ms=0, linked_ms=0,
    )  # fmt: skip


def record(next_state: list[dict[str, Any]], turn_id: str = "t1") -> TurnRecord:
    return TurnRecord(
        turn_id=turn_id,
        messages=b'[{"role": "user", "content": "What is rain?"}]',
        answer=b'{"role": "assistant", "content": "Water."}',
        next_state=json.dumps(next_state).encode(),
        prompt_ids=pack([1, 2], "int32"), response_ids=pack([3], "int32"), logprobs=pack([-0.5], "float32"),
    )  # fmt: skip


async def linked(broker: MemoryBroker, next_state: list[dict[str, Any]], version: int = 3) -> Any:
    """A turn as the judge reads it."""
    await broker.ensure_groups()
    capture = Capture(turn_id="t1", engine="vllm", engine_url="", request=b"{}", start_ms=0, end_ms=1)
    await broker.append(CAPTURES, capture)
    (entry,) = await broker.read(CAPTURES, "c", 1, 1)
    await broker.commit(entry, TURNS, turn(version=version), record=record(next_state))
    (entry,) = await broker.read(TURNS, "c", 1, 1)
    return entry


def judge_of(broker: MemoryBroker, backend: Any, needs: SignalNeeds = COMBINE) -> TurnJudge:
    return TurnJudge(broker, backend, needs, JudgeMetrics(), drop_without_hint=True, max_staleness_steps=4)


REACTION = [{"role": "tool", "content": "ok"}, {"role": "user", "content": "Yes, one sentence, just how I like it."}]


async def test_forwards_with_the_whole_next_state() -> None:
    broker, backend = MemoryBroker(), Recorded()
    entry = await linked(broker, REACTION)
    outcome = await judge_of(broker, backend)(entry)
    assert isinstance(outcome, Forward)
    assert outcome.message.judgement.hint == "One sentence."  # type: ignore[union-attr]
    assert outcome.counters == ("hinted",)
    ((exchange, score, hint),) = backend.asked
    assert (score, hint) == (True, True)
    assert list(exchange.next_state) == REACTION
    assert await broker.commit(entry, JUDGED, outcome.message, counters=outcome.counters)
    await broker.close()


async def test_a_stale_turn_is_dropped_before_it_is_paid_for() -> None:
    broker, backend = MemoryBroker(), Recorded()
    entry = await linked(broker, REACTION, version=3)
    await broker.set_weights(WeightsState(current=7))
    assert isinstance(await judge_of(broker, backend)(entry), Forward)
    await broker.set_weights(WeightsState(current=8))
    outcome = await judge_of(broker, backend)(entry)
    assert isinstance(outcome, Discard) and outcome.reason == "stale"
    assert len(backend.asked) == 1
    await broker.close()


@pytest.mark.parametrize(
    "next_state",
    [
        [],
        [{"role": "user", "content": "  "}],
        [{"role": "system", "content": "x"}],
        [{"role": "tool", "content": ""}],
        [{"role": "user", "content": "[Request interrupted by user]"}],
        [{"role": "user", "content": "Error: Request timed out."}],
        [{"role": "tool", "content": "Command timed out after 60 s"}],
    ],
)
async def test_an_empty_reaction_is_not_judged(next_state: list[dict[str, Any]]) -> None:
    broker, backend = MemoryBroker(), Recorded()
    outcome = await judge_of(broker, backend)(await linked(broker, next_state))
    assert isinstance(outcome, Discard) and outcome.reason == "no_signal"
    assert backend.asked == []
    await broker.close()


async def test_a_freed_record_is_a_failure_of_the_message() -> None:
    broker = MemoryBroker()
    entry = await linked(broker, REACTION)
    gone = replace(entry, message=turn("gone"))
    with pytest.raises(RecordError, match="gone"):
        await judge_of(broker, Recorded())(gone)
    await broker.close()


async def test_rules_judge_a_turn_end_to_end() -> None:
    broker = MemoryBroker()
    entry = await linked(broker, REACTION)
    outcome = await judge_of(broker, RulesBackend(OpdSection()), OPD)(entry)
    assert isinstance(outcome, Forward)
    judgement = outcome.message.judgement  # type: ignore[union-attr]
    assert (judgement.score, judgement.hint, judgement.backend) == (1, "One sentence.", "rules")
    await broker.close()


async def judged_with_feedback(
    feedback: int, next_state: list[dict[str, Any]], needs: SignalNeeds = COMBINE
) -> tuple[Any, list[tuple[Exchange, bool, bool]]]:
    broker, backend = MemoryBroker(), Recorded()
    entry = await linked(broker, next_state)
    entry = replace(entry, message=structs.replace(entry.message, feedback_score=feedback))
    outcome = await judge_of(broker, backend, needs)(entry)
    await broker.close()
    return outcome, backend.asked


@pytest.mark.parametrize("feedback", [-1, 0, 1])
async def test_an_explicit_score_stands_in_for_the_judged_one(feedback: int) -> None:
    outcome, asked = await judged_with_feedback(feedback, REACTION)
    judgement = outcome.message.judgement
    assert (judgement.score, judgement.hint, judgement.backend) == (feedback, "One sentence.", "feedback+rules")
    assert [(score, hint) for _, score, hint in asked] == [(False, True)]


async def test_an_explicit_score_is_enough_without_words() -> None:
    outcome, asked = await judged_with_feedback(-1, [])
    assert (outcome.message.judgement.score, outcome.message.judgement.backend) == (-1, "feedback")
    assert asked == []
    outcome, asked = await judged_with_feedback(1, REACTION, BINARY)
    assert (outcome.message.judgement.score, asked) == (1, [])
    outcome, _ = await judged_with_feedback(0, REACTION, BINARY)
    assert outcome.reason == "neutral"
    outcome, _ = await judged_with_feedback(1, [], OPD)
    assert outcome.reason == "no_hint"
