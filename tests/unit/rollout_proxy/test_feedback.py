"""Feedback: what is taken, what is refused, and what becomes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hintloop_contract.streams import TURNS
from hintloop_rollout_proxy.linker_task import LinkerTask

ASK = {"messages": [{"role": "user", "content": "hi"}]}
KEYS = [{"key": "k-acme", "tenant": "acme"}, {"key": "k-beta", "tenant": "beta"}]


async def give(running: Any, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with running.session.post(running.url + "/v1/feedback", data=data, headers=named) as response:
        return response.status, await response.json()


async def test_feedback_becomes_a_capture_behind_the_answer_it_speaks_of(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    async with proxy() as running:
        _, data = await running.ask(ASK)
        response_id = json.loads(data)["id"]
        status, answer = await give(running, {"response_id": response_id, "score": -1, "text": "Too long."})
        answered, given = await running.captures(2)
    assert status == 202
    assert answer["id"] == given.turn_id != answered.turn_id
    expected = {"response_id": response_id, "turn_id": answered.turn_id, "session_id": None}
    assert answer["attached_to"] == expected
    assert (given.api, given.status, given.problem) == ("feedback", "complete", None)
    assert json.loads(given.request) == {
        "response_id": response_id,
        "session_id": None,
        "turn_id": None,
        "score": -1,
        "text": "Too long.",
    }
    assert given.start_ms >= answered.end_ms


async def test_feedback_carries_its_callers_tenant_and_learns_nothing_of_others(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    async with proxy(proxy={"api_keys": KEYS}) as running:
        _, data = await running.ask(ASK, authorization="Bearer k-acme")
        body = {"response_id": json.loads(data)["id"], "score": 1}
        own, _ = await give(running, body, authorization="Bearer k-acme"), None
        _, other = await give(running, body, authorization="Bearer k-beta")
        status, refused = await give(running, body)
        answered, first, second = await running.captures(3)
    assert own[1]["attached_to"]["turn_id"] == answered.turn_id
    assert other["attached_to"]["turn_id"] is None
    assert (first.tenant, second.tenant) == ("acme", "beta")
    assert first.credential == answered.credential != second.credential
    assert (status, refused["error"]["code"]) == (401, "invalid_api_key")


async def test_an_idempotency_key_counts_once_for_each_client(fake_engine: Any, proxy: Any) -> None:
    body = {"session_id": "s", "score": 1.0}
    async with proxy(proxy={"api_keys": KEYS}) as running:
        answers = [
            await give(running, body, authorization=f"Bearer {key}", idempotency_key=word)
            for key, word in (("k-acme", "one"), ("k-acme", "one"), ("k-acme", "two"), ("k-beta", "one"))
        ]
        captures = await running.captures(3)
        await give(running, body, authorization="Bearer k-beta")
        last = await running.captures(1)
    assert {status for status, _ in answers} == {202}
    ids = [answer["id"] for _, answer in answers]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert [capture.turn_id for capture in captures] == [ids[0], ids[2], ids[3]]
    assert len(last) == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "no JSON"),
        ([], "JSON list"),
        ({"score": 1}, "one of response_id, turn_id, session_id"),
        ({"response_id": None, "score": 1}, "one of response_id"),
        ({"response_id": "r"}, "neither score nor text"),
        ({"response_id": "r", "score": None, "text": None}, "neither score nor text"),
        ({"response_id": "r", "score": 0.5}, "score = 0.5 is not -1, 0 or 1"),
        ({"response_id": "r", "score": True}, "score = True"),
        ({"response_id": "r", "score": "1"}, "score = '1'"),
        ({"response_id": "r", "text": " "}, "text is empty"),
        ({"response_id": "r", "text": "x" * 20_001}, "20001 characters"),
        ({"response_id": "", "score": 1}, "response_id = ''"),
        ({"turn_id": 5, "score": 1}, "turn_id = 5"),
        ({"session_id": "s" * 513, "score": 1}, "1 to 512 characters"),
        ({"respons_id": "r", "score": 1}, "did you mean 'response_id'"),
        ({"response_id": "r", "score": 1, "zz": 1}, "known are"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_kept(body: Any, words: str, fake_engine: Any, proxy: Any) -> None:
    async with proxy() as running:
        status, answer = await give(running, body)
        assert (status, answer["error"]["code"]) == (400, "bad_request")
        assert words in answer["error"]["message"]
        too_long = await give(running, {"turn_id": "t", "score": 1}, idempotency_key="k" * 256)
        assert too_long[0] == 400
        await give(running, {"turn_id": "t", "score": 0})
        (kept,) = await running.captures(1)
        async with running.session.get(running.url + "/v1/feedback") as response:
            assert response.status == 404
    assert json.loads(kept.request)["score"] == 0


@asynccontextmanager
async def linking(running: Any) -> AsyncIterator[None]:
    """A linker over what the proxy captures."""
    stop = asyncio.Event()
    task = asyncio.create_task(LinkerTask(running.broker, running.deps.config, running.deps.metrics).run(stop))
    try:
        yield
    finally:
        stop.set()
        await task


async def test_feedback_is_the_next_state_of_its_callers_own_turn(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    acme, beta = {"authorization": "Bearer k-acme"}, {"authorization": "Bearer k-beta"}
    async with proxy(proxy={"api_keys": KEYS}) as running:
        async with linking(running):
            _, data = await running.ask(ASK, **acme)
            response_id = json.loads(data)["id"]
            _, foreign = await give(running, {"response_id": response_id, "score": 1, "text": "Fine."}, **beta)
            _, own = await give(running, {"response_id": response_id, "score": -1, "text": "Too long."}, **acme)
            turns: list[Any] = []
            async with asyncio.timeout(60):
                while not turns:
                    turns = await running.broker.read(TURNS, "test", 10, 50)
            record = await running.broker.get_turn(turns[0].turn_id)
            drops = (await running.broker.funnel()).drops
    assert foreign["attached_to"]["turn_id"] is None
    assert [entry.turn_id for entry in turns] == [own["attached_to"]["turn_id"]]
    assert turns[0].tenant == "acme"
    assert json.loads(record.next_state) == [{"role": "user", "content": "Too long."}]
    assert turns[0].message.feedback_score == -1
    # The feedback itself is no turn; the other tenant's found none.
    assert drops == {("link", "feedback"): 2}
