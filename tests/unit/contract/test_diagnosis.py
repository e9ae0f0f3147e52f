"""Causes from figures alone: each is recognised where it holds, and not just beside that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hintloop_contract.broker import StreamCounts, WeightsState
from hintloop_contract.config.needs import SignalNeeds
from hintloop_contract.diagnosis import learning, traffic
from hintloop_contract.diagnosis.alarms import Hysteresis
from hintloop_contract.diagnosis.causes import EXPLANATIONS, Cause
from hintloop_contract.diagnosis.figures import Expected, Gaps, Recognised, RedisRoom, Seen
from hintloop_contract.diagnosis.recognise import EVERY, recognise

OPD = Expected(needs=SignalNeeds(score=False, hint=True), engine_urls=("http://a", "http://b"))
BINARY = replace(OPD, needs=SignalNeeds(score=True, hint=False))
UNHINTED = replace(OPD, drop_without_hint=False)


def steps(count: int, **figures: float | list[float]) -> list[dict[str, float]]:
    def value(figure: float | list[float], step: int) -> float:
        return figure[step] if isinstance(figure, list) else figure

    return [{"step": step + 1.0, **{k: value(v, step) for k, v in figures.items()}} for step in range(count)]


def ran(**figures: float | str) -> dict[str, str]:
    healthy = {
        "phase": "collecting",
        "step": 12,
        "grad_norm": 1.5,
        "tokens_trained": 500,
        "engine_difference_abs_mean": 0,
    }
    return {name: str(value) for name, value in {**healthy, **figures}.items()}


ADVANTAGES = {
    "advantage_mean": -0.2,
    "advantage_std": 0.7,
    "advantage_share_positive": 0.3,
    "advantage_share_negative": 0.7,
}
HEALTHY = Seen(
    funnel={"captured": 60, "linked": 50, "judged": 48, "hinted": 40, "scored": 40, "batched": 32, "trained": 32},
    drops={"link:no_next_state": 10, "judge:no_hint": 8, "link:side": 4},
    streams={"dead": StreamCounts(0, 0)},
    trainer=ran(effective_learning_rate=2e-5),
    weights=WeightsState(13),
    engines={"http://a": "13", "http://b": "13", "http://of-an-earlier-run": "2"},
    steps=steps(12, **ADVANTAGES, entropy=2.2, response_length=40.0, teacher_minus_student_mean=-0.2),
    hashes=[(11, "aa"), (12, "bb")],
    hints=[("Keep it short.", f"too long {i}") if i % 2 else ("Use a list.", f"as a list {i}") for i in range(30)],
    scores=[1, -1] * 30,
    next_states=[f"too long {i}" for i in range(20)],
    gaps=Gaps(num=50, num_near=1, longest_s=70.0),
    redis=RedisRoom(100, 1000),
)


@pytest.mark.parametrize("expected", [OPD, BINARY, UNHINTED])
def test_a_healthy_loop_shows_nothing(expected: Expected) -> None:
    assert recognise(HEALTHY, expected) == []


def test_a_loop_that_has_just_begun_shows_nothing() -> None:
    assert recognise(Seen(), OPD) == []


def seen(**changes: Any) -> Seen:
    return replace(HEALTHY, **changes)


def advised(mean: float, std: float, positive: float, negative: float) -> dict[str, Any]:
    figures = {"mean": mean, "std": std, "share_positive": positive, "share_negative": negative}
    return {"steps": steps(12, **{f"advantage_{name}": value for name, value in figures.items()})}


LOST = {"captured": 60, "linked": 50}
CASES: list[tuple[Cause, dict[str, Any], Expected]] = [
    (Cause.ADVANTAGES_ALL_ZERO, advised(0.0, 0.0, 0.0, 0.0), OPD),
    (Cause.ADVANTAGES_ONE_SIGN, advised(-1.0, 0.0, 0.0, 1.0), OPD),
    (Cause.ADVANTAGES_EXPLODE, advised(-9.0, 14.0, 0.1, 0.9), OPD),
    (Cause.ENGINE_DRIFT, {"trainer": ran(engine_difference_abs_mean=0.011), "steps": []}, OPD),
    (Cause.ENGINE_DRIFT, {"steps": steps(12, engine_difference_abs_mean=0.011, staleness_max=[0] * 12)}, OPD),
    (Cause.ENGINE_DRIFT, {"steps": steps(12, engine_difference_abs_mean=0.3, staleness_max=[0, 1, 1] * 4)}, OPD),
    (Cause.ENTROPY_FALLS, {"steps": steps(12, entropy=[2.0] * 7 + [0.2] * 5)}, OPD),
    (Cause.LENGTH_COLLAPSES, {"steps": steps(12, response_length=[40.0] * 7 + [4.0] * 5)}, OPD),
    (Cause.LOSS_MASK_ZERO, {"trainer": ran(grad_norm=0.0)}, OPD),
    (Cause.LOSS_MASK_ZERO, {"trainer": ran(tokens_trained=0)}, OPD),
    (Cause.LEARNING_RATE_ZERO, {"trainer": ran(effective_learning_rate=1e-12)}, OPD),
    (Cause.LEARNING_RATE_ZERO, {"hashes": [(11, "aa"), (12, "aa")]}, OPD),
    (Cause.NO_IMPROVEMENT, {"steps": steps(30, teacher_minus_student_mean=[-0.2 - 0.02 * i for i in range(30)])}, OPD),
    (Cause.NO_IMPROVEMENT, {"steps": steps(30, score_mean=[0.5 - 0.02 * i for i in range(30)])}, BINARY),
    (Cause.HINTS_REPEAT, {"hints": [("Be concise.", f"other {i}") for i in range(20)]}, OPD),
    (Cause.JUDGE_ONE_VALUE, {"scores": [0] * 50}, BINARY),
    (Cause.TRAINER_AWAY, {"trainer": ran(phase="failed")}, OPD),
    (Cause.TRAINER_STUCK, {"trainer": ran(phase="counting failed")}, OPD),
    (Cause.WEIGHTS_NEVER_PUBLISHED, {"trainer": ran(phase="publishing failed", detail="no answer")}, OPD),
    (Cause.WEIGHTS_NEVER_PUBLISHED, {"hashes": [(2, "aa")]}, OPD),
    (Cause.WEIGHTS_NEVER_PUBLISHED, {"weights": WeightsState(), "hashes": []}, OPD),
    (Cause.TRAINING_PAUSED, {"trainer": ran(phase="paused")}, OPD),
    (Cause.GATE_HOLDS, {"trainer": ran(gate_holds=1, alarm="answers are longer"), "hashes": [(2, "aa")]}, OPD),
    (Cause.ENGINE_BEHIND, {"engines": {"http://a": "13", "http://b": "12"}}, OPD),
    (Cause.DEAD_LETTERS, {"streams": {"dead": StreamCounts(2, 0)}}, OPD),
    (Cause.REDIS_FULL, {"redis": RedisRoom(960, 1000)}, OPD),
    (Cause.REDIS_FULL, {"drops": {"capture:backpressure": 3}}, OPD),
    (Cause.UNHINTED_TURNS_TRAINED, {"funnel": {"captured": 60, "judged": 40, "hinted": 4, "scored": 40}}, UNHINTED),
    (Cause.TIMEOUTS_AS_NEXT_STATE, {"next_states": ["Error: the tool call took too long."] * 6}, OPD),
    (
        Cause.TIMEOUTS_AS_NEXT_STATE,
        {
            "funnel": LOST,
            "drops": {"judge:no_signal": 40},
            "details": {"judge:no_signal": ["… or only a timeout or interruption"]},
        },
        OPD,
    ),
    (Cause.SESSION_TIMEOUT_SHORT, {"gaps": Gaps(num=10, num_late=8, late_max_s=900.0)}, OPD),
    (Cause.SESSION_TIMEOUT_SHORT, {"gaps": Gaps(num=30, num_near=6, longest_s=299.0)}, OPD),
    (Cause.SAMPLES_STALE, {"funnel": LOST, "drops": {"judge:stale": 10, "train:stale": 15}}, OPD),
    (Cause.SAMPLES_STALE, {"funnel": LOST, "drops": {"link:backpressure": 40}}, OPD),
    (
        Cause.SAMPLES_STALE,
        {
            "funnel": {"captured": 52, "linked": 14, "scored": 14},
            "drops": {"link:backpressure": 14, "link:mixed_version": 24},
        },
        OPD,
    ),
    # Answers across a release are of two versions, not too old: another setting lets them in.
    (
        Cause.TURNS_DROPPED,
        {"funnel": {"captured": 39, "linked": 8}, "drops": {"link:backpressure": 1, "link:mixed_version": 27}},
        OPD,
    ),
    (Cause.TURNS_NOT_CONTINUED, {"funnel": {"captured": 40}, "drops": {"link:no_next_state": 40}}, OPD),
    (
        Cause.TURNS_NOT_CONTINUED,
        {"funnel": {"captured": 18}, "drops": {"link:no_next_state": 8, "link:retry": 10}},
        OPD,
    ),
    (Cause.ALL_SIDE_CALLS, {"funnel": {"captured": 40}, "drops": {"link:side": 40}}, OPD),
    (Cause.NO_HINTS, {"funnel": LOST, "drops": {"judge:no_hint": 45}}, OPD),
    (
        Cause.VOTES_CUT,
        {
            "funnel": LOST,
            "drops": {"judge:judge_failed": 45},
            "details": {"judge:judge_failed": ["hint: cut by the token limit"]},
        },
        OPD,
    ),
    (Cause.RENDERING_DIFFERS, {"funnel": LOST, "drops": {"teach:render_mismatch": 45}}, OPD),
    (Cause.PRM_SHIFTED, {"funnel": LOST, "drops": {"teach:teacher_misaligned": 45}}, OPD),
    (
        Cause.TEACHER_CONTEXT_SHORT,
        {
            "funnel": LOST,
            "drops": {"teach:too_long": 45},
            "details": {"teach:too_long": ["1300 tokens; the PRM engine takes 1000"]},
        },
        OPD,
    ),
    (Cause.TURNS_DROPPED, {"funnel": LOST, "drops": {"teach:too_long": 45}}, OPD),
    (
        Cause.NO_SAMPLES,
        {"funnel": {"captured": 40, "linked": 38}, "drops": {"judge:no_hint": 19, "teach:too_long": 19}},
        OPD,
    ),
]


@pytest.mark.parametrize(("cause", "changes", "expected"), CASES, ids=lambda value: str(value)[:40])
def test_what_holds_is_recognised_alone_with_evidence(
    cause: Cause, changes: dict[str, Any], expected: Expected
) -> None:
    (found,) = recognise(seen(**changes), expected)
    assert found.cause is cause
    assert found.seen and found.evidence


NEARLY: list[dict[str, Any]] = [
    {"trainer": ran(engine_difference_abs_mean=0.009), "steps": []},
    {"trainer": ran(engine_difference_abs_mean=0.3, staleness_max=1), "steps": []},
    {"steps": steps(12, engine_difference_abs_mean=0.3, staleness_max=1)},
    {"steps": steps(9, entropy=[2.0] * 4 + [0.1] * 5, response_length=[40.0] * 4 + [1.0] * 5)},
    {"steps": steps(12, entropy=[2.0] * 7 + [0.5] * 5, response_length=[40.0] * 7 + [12.0] * 5)},
    {"hints": [("Be concise.", "too long") for _ in range(40)]},
    {"hints": [("Be concise.", f"other {i}") for i in range(19)]},
    {"steps": steps(29, teacher_minus_student_mean=[-0.2 - 0.02 * i for i in range(29)])},
    {"weights": WeightsState(13, 14), "engines": {"http://a": "13", "http://b": "14"}},
    {"funnel": {"captured": 5}, "drops": {"link:side": 5}},
    {"funnel": {"captured": 40, "linked": 1}, "drops": {"link:side": 39}},
    {"funnel": {"captured": 60, "linked": 20}, "drops": {"link:no_next_state": 40}},
    {"next_states": ["Explain in detail how a network timeout is handled, " * 8] * 20},
    {"gaps": Gaps(num=60, num_late=6, num_near=6, late_max_s=900.0)},
    {"gaps": Gaps(num=1, num_late=4, late_max_s=40_000.0)},
]


@pytest.mark.parametrize("changes", NEARLY, ids=lambda value: str(value)[:60])
def test_what_lies_on_the_edge_is_not(changes: dict[str, Any]) -> None:
    assert recognise(seen(**changes), OPD) == []


def test_a_few_details_do_not_name_the_cause_of_the_rest() -> None:
    def of(reason: str, details: list[str]) -> Recognised:
        (found,) = recognise(seen(funnel=LOST, drops={reason: 45}, details={reason: details}), OPD)
        return found

    few = of("judge:no_signal", ["no score", "… or only a timeout", "no score", "no score"])
    assert (few.cause, few.grave) == (Cause.TURNS_DROPPED, False)
    most = of("judge:no_signal", ["no score", "… or only a timeout", "… or only a timeout"])
    assert most.cause is Cause.TIMEOUTS_AS_NEXT_STATE
    assert "only a timeout" in most.seen
    assert of("judge:judge_failed", ["no answer", "hint: cut by the token limit"]).cause is Cause.VOTES_FAIL
    cut = of("judge:judge_failed", ["no answer", *["hint: cut by the token limit"] * 2])
    assert cut.cause is Cause.VOTES_CUT
    assert "cut by the token limit" in cut.seen


def test_every_recogniser_has_a_case() -> None:
    covered = {
        recogniser for recogniser in EVERY for _, changes, expected in CASES if recogniser(seen(**changes), expected)
    }
    assert covered == set(EVERY)


def test_an_alarm_needs_two_looks_and_ends_after_six_without() -> None:
    hysteresis = Hysteresis()
    found = [Recognised(Cause.NO_HINTS, "none", {"a": 1})]
    assert hysteresis.look(found, 1000) == ([], [])
    ((alarm,), ended) = hysteresis.look(found, 2000)
    assert (alarm.cause, alarm.since_ms, ended) == ("no_hints", 1000, [])
    for look in range(5):
        assert [a.cause for a in hysteresis.look([], 3000 + look)[0]] == ["no_hints"]
    active, (past,) = hysteresis.look([], 9000)
    assert (active, past.cause, past.since_ms, past.until_ms) == ([], "no_hints", 1000, 9000)


def test_a_figure_on_the_edge_does_not_flap() -> None:
    hysteresis = Hysteresis()
    found = [Recognised(Cause.ENGINE_DRIFT, "0.0101", {})]
    states = [bool(hysteresis.look(found if look % 2 else [], look)[0]) for look in range(40)]
    assert not any(states), "every second look alone raises nothing"
    hysteresis.look(found, 40)
    hysteresis.look(found, 41)
    states = [bool(hysteresis.look(found if look % 2 else [], look)[0]) for look in range(42, 80)]
    assert all(states), "and what was raised stands"


def test_another_takes_alarms_over() -> None:
    one, two = Hysteresis(), Hysteresis()
    found = [Recognised(Cause.NO_HINTS, "none", {})]
    one.look(found, 1)
    active, _ = one.look(found, 2)
    two.restore(active)
    assert two.look(found, 3)[0][0].since_ms == 1


def test_movement_is_read_in_the_methods_own_direction() -> None:
    falling = seen(steps=steps(12, teacher_minus_student_mean=[-0.3 + 0.02 * i for i in range(12)]))
    moved = learning.movement(falling, OPD)
    assert moved is not None and moved.improves and moved.name.startswith("|teacher - student|")
    scores = seen(steps=steps(12, score_mean=[-0.5 + 0.1 * i for i in range(12)]))
    assert (moved := learning.movement(scores, BINARY)) is not None and moved.improves
    topk = replace(OPD, needs=SignalNeeds(score=False, hint=True, top_k=16))
    losses = seen(steps=steps(12, loss_policy=[0.5 + 0.01 * i for i in range(12)]))
    assert (moved := learning.movement(losses, topk)) is not None and moved.gained < 0
    assert learning.movement(seen(steps=steps(9, teacher_minus_student_mean=-0.1)), OPD) is None


@pytest.mark.parametrize(
    "text",
    [
        "Request timed out.",
        "[harness] the command exceeded the time limit",
        "Connection reset by peer",
        "[Request interrupted by user]",
        "请求超时",
        "Error: deadline exceeded",
        "tool call was cancelled",
    ],
)
def test_words_of_a_timeout(text: str) -> None:
    assert traffic.TIMEOUT.search(text)


@pytest.mark.parametrize("text", ["Too long. Keep it short please.", "What is a peer?", "The connection is fine"])
def test_words_of_no_timeout(text: str) -> None:
    assert not traffic.TIMEOUT.search(text)


def test_every_cause_is_explained() -> None:
    assert set(EXPLANATIONS) == set(Cause)
    assert all(told.cause and told.fix for told in EXPLANATIONS.values())
