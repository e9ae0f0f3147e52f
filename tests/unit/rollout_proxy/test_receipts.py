"""The end of an answer waits until its capture is stored, and no longer than is of use."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hintloop_contract.broker import Appended
from hintloop_contract.codec import PackedMessage
from hintloop_contract.errors import DependencyError
from hintloop_contract.streams import Stream
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_rollout_proxy import receipts
from hintloop_rollout_proxy.receipts import Receipts

from .conftest import AGENT

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
CHAT = {"model": "m", "messages": MESSAGES}
CHAT_PATH, RESPONSES, ANTHROPIC = "/v1/chat/completions", "/v1/responses", "/v1/messages"
#: Events of the engine's own endpoints, by path; the last one is what a client takes for the end.
OWN_EVENTS = {
    RESPONSES: ["response.created", "response.output_text.delta", "response.completed"],
    ANTHROPIC: ["message_start", "content_block_delta", "message_stop"],
}
#: Requests that only those endpoints can serve.
IMAGE = {"role": "user", "content": [{"type": "input_image", "image_url": "u", "detail": "auto"}]}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
UNTRANSLATED = {
    RESPONSES: {"model": "m", "input": [IMAGE], "stream": True},
    ANTHROPIC: {**CHAT, "max_tokens": 9, "tools": [SEARCH], "stream": True},
}


class GatedBroker(MemoryBroker):
    """Stores nothing until ``may_store``; ``asked`` once it was asked to. ``away``: refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_store = asyncio.Event(), asyncio.Event()
        self.stored: list[str] = []
        self.away = False

    async def append_many(self, stream: Stream, batch: Sequence[PackedMessage], **more: Any) -> list[Appended] | None:
        if self.away:
            raise DependencyError("redis", "away")
        self.asked.set()
        await self.may_store.wait()
        appended = await super().append_many(stream, batch, **more)
        self.stored.extend(message.turn_id for message in batch if appended is not None)
        return appended


@pytest.fixture
async def broker() -> AsyncIterator[GatedBroker]:
    memory = GatedBroker()
    await memory.ensure_groups()
    yield memory
    memory.may_store.set()
    await memory.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an answer nor the writer gives up unless a test says so."""
    monkeypatch.setattr(receipts, "WAIT_S", 60.0)
    monkeypatch.setattr("hintloop_rollout_proxy.writer.CALL_S", 60.0)


class Reading:
    """One request, read as it comes."""

    def __init__(self) -> None:
        self.data = b""

    async def read(self, response: aiohttp.ClientResponse) -> None:
        async for block in response.content.iter_any():
            self.data += block


@asynccontextmanager
async def asking(running: Any, path: str, body: dict[str, Any]) -> AsyncIterator[tuple[Reading, asyncio.Task[None]]]:
    """Ask and read in the background."""
    reading = Reading()

    async def ask() -> None:
        async with running.session.post(running.url + path, json=body, headers={AGENT: "1"}) as response:
            await reading.read(response)

    task = asyncio.create_task(ask())
    try:
        yield reading, task
    finally:
        task.cancel()


def engines_own(kind: str, may_end: asyncio.Event) -> Any:
    """Answers of an endpoint that is not translated; the last event comes once it may."""

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for name in OWN_EVENTS[kind]:
            if name == OWN_EVENTS[kind][-1]:
                await may_end.wait()
            event = json.dumps({"type": name, "delta": '"type":"message_stop"'})
            await response.write(f"event: {name}\ndata: {event}\n\n".encode())
        await response.write_eof()
        return response

    return reply


CASES = {
    "chat": (CHAT_PATH, CHAT, "chat_stop", b"{", b"}"),
    "chat stream": (CHAT_PATH, {**CHAT, "stream": True}, "chat_stream_stop", b"Paris", b"data: [DONE]"),
    "completion": ("/v1/completions", {"model": "m", "prompt": "x"}, "completion", b"{", b"}"),
    "choices": (CHAT_PATH, {**CHAT, "n": 2}, "chat_n2", b"{", b"}"),
    "choices stream": (CHAT_PATH, {**CHAT, "n": 2, "stream": True}, "chat_stream_n2", b"content", b"data: [DONE]"),
    "responses": (RESPONSES, {"model": "m", "input": "x"}, "chat_stop", b"{", b"}"),
    "responses stream": (
        RESPONSES,
        {"model": "m", "input": "x", "stream": True},
        "chat_stream_stop",
        b"Paris",
        b"event: response.completed",
    ),
    "messages stream": (
        ANTHROPIC,
        {**CHAT, "max_tokens": 9, "stream": True},
        "chat_stream_stop",
        b"Paris",
        b"event: message_stop",
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_an_answer_ends_once_it_is_stored(case: str, fake_engine: Any, proxy: Any, broker: GatedBroker) -> None:
    path, body, recorded, text, end = CASES[case]
    fake_engine.replay(recorded, split=80 if body.get("stream") else None)
    async with proxy(broker) as running, asking(running, path, body) as (reading, task):
        async with asyncio.timeout(30):
            await broker.asked.wait()
        await asyncio.sleep(0.1)
        assert end not in reading.data
        # What was said before the end is not held back.
        assert (text in reading.data) == bool(body.get("stream"))
        broker.may_store.set()
        async with asyncio.timeout(30):
            await task
        assert end in reading.data
        assert len(broker.stored) == body.get("n", 1)
        assert running.deps.metrics.registry.get_sample_value("hintloop_proxy_early_ends_total") == 0


@pytest.mark.parametrize("path", [RESPONSES, ANTHROPIC])
async def test_the_engines_own_answer_ends_once_it_is_stored(
    path: str, fake_engine: Any, proxy: Any, broker: GatedBroker
) -> None:
    may_end, last = asyncio.Event(), OWN_EVENTS[path][-1].encode()
    fake_engine.own = engines_own(path, may_end)
    async with proxy(broker) as running, asking(running, path, UNTRANSLATED[path]) as (reading, task):
        async with asyncio.timeout(30):
            while OWN_EVENTS[path][1].encode() not in reading.data:
                await asyncio.sleep(0.01)
            may_end.set()
            await broker.asked.wait()
        await asyncio.sleep(0.1)
        assert b"event: " + last not in reading.data
        broker.may_store.set()
        async with asyncio.timeout(30):
            await task
        assert b"event: " + last in reading.data


async def test_nobody_waits_for_a_redis_that_does_not_answer(
    fake_engine: Any, proxy: Any, broker: GatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "WAIT_S", 0.05)
    fake_engine.replay("chat_stop")
    async with proxy(broker) as running:
        assert (await running.ask(CHAT))[0] == 200
        # Would one wait now, the test would fail by its time.
        monkeypatch.setattr(receipts, "WAIT_S", 600)
        async with asyncio.timeout(30):
            for _ in range(3):
                assert (await running.ask(CHAT))[0] == 200
        early = running.deps.metrics.registry.get_sample_value("hintloop_proxy_early_ends_total")
        assert (early, len(broker.stored)) == (4, 0)
        broker.may_store.set()
        await running.captures(4)
        # It answers again: now the end waits.
        broker.may_store.clear()
        async with asyncio.timeout(30):
            while not running.deps.intake.prompt:
                await asyncio.sleep(0.01)
        async with asking(running, CHAT_PATH, CHAT) as (reading, task):
            await asyncio.sleep(0.2)
            assert not reading.data
            broker.may_store.set()
            await task
    assert len(broker.stored) == 5


async def test_while_redis_is_away_an_answer_ends_once_it_is_on_disk(
    fake_engine: Any, proxy: Any, broker: GatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hintloop_rollout_proxy.writer.RETRY_S", 600.0)
    broker.away = True
    fake_engine.replay("chat_stop")
    async with proxy(broker) as running:
        for number in range(1, 6):
            assert (await running.ask(CHAT))[0] == 200
            assert running.deps.writer.describe()["spooled"] == number


async def test_feedback_is_accepted_once_it_is_stored(fake_engine: Any, proxy: Any, broker: GatedBroker) -> None:
    body = {"session_id": "s", "score": 1}
    async with proxy(broker) as running, asking(running, "/v1/feedback", body) as (reading, task):
        async with asyncio.timeout(30):
            await broker.asked.wait()
        await asyncio.sleep(0.1)
        assert not reading.data
        broker.may_store.set()
        await task
        assert json.loads(reading.data)["id"] == broker.stored[0]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_end_is_captured_once(
    stream: bool, fake_engine: Any, proxy: Any, broker: GatedBroker
) -> None:
    fake_engine.replay("chat_stream_stop" if stream else "chat_stop")
    async with proxy(broker) as running:
        async with asking(running, CHAT_PATH, {**CHAT, "stream": stream}):
            async with asyncio.timeout(30):
                await broker.asked.wait()
            await asyncio.sleep(0.1)
        async with asyncio.timeout(30):
            while running.deps.metrics.num_in_flight:
                await asyncio.sleep(0.01)
        broker.may_store.set()
        (capture,) = await running.captures()
    assert (capture.status, capture.problem) == ("complete", None)
    assert len(broker.stored) == 1


async def test_receipts_reach_everybody_who_waits() -> None:
    given = Receipts()
    given.put("a")
    first, second = given.expect("a"), given.expect("a")
    left = given.expect("b")
    second.cancel()
    given.give(["a", "never expected"])
    assert first.done() and not left.done()
    assert len(given) == 1
    given.discard("b", left)
    given.discard("a", first)
    assert len(given) == 0


async def test_waiting_is_of_use_while_captures_are_stored_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given, now = Receipts(), [100.0]
    monkeypatch.setattr("hintloop_rollout_proxy.receipts.time.monotonic", lambda: now[0])
    monkeypatch.setattr(receipts, "WAIT_S", 1.0)
    given.put("late")
    now[0] += 0.5
    given.put("in time")
    now[0] += 0.6
    # By itself the younger one was stored in time; the older one of the same batch was not.
    given.give(["late", "in time"])
    assert not given.prompt
    given.give([])
    assert not given.prompt
    given.put("next")
    given.give(["next"])
    assert given.prompt


async def test_equal_feedback_at_once_is_accepted_once_and_answered_each_time(proxy: Any, broker: GatedBroker) -> None:
    body = {"session_id": "s", "score": 1}
    async with proxy(broker) as running:
        asked = [running.post("/v1/feedback", body, Idempotency_Key="twice") for _ in range(3)]
        answers = asyncio.gather(*asked)
        await broker.asked.wait()
        broker.may_store.set()
        async with asyncio.timeout(30):
            found = await answers
        assert {status for status, _ in found} == {202}
        assert len({json.loads(data)["id"] for _, data in found}) == 1
        assert running.deps.intake.prompt
        assert (await broker.funnel()).steps == {"captured": 1}


async def test_choices_that_were_not_taken_when_the_client_left_are_taken_then(
    fake_engine: Any, proxy: Any, broker: GatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue has room for one; the client leaves while the second waits for room."""
    monkeypatch.setattr("hintloop_rollout_proxy.writer.QUEUE_LENGTH", 1)
    monkeypatch.setattr("hintloop_rollout_proxy.writer.PUT_WAIT_S", 60.0)
    fake_engine.replay("chat_n2")
    async with proxy(broker) as running:
        async with asking(running, CHAT_PATH, {**CHAT, "n": 2}):
            await broker.asked.wait()
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)
        broker.may_store.set()
        captures = await running.captures(2)
        lost = running.deps.metrics.registry.get_sample_value("hintloop_proxy_lost_total", {"cause": "queue_full"})
    assert sorted(capture.choice for capture in captures) == [0, 1]
    assert (lost, len(running.deps.intake.receipts)) == (0, 0)


@pytest.mark.parametrize("scrub", ["off", "secrets"])
async def test_all_choices_of_an_answer_wait_no_longer_than_one(
    scrub: str, fake_engine: Any, proxy: Any, broker: GatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them finds a full queue, before the writer or before scrubbing."""
    monkeypatch.setattr("hintloop_rollout_proxy.writer.QUEUE_LENGTH", 1)
    monkeypatch.setattr("hintloop_rollout_proxy.scrubbing.QUEUE_LENGTH", 1)
    monkeypatch.setattr("hintloop_rollout_proxy.writer.PUT_WAIT_S", 600.0)
    monkeypatch.setattr(receipts, "WAIT_S", 0.2)
    fake_engine.replay("chat_n2")
    async with proxy(broker, proxy={"scrub": scrub}) as running:
        async with asyncio.timeout(30):
            status, _ = await running.ask({**CHAT, "n": 2})
        assert status == 200
        assert not running.deps.intake.prompt
        broker.may_store.set()
        assert len(await running.captures(2)) == 2


async def test_a_backlog_holds_nobody_again_and_again(
    fake_engine: Any, proxy: Any, broker: GatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is written in time, but what it holds was put too long ago."""
    monkeypatch.setattr(receipts, "WAIT_S", 0.5)
    monkeypatch.setattr("hintloop_rollout_proxy.writer.BATCH", 1)
    fake_engine.replay("chat_stop")
    append = broker.append_many

    async def slowly(*words: Any, **more: Any) -> Any:
        await asyncio.sleep(0.2)
        return await append(*words, **more)

    monkeypatch.setattr(broker, "append_many", slowly)
    broker.may_store.set()
    async with proxy(broker) as running:
        await asyncio.gather(*(running.ask(CHAT) for _ in range(12)))
        assert not running.deps.intake.prompt
        for _ in range(3):
            await running.captures(2)
            assert not running.deps.intake.prompt, "what is stored now was put long ago"
        await running.captures(6)
        await running.ask(CHAT)
        async with asyncio.timeout(30):
            while not running.deps.intake.prompt:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_time_of_a_request_does_not_end_an_answer_that_is_there(
    stream: bool, fake_engine: Any, proxy: Any, broker: GatedBroker
) -> None:
    fake_engine.replay("chat_stream_stop" if stream else "chat_stop")
    body = {**CHAT, "stream": stream}
    async with (
        proxy(broker, proxy={"request_timeout_s": 1.0}) as running,
        asking(running, CHAT_PATH, body) as (reading, task),
    ):
        await broker.asked.wait()
        await asyncio.sleep(1.5)
        broker.may_store.set()
        async with asyncio.timeout(30):
            await task
        (capture,) = await running.captures()
    assert reading.data.endswith(b"data: [DONE]\n\n" if stream else b"}")
    assert (capture.status, capture.http_status) == ("complete", 200)


@pytest.mark.parametrize("prompt", [True, False])
async def test_what_comes_behind_the_end_changes_nothing(
    prompt: bool, fake_engine: Any, proxy: Any, broker: GatedBroker, wire: Any
) -> None:
    """The engine's connection breaks right behind `[DONE]`; the answer can be referred to all the same."""
    broker.may_store.set()
    events = wire("vllm", "chat_stream_stop")["body"].encode()

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(events)
        await asyncio.sleep(0.2)
        assert request.transport is not None
        request.transport.abort()
        return response

    fake_engine.reply = reply
    async with proxy(broker) as running:
        running.deps.intake.receipts.prompt = prompt
        async with asking(running, RESPONSES, {"model": "m", "input": "x", "stream": True}) as (reading, task):
            with contextlib.suppress(aiohttp.ClientPayloadError):
                await task
        (capture,) = await running.captures()
        assert (capture.status, capture.problem) == ("complete", None)
        assert b"event: response.completed" in reading.data
        fake_engine.replay("chat_stop")
        asked = {"model": "m", "input": "and?", "previous_response_id": capture.response_id}
        assert (await running.post(RESPONSES, asked))[0] == 200


async def test_only_the_last_event_itself_ends_an_engines_own_answer(
    fake_engine: Any, proxy: Any, broker: GatedBroker
) -> None:
    """A tool's input may look like one."""

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        event = {"type": "content_block_start", "content_block": {"input": {"type": "message_stop"}}}
        await response.write(b"event: content_block_start\ndata: %b\n\n" % json.dumps(event).encode())
        await asyncio.sleep(0.2)
        assert request.transport is not None
        request.transport.abort()
        return response

    fake_engine.own = reply
    broker.may_store.set()
    async with proxy(broker) as running, asking(running, ANTHROPIC, UNTRANSLATED[ANTHROPIC]) as (_, task):
        with pytest.raises(aiohttp.ClientPayloadError):
            await task
        (capture,) = await running.captures()
    assert capture.status == "aborted"
