"""The null-hint control: equal weights show nothing, other weights and shifted scores show."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hintloop_contract.broker import WeightsState
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import LinkedTurn, Sampling, TurnRecord
from hintloop_contract.tensors import pack
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_teacher import control
from hintloop_teacher.control import RecentTurns, compared, null_hint_control
from hintloop_teacher.dialects.base import EngineFacts, Question
from hintloop_teacher.errors import RefusedError
from hintloop_teacher.forced import RawScores
from hintloop_teacher.scoring import ForcedScorer

from .fake_dialect import FakeDialect, score_of


class Vocabulary:
    size = 1000
    fingerprint = "f"

    def encode(self, text: str) -> list[int]:
        return [ord(char) % 900 for char in text]


class Engine:
    report = object()
    vocabulary = Vocabulary()

    def __init__(self, dialect: FakeDialect) -> None:
        self.scorer = scorer_of(dialect)

    async def prepared(self) -> ForcedScorer:
        return self.scorer


class Deps:
    """What the control reads of the teacher."""

    renderer: Any = None

    def __init__(self, broker: MemoryBroker, dialect: FakeDialect) -> None:
        self.config = Config.model_validate({"model": {"dtype": "float32"}})
        self.broker = broker
        self.engine = Engine(dialect)
        self.recent = RecentTurns()


def scorer_of(dialect: FakeDialect) -> ForcedScorer:
    facts = EngineFacts("fake", "1", "teacher", 1024, "v1")
    return ForcedScorer(dialect, facts, vocabulary_size=1000, max_concurrency=2)


def turn(version: int = 3, **changes: Any) -> LinkedTurn:
    values: dict[str, Any] = {
        "turn_id": "t", "session_id": "s", "turn_index": 0, "engine": "vllm", "engine_url": "http://127.0.0.1:9",
        "behaviour_space": "processed", "sampling": Sampling(), "version_oldest": version, "version_newest": version,
        "num_prompt_tokens": 2, "num_response_tokens": 3, "captured_ms": 0, "linked_ms": 0,
    }  # fmt: skip
    return LinkedTurn(**{**values, **changes})


def record(offset: float = 0.0) -> TurnRecord:
    ids = [5, 6, 7, 8]
    logprobs = [score_of(6, 7) + offset, score_of(7, 8)]
    return TurnRecord(
        turn_id="t", messages=b"[]", answer=b"{}", prompt_ids=pack(ids[:2], "int32"),
        response_ids=pack(ids[2:], "int32"), logprobs=pack(logprobs, "float32"),
    )  # fmt: skip


async def run(deps: Deps) -> control.ControlReport:
    return await null_hint_control(deps)  # type: ignore[arg-type]


@pytest.fixture
def deps(monkeypatch: pytest.MonkeyPatch) -> Deps:
    async def policy_scorer(deps: Any, url: str) -> ForcedScorer:
        return scorer_of(FakeDialect())

    monkeypatch.setattr(control, "_policy_scorer", policy_scorer)
    return Deps(MemoryBroker(), FakeDialect())


async def test_the_prm_engine_is_held_to_what_it_said_of_these_weights(deps: Deps) -> None:
    assert (await run(deps)).prm.status == "recorded"
    again = await run(deps)
    assert (again.prm.status, again.prm.mean, again.passed) == ("equal", 0.0, True)
    deps.engine.scorer.dialect.shift = 1  # type: ignore[attr-defined]
    shifted = await run(deps)
    assert shifted.prm.status == "differs" and shifted.passed is False
    assert shifted.prm.largest is not None and shifted.prm.largest > 0.1


@pytest.mark.parametrize(("engine_dtype", "status"), [(None, "differs"), ("bfloat16", "equal")])
async def test_the_tolerance_is_that_of_the_engines_dtype(deps: Deps, engine_dtype: str | None, status: str) -> None:
    deps.config = Config.model_validate({"model": {"dtype": "float32"}, "prm": {"engine_dtype": engine_dtype}})
    await run(deps)
    dialect, score = deps.engine.scorer.dialect, FakeDialect.score

    async def rounded(model: str, question: Question) -> RawScores:
        raw = await score(dialect, model, question)  # type: ignore[arg-type]
        return RawScores(raw.token_ids, [None if value is None else value - 0.02 for value in raw.logprobs])

    dialect.score = rounded  # type: ignore[method-assign]
    assert (await run(deps)).prm.status == status


async def test_other_weights_have_another_reference(deps: Deps, monkeypatch: pytest.MonkeyPatch) -> None:
    await run(deps)

    async def facts(self: FakeDialect, wanted: str) -> EngineFacts:
        return EngineFacts("fake", "1", "teacher", 1024, "v2")

    monkeypatch.setattr(FakeDialect, "facts", facts)
    assert (await run(deps)).prm.status == "recorded"


async def test_the_policy_is_held_to_its_captured_answers(deps: Deps) -> None:
    nothing = await run(deps)
    assert nothing.policy.status == "not_run" and "no turn" in nothing.policy.detail
    assert nothing.passed is None
    deps.recent.add(turn(), record())
    await deps.broker.set_weights(WeightsState(current=3))
    assert (await run(deps)).policy.status == "equal"
    deps.recent.add(turn(), record(offset=0.5))
    wrong = await run(deps)
    assert (wrong.policy.status, wrong.passed) == ("differs", False)
    assert wrong.policy.largest == pytest.approx(0.5, abs=1e-4)
    await deps.broker.set_weights(WeightsState(current=4))
    assert (await run(deps)).policy.status == "not_run"
    await deps.broker.set_weights(WeightsState(current=3, updating=4))
    assert "published" in (await run(deps)).policy.detail


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"version_oldest": 2}, False),
        ({"sampling": Sampling(temperature=0.7)}, False),
        ({"sampling": Sampling(temperature=0.7), "behaviour_space": "raw"}, True),
        ({"sampling": Sampling(top_p=0.9)}, False),
        ({"sampling": Sampling(top_p=0.9), "behaviour_space": "after_temperature"}, True),
    ],
)
def test_only_what_is_at_temperature_1_and_of_one_version_is_compared(changes: dict[str, Any], kept: bool) -> None:
    recent = RecentTurns()
    recent.add(turn(**changes), record())
    assert bool(recent.turns) is kept


def test_a_missing_number_is_not_small() -> None:
    scores = [np.asarray([np.nan, -1.0], np.float32)]
    assert compared(scores, [np.asarray([-1.0, -1.0], np.float32)], "bfloat16", "x").status == "differs"
    assert compared(scores, [np.asarray([-1.0], np.float32)], "float32", "x").status == "differs"


async def test_a_policy_engine_that_is_away_leaves_its_side_not_run(
    deps: Deps, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refusing(deps: Any, url: str) -> ForcedScorer:
        raise RefusedError(url, 404, "no")

    monkeypatch.setattr(control, "_policy_scorer", refusing)
    deps.recent.add(turn(), record())
    report = await run(deps)
    assert (report.policy.status, report.prm.status) == ("not_run", "recorded")
    assert dataclasses.asdict(report)["policy"]["mean"] is None
