"""No key and no text of a request or an answer is ever logged, whatever goes wrong, at any level."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from aiohttp import web
from hintloop_contract.config.schema import LoggingSection
from hintloop_contract.errors import DependencyError
from hintloop_contract.logs import configure_logging
from hintloop_contract.streams import CAPTURES
from hintloop_contract.testing.memory import MemoryBroker

PROMPT, ANSWER, KEY, ENGINE_KEY, SESSION = "PROMPT-7f3a", "ANSWER-7f3a", "KEY-7f3a", "ENGINE-KEY-7f3a", "SESSION-7f3a"
MARKS = (PROMPT, ANSWER, KEY, ENGINE_KEY, SESSION)
ASK = {"messages": [{"role": "user", "content": PROMPT}], "user": SESSION}


@pytest.fixture(params=["console", "json"])
def everything_logged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Logs as the process sets them up, at debug level, the libraries' own included."""
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configure_logging("rollout-proxy", LoggingSection(level="debug", format=request.param))
    root.setLevel(logging.DEBUG)
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


class AwayBroker(MemoryBroker):
    """Takes no captures for a while."""

    away = True

    async def append_many(self, *words: Any, **more: Any) -> Any:
        if self.away:
            raise DependencyError("redis", f"gone while it wrote {len(words)} things")
        return await super().append_many(*words, **more)


def broken_answers() -> list[Any]:
    """What an engine may answer: each quotes the request, or is no answer at all."""
    chunk = json.dumps({"id": "r", "choices": [{"index": 0, "delta": {"content": ANSWER}}]})

    async def garbage(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(f"HTTP/1.1 200 OK\r\nbad header {PROMPT}\x00\r\n\r\n{ANSWER}".encode())
        request.transport.close()
        return web.Response()

    async def bad_chunk(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        request.transport.write(head + f"{ANSWER}\r\n".encode())
        await asyncio.sleep(0.05)
        request.transport.close()
        return web.Response()

    async def quoted(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": f"cannot take {PROMPT}"}}, status=500)

    async def no_json(request: web.Request) -> web.StreamResponse:
        return web.Response(text=f"<html>{ANSWER}{PROMPT}", content_type="application/json")

    async def odd_json(request: web.Request) -> web.StreamResponse:
        return web.json_response({"id": 5, "choices": {ANSWER: PROMPT}, "usage": ANSWER})

    async def odd_stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for line in (chunk, "{" + ANSWER, json.dumps({"choices": [ANSWER]}), "[DONE]"):
            await response.write(f"data: {line}\n\n".encode())
        await response.write_eof()
        return response

    return [garbage, bad_chunk, quoted, no_json, odd_json, odd_stream]


async def test_nothing_of_a_request_is_logged(
    everything_logged: io.StringIO,
    fake_engine: Any,
    proxy: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = AwayBroker()
    sections = {
        "proxy": {"api_keys": [KEY], "max_request_bytes": 4000, "scrub": "both"},
        "policy": {"api_key": ENGINE_KEY},
    }
    mine = {"authorization": f"Bearer {KEY}", "x-session-id": SESSION}
    async with proxy(broker, **sections) as running:
        fake_engine.replay("chat_stop")
        assert (await running.ask(ASK, **mine))[0] == 200
        for reply in broken_answers():
            fake_engine.reply = reply
            for stream in (False, True):
                try:
                    status, data = await running.ask({**ASK, "stream": stream}, **mine)
                except Exception:  # noqa: BLE001 - a stream that was cut
                    continue
                assert status != 200 or data
                # The engine's key is nobody's business.
                assert ENGINE_KEY.encode() not in data
        await running.ask(ASK, authorization=f"Bearer {PROMPT}")
        await running.ask({"messages": [{"role": "user", "content": PROMPT * 1000}]}, **mine)
        for path in (
            "/v1/chat/completions",
            "/v1/responses",
            "/v1/messages",
            "/generate",
            "/v1/feedback",
            f"/{PROMPT}",
        ):
            for body in (b"{" + PROMPT.encode(), json.dumps({"text": PROMPT, "score": PROMPT}).encode(), b"[[["):
                async with running.session.post(running.url + path, data=body, headers=mine) as response:
                    await response.read()

        def fail(*words: Any) -> None:
            raise KeyError(PROMPT)

        with monkeypatch.context() as patch:
            patch.setattr("hintloop_rollout_proxy.app.read_fields", fail)
            assert (await running.ask(ASK, **mine))[0] == 500
        with monkeypatch.context() as patch:
            patch.setattr("hintloop_rollout_proxy.capturing.captures_of", fail)
            fake_engine.replay("chat_stop")
            await running.ask(ASK, **mine)
        await asyncio.sleep(0.1)
        broker.away = False
        async with asyncio.timeout(60):
            while not await broker.read(CAPTURES, "test", 100, 50):
                pass
        metrics = await (await running.session.get(running.url + "/metrics")).text()
        ready = await (await running.session.get(running.url + "/hintloop/ready")).text()
    await broker.close()
    logged = everything_logged.getvalue()
    assert "request failed" in logged and "capture lost" in logged and "engine known" in logged
    for text in (logged, metrics, ready):
        for mark in MARKS:
            assert mark not in text, text[max(0, text.find(mark) - 300) : text.find(mark) + 50]
