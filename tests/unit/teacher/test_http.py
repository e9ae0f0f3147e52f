"""The client of an engine: what is tried again, for how long, and when an engine is left alone."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from hintloop_contract.errors import DependencyError
from hintloop_teacher import http
from hintloop_teacher.errors import RefusedError
from hintloop_teacher.http import EngineClient, Patience

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Engine:
    """Answers one request after the other as ``replies`` say, then with ``{"ok": 1}``."""

    def __init__(self) -> None:
        self.url = ""
        self.replies: list[Reply] = []
        self.num_requests = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.num_requests += 1
        if self.replies:
            return await self.replies.pop(0)(request)
        return web.json_response({"ok": 1})


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    fake = Engine()
    app = web.Application()
    app.router.add_route("*", "/x", fake.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await runner.cleanup()


def status(code: int, text: str = "no", **headers: str) -> Reply:
    async def reply(request: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text=text, headers=headers)

    return reply


def said(text: str) -> Reply:
    return status(200, text)


def client_of(engine: Engine, waits: list[float] | None = None, **patience: Any) -> EngineClient:
    async def sleep(seconds: float) -> None:
        if waits is not None:
            waits.append(seconds)
        await asyncio.sleep(0)

    return EngineClient(engine.url, dependency="prm-engine", patience=Patience(wait_s=0.01, **patience), sleep=sleep)


@pytest.mark.parametrize(
    "reply", [status(429), status(500), status(503), said("<html>"), said("[1]"), said("null"), said('{"a": 1')]
)
async def test_what_may_pass_is_tried_again(engine: Engine, reply: Reply) -> None:
    client = client_of(engine)
    engine.replies = [reply, reply]
    assert await client.post("/x", {}) == {"ok": 1}
    assert engine.num_requests == 3
    engine.replies = [reply] * 20
    with pytest.raises(DependencyError, match="prm-engine"):
        await client.get("/x")
    assert engine.num_requests == 3 + http.NUM_ATTEMPTS
    await client.close()


async def test_a_refusal_is_not_tried_again(engine: Engine) -> None:
    client = client_of(engine)
    engine.replies = [status(400, "K is 65")]
    with pytest.raises(RefusedError, match="K is 65"):
        await client.post("/x", {})
    engine.replies = [status(403, "wrong key")]
    with pytest.raises(DependencyError, match="check the engine's API key"):
        await client.post("/x", {})
    engine.replies = [status(403, "closed")]
    with pytest.raises(RefusedError, match="closed"):
        await client.post("/x", {}, refusals=(403,))
    assert engine.num_requests == 3
    await client.close()


async def test_waits_differ_and_heed_retry_after(engine: Engine) -> None:
    waits: list[float] = []
    client = client_of(engine, waits)
    engine.replies = [status(429, **{"Retry-After": "7"}), status(429), status(500, **{"Retry-After": "900"})]
    await client.get("/x")
    assert waits[0] == 7.0 and waits[1] < 1.0 and waits[2] == http.MAX_RETRY_AFTER_S
    await client.close()


async def drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for char in json.dumps({"ok": "x" * 200}):
        await response.write(char.encode())
        await asyncio.sleep(0.05)
    return response


async def test_an_answer_that_drips_is_none(engine: Engine) -> None:
    client = client_of(engine, timeout_s=1.5, deadline_s=60.0)
    engine.replies = [drip]
    assert await client.get("/x") == {"ok": 1}
    await client.close()


async def test_the_deadline_covers_all_tries(engine: Engine) -> None:
    client = client_of(engine, timeout_s=60.0, deadline_s=1.5)
    engine.replies = [drip]
    with pytest.raises(DependencyError, match=r"no whole answer within 1\.5 s \(prm\.deadline_s\)"):
        await client.get("/x")
    assert engine.num_requests == 1
    await client.close()


async def test_an_endless_answer_is_none(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 1000)
    client = client_of(engine)
    engine.replies = [said(json.dumps({"a": "x" * 2000}))] * 9
    with pytest.raises(DependencyError, match="more than 1000 bytes"):
        await client.get("/x")
    await client.close()


async def test_an_engine_that_fails_is_left_alone_and_tried_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr("purgatory.domain.model.time", SimpleNamespace(time=lambda: now[0]))
    client = client_of(engine, circuit_failures=3, circuit_open_s=60.0)
    engine.replies = [status(500)] * 3
    with pytest.raises(DependencyError, match="failed 3 times in a row; it is left alone"):
        await client.get("/x")
    with pytest.raises(DependencyError, match="left alone"):
        await client.get("/x")
    assert engine.num_requests == 3
    now[0] += 61
    assert await client.get("/x") == {"ok": 1}
    engine.replies = [status(400)] * 5
    for _ in range(5):
        with pytest.raises(RefusedError):
            await client.get("/x")
    assert await client.get("/x") == {"ok": 1}
    await client.close()


async def test_an_engine_that_is_not_there_is_away() -> None:
    client = EngineClient("http://127.0.0.1:9", dependency="prm-engine", patience=Patience(wait_s=0.001))
    with pytest.raises(DependencyError, match="127.0.0.1:9"):
        await client.get("/x")
    await client.close()
