"""The llm backend against an endpoint that answers as told."""

import asyncio
import json
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hintloop_contract.config.schema import OpdSection, PrmSection
from hintloop_contract.errors import DependencyError
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_judge import endpoint as endpoint_module
from hintloop_judge.cache import VoteCache
from hintloop_judge.conversation import Exchange
from hintloop_judge.endpoint import ChatEndpoint
from hintloop_judge.llm import LlmBackend
from hintloop_judge.metrics import JudgeMetrics
from hintloop_judge.probing import Abilities
from hintloop_judge.prompts import load_prompts

from .conftest import FakeEndpoint, completion

EXCHANGE = Exchange(
    messages=({"role": "user", "content": "What is rain?"},),
    answer={"role": "assistant", "content": "Rain is water that falls from clouds."},
    next_state=({"role": "user", "content": "Too long."},),
)


def backend_of(
    endpoint: FakeEndpoint,
    *,
    prm: dict[str, Any] | None = None,
    opd: dict[str, Any] | None = None,
    broker: MemoryBroker | None = None,
) -> LlmBackend:
    section = PrmSection.model_validate({"prm_url": endpoint.url, **(prm or {})})
    settings = OpdSection.model_validate({"judge_temperature": 0.5, **(opd or {})})
    metrics = JudgeMetrics()
    chat = ChatEndpoint(section, metrics, wait_s=0.01)
    cache = VoteCache(broker, ttl_s=section.judge_cache_s, max_entries=section.judge_cache_entries) if broker else None
    return LlmBackend(settings, section, chat, load_prompts(), metrics, cache)


def is_hint(body: dict[str, Any]) -> bool:
    return "[HINT_START]" in body["messages"][0]["content"] or '{"hint"' in body["messages"][0]["content"]


def by_markers(score: str, hint: str) -> Any:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if "response_format" in body:
            return 400, {"error": "response_format is not supported"}
        return 200, completion(hint if is_hint(body) else score)

    return answer


async def test_asks_every_vote_and_falls_back_to_markers(endpoint: FakeEndpoint) -> None:
    endpoint.answer = by_markers("\\boxed{-1}", "[HINT_START]One short sentence.[HINT_END]")
    backend = backend_of(endpoint, opd={"judge_vote_count": 3}, prm={"hint_max_tokens": 77, "prm_api_key": "sk-x"})
    opinion = await backend.judge(EXCHANGE, score=True, hint=True)
    assert (opinion.judgement.score, opinion.judgement.hint) == (-1, "One short sentence.")
    assert opinion.failed == frozenset()
    assert opinion.judgement.model == "judge-model"
    schema_probe, choices_probe, *asked = endpoint.requests
    assert "response_format" in schema_probe
    assert (choices_probe["n"], choices_probe["temperature"]) == (2, 1.0)
    assert not any("n" in body for body in asked)
    assert [is_hint(body) for body in asked].count(True) == 3
    assert len(asked) == 6
    assert {body["max_tokens"] for body in asked} == {77}
    assert {body["temperature"] for body in asked if is_hint(body)} == {0.3}
    assert {body["temperature"] for body in asked if not is_hint(body)} == {0.5}
    assert {headers["Authorization"] for headers in endpoint.headers} == {"Bearer sk-x"}
    await backend.close()


async def test_structured_output_is_used_where_the_engine_takes_it(endpoint: FakeEndpoint) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if "response_format" not in body:
            return 400, {"error": "n is not supported"}
        fields = body["response_format"]["json_schema"]["schema"]["properties"]
        value: dict[str, Any] = {"score": 1} if "score" in fields else {"hint": "Keep it to one sentence."}
        return 200, completion(json.dumps(value))

    endpoint.answer = answer
    backend = backend_of(endpoint)
    opinion = await backend.judge(EXCHANGE, score=True, hint=True)
    assert backend.abilities == Abilities(structured_output=True, several_choices=False)
    assert (opinion.judgement.score, opinion.judgement.hint) == (1, "Keep it to one sentence.")
    await backend.close()


async def test_an_engine_that_ignores_the_schema_gets_markers(endpoint: FakeEndpoint) -> None:
    endpoint.answer = lambda body: (200, completion("Sure! \\boxed{1}"))
    backend = backend_of(endpoint)
    opinion = await backend.judge(EXCHANGE, score=True, hint=False)
    assert backend.abilities == Abilities(structured_output=False, several_choices=False)
    assert opinion.judgement.score == 1
    await backend.close()


async def test_only_what_is_wanted_is_asked(endpoint: FakeEndpoint) -> None:
    endpoint.answer = by_markers("\\boxed{1}", "[NO_HINT]")
    backend = backend_of(endpoint, opd={"enable_hint_extraction": False})
    opinion = await backend.judge(EXCHANGE, score=False, hint=True)
    assert opinion.judgement.votes == ()
    assert opinion.failed == frozenset()
    await backend.close()


async def test_equal_votes_are_asked_once(endpoint: FakeEndpoint) -> None:
    endpoint.answer = by_markers("\\boxed{1}", "[NO_HINT]")
    backend = backend_of(endpoint, opd={"judge_temperature": 0.0, "judge_vote_count": 5})
    opinion = await backend.judge(EXCHANGE, score=True, hint=True)
    assert [vote.score for vote in opinion.judgement.votes if vote.score is not None] == [1]
    assert len(opinion.judgement.votes) == 6
    await backend.close()


async def test_failed_votes_end_the_quorum(endpoint: FakeEndpoint) -> None:
    endpoint.answer = by_markers("I cannot say.", "[HINT_START]Use one sentence.[HINT_END]")
    backend = backend_of(endpoint)
    opinion = await backend.judge(EXCHANGE, score=True, hint=True)
    assert opinion.judgement.score is None
    assert opinion.failed == {"score"}
    assert "no \\boxed{}" in opinion.why_failed()
    assert opinion.judgement.hint == "Use one sentence."
    await backend.close()


@pytest.mark.parametrize(("quorum", "score"), [(0.5, 1), (1.0, None)])
async def test_so_many_votes_must_succeed(endpoint: FakeEndpoint, quorum: float, score: int | None) -> None:
    texts = iter(["\\boxed{1}", "I cannot say.", "\\boxed{1}"])

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if "response_format" in body or "n" in body:
            return 400, {"error": "not supported"}
        return 200, completion(next(texts))

    endpoint.answer = answer
    backend = backend_of(endpoint, prm={"quorum": quorum})
    opinion = await backend.judge(EXCHANGE, score=True, hint=False)
    assert len(opinion.judgement.votes) == 3
    assert opinion.judgement.score == score
    await backend.close()


async def test_a_refused_question_is_a_failed_vote(endpoint: FakeEndpoint) -> None:
    endpoint.answer = lambda body: (400, {"error": "prompt is longer than the context"})
    backend = backend_of(endpoint)
    opinion = await backend.judge(EXCHANGE, score=True, hint=False)
    assert opinion.failed == {"score"}
    assert "longer than the context" in opinion.why_failed()
    await backend.close()


async def test_overload_is_tried_again(endpoint: FakeEndpoint) -> None:
    count = 0

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        nonlocal count
        count += 1
        return (429 if count % 2 else 503, {}) if count <= 2 else (200, completion("\\boxed{1}"))

    endpoint.answer = answer
    backend = backend_of(endpoint, opd={"judge_vote_count": 1})
    assert (await backend.judge(EXCHANGE, score=True, hint=False)).judgement.score == 1
    await backend.close()


@pytest.mark.parametrize("status", [429, 500, 503, 401, 404])
async def test_an_engine_that_stays_away_is_a_dependency(endpoint: FakeEndpoint, status: int) -> None:
    endpoint.answer = lambda body: (status, {"error": "no"})
    backend = backend_of(endpoint)
    with pytest.raises(DependencyError, match=str(status)):
        await backend.judge(EXCHANGE, score=True, hint=True)
    await asyncio.sleep(0.2)
    await backend.close()


async def test_a_closed_port_is_a_dependency() -> None:
    section = PrmSection(prm_url="http://127.0.0.1:9")
    chat = ChatEndpoint(section, wait_s=0.01)
    backend = LlmBackend(OpdSection(), section, chat, load_prompts(), JudgeMetrics())
    assert await backend.ready() is False
    with pytest.raises(DependencyError):
        await backend.judge(EXCHANGE, score=True, hint=True)
    await backend.close()


@pytest.mark.parametrize(("max_concurrency", "most_running"), [(1, 1), (3, 3), (8, 8), (20, 10)])
async def test_at_most_so_many_at_once(endpoint: FakeEndpoint, max_concurrency: int, most_running: int) -> None:
    endpoint.answer = by_markers("\\boxed{1}", "[NO_HINT]")
    backend = backend_of(
        endpoint, prm={"max_concurrency": max_concurrency, "hint_temperature": 0.5}, opd={"judge_vote_count": 5}
    )
    await backend.ready()
    endpoint.slow_s, endpoint.together = 0.1, most_running
    async with asyncio.timeout(60):
        assert (await backend.judge(EXCHANGE, score=True, hint=True)).judgement.score == 1
    assert endpoint.most_running == most_running
    await backend.close()


async def test_one_request_gives_all_votes_where_the_engine_gives_several_choices(endpoint: FakeEndpoint) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if "response_format" in body:
            return 400, {}
        texts = ["\\boxed{1}", "\\boxed{-1}", "no box", "\\boxed{-1}", "\\boxed{-1}"]
        return 200, completion(*texts[: body.get("n", 1)])

    endpoint.answer = answer
    backend = backend_of(endpoint, opd={"judge_vote_count": 5})
    opinion = await backend.judge(EXCHANGE, score=True, hint=False)
    assert backend.abilities == Abilities(structured_output=False, several_choices=True)
    assert [body.get("n") for body in endpoint.requests] == [None, 2, 5]
    assert [vote.score for vote in opinion.judgement.votes] == [1, -1, None, -1, -1]
    assert opinion.judgement.score == -1
    await backend.close()


async def test_choices_that_do_not_come_are_failed_votes(endpoint: FakeEndpoint) -> None:
    endpoint.answer = lambda body: (200, completion(*["\\boxed{1}"] * min(body.get("n", 1), 2)))
    backend = backend_of(endpoint, opd={"judge_vote_count": 5})
    opinion = await backend.judge(EXCHANGE, score=True, hint=False)
    assert [vote.failed for vote in opinion.judgement.votes] == [None] * 2 + ["only 2 of 5 choices came"] * 3
    assert opinion.failed == {"score"}
    await backend.close()


async def test_several_choices_are_not_tried_when_one_vote_is_wanted(endpoint: FakeEndpoint) -> None:
    backend = backend_of(endpoint, opd={"judge_vote_count": 1})
    await backend.judge(EXCHANGE, score=True, hint=False)
    assert not any("n" in body for body in endpoint.requests)
    await backend.close()


async def test_a_replay_costs_nothing(endpoint: FakeEndpoint) -> None:
    endpoint.answer = by_markers("\\boxed{-1}", "[HINT_START]One short sentence.[HINT_END]")
    broker = MemoryBroker()
    first, again = (backend_of(endpoint, broker=broker) for _ in range(2))
    paid = await first.judge(EXCHANGE, score=True, hint=True)
    assert await again.ready()
    endpoint.requests.clear()
    assert await first.judge(EXCHANGE, score=True, hint=True) == paid
    assert await again.judge(EXCHANGE, score=True, hint=True) == paid
    # Another choice among the same votes is free too.
    shortest = backend_of(endpoint, broker=broker, opd={"hint_selection": "shortest"})
    assert await shortest.ready()
    endpoint.requests.clear()
    assert await shortest.judge(EXCHANGE, score=True, hint=True) == paid
    assert endpoint.requests == []
    for backend in (first, again, shortest):
        await backend.close()
    await broker.close()


@pytest.mark.parametrize(
    ("prm", "opd", "exchange"),
    [
        ({"judge_model": "other"}, {}, EXCHANGE),
        ({"hint_max_tokens": 64}, {}, EXCHANGE),
        ({}, {"judge_temperature": 0.6}, EXCHANGE),
        ({}, {"judge_vote_count": 2}, EXCHANGE),
        ({}, {}, replace(EXCHANGE, next_state=({"role": "user", "content": "Too short."},))),
        ({}, {}, replace(EXCHANGE, next_state=({"role": "tool", "content": "Too long."},))),
        ({"judge_cache_s": 0}, {}, EXCHANGE),
    ],
)
async def test_anything_that_shapes_the_votes_asks_anew(
    endpoint: FakeEndpoint, prm: dict[str, Any], opd: dict[str, Any], exchange: Exchange
) -> None:
    endpoint.answer = by_markers("\\boxed{-1}", "[NO_HINT]")
    broker = MemoryBroker()
    first, other = backend_of(endpoint, broker=broker), backend_of(endpoint, broker=broker, prm=prm, opd=opd)
    await first.judge(EXCHANGE, score=True, hint=False)
    assert await other.ready()
    endpoint.requests.clear()
    await other.judge(exchange, score=True, hint=False)
    assert endpoint.requests
    await first.close()
    await other.close()
    await broker.close()


async def test_votes_without_quorum_are_not_kept(endpoint: FakeEndpoint) -> None:
    broker = MemoryBroker()
    backend = backend_of(endpoint, broker=broker)
    endpoint.answer = by_markers("no box", "[NO_HINT]")
    assert (await backend.judge(EXCHANGE, score=True, hint=False)).failed == {"score"}
    endpoint.answer = by_markers("\\boxed{1}", "[NO_HINT]")
    assert (await backend.judge(EXCHANGE, score=True, hint=False)).judgement.score == 1
    await backend.close()
    await broker.close()


async def test_a_lost_cache_costs_votes_and_nothing_else(endpoint: FakeEndpoint) -> None:
    class Away(MemoryBroker):
        async def kept(self, kind: str, name: str) -> bytes | None:
            raise DependencyError("redis", "away")

        async def keep(self, kind: str, name: str, value: bytes, *, ttl_s: int, max_entries: int) -> None:
            raise DependencyError("redis", "away")

    broker = Away()
    backend = backend_of(endpoint, broker=broker)
    endpoint.answer = by_markers("\\boxed{1}", "[NO_HINT]")
    assert (await backend.judge(EXCHANGE, score=True, hint=False)).judgement.score == 1
    await backend.close()
    await broker.close()


async def test_the_judge_has_an_address_and_a_key_of_its_own(endpoint: FakeEndpoint) -> None:
    elsewhere = {"prm_url": "http://127.0.0.1:9", "judge_url": endpoint.url, "prm_api_key": "a", "judge_api_key": "b"}
    backend = backend_of(endpoint, prm=elsewhere)
    assert (await backend.judge(EXCHANGE, score=True, hint=False)).judgement.score == 0
    assert {headers["Authorization"] for headers in endpoint.headers} == {"Bearer b"}
    assert backend.describe()["url"] == f"{endpoint.url}/v1"
    await backend.close()


async def test_a_circuit_opens_after_failures_in_a_row(endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr("purgatory.domain.model.time", SimpleNamespace(time=lambda: now[0]))
    endpoint.answer = lambda body: (500, {})
    backend = backend_of(endpoint, prm={"circuit_failures": 3, "circuit_open_s": 60.0}, opd={"judge_vote_count": 1})
    with pytest.raises(DependencyError, match="left alone"):
        await backend.judge(EXCHANGE, score=True, hint=False)
    num_asked = len(endpoint.requests)
    assert num_asked == 3
    assert backend.describe()["circuit"] == "opened"
    assert not await backend.ready()
    assert len(endpoint.requests) == num_asked
    now[0] += 61
    # The list of models answers, questions do not: not ready.
    assert not await backend.ready()
    endpoint.answer = lambda body: (200, completion("\\boxed{1}"))
    now[0] += 61
    assert await backend.ready()
    assert backend.describe()["problem"] is None
    assert (await backend.judge(EXCHANGE, score=True, hint=False)).judgement.score == 1
    await backend.close()


async def test_a_refused_question_opens_no_circuit(endpoint: FakeEndpoint) -> None:
    endpoint.answer = lambda body: (400, {})
    backend = backend_of(endpoint, prm={"circuit_failures": 1})
    assert (await backend.judge(EXCHANGE, score=True, hint=True)).failed == {"score", "hint"}
    assert backend.describe()["circuit"] == "closed"
    await backend.close()


async def test_all_tries_together_have_a_deadline(endpoint: FakeEndpoint) -> None:
    endpoint.slow_s = 60.0
    backend = backend_of(endpoint, prm={"timeout_s": 0.2, "deadline_s": 0.5, "judge_model": "m"})
    started = time.monotonic()
    with pytest.raises(DependencyError, match="deadline_s"):
        await backend.judge(EXCHANGE, score=True, hint=False)
    assert 0.4 < time.monotonic() - started < endpoint.slow_s / 2
    await backend.close()


async def test_an_engine_may_say_when_to_come_again(endpoint: FakeEndpoint) -> None:
    endpoint.answer = lambda body: (200, completion("\\boxed{1}")) if len(endpoint.requests) > 1 else (429, {})
    endpoint.retry_after = "1"
    backend = backend_of(endpoint, opd={"judge_vote_count": 1})
    started = time.monotonic()
    assert await backend.ready()
    assert time.monotonic() - started >= 1
    await backend.close()


async def test_a_retry_after_that_is_no_number_is_none(endpoint: FakeEndpoint) -> None:
    endpoint.retry_after = "\u00b2"
    endpoint.answer = lambda body: (503, {})
    backend = backend_of(endpoint)
    with pytest.raises(DependencyError, match="answered 503"):
        await backend.judge(EXCHANGE, score=True, hint=False)
    await backend.close()


async def test_no_answer_is_read_without_end(endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "MAX_ANSWER_BYTES", 1000)
    backend = backend_of(endpoint, opd={"judge_vote_count": 1}, prm={"circuit_failures": 100})
    assert await backend.ready()
    endpoint.answer = lambda body: (200, completion("x" * 2000))
    opinion = await backend.judge(EXCHANGE, score=True, hint=False)
    assert "more than 1000 bytes" in opinion.why_failed()
    await backend.close()
