"""A client that does not read makes the proxy, and through it the engine, wait; nothing of its answer is lost.

No longer than a request may take.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from hintloop_contract.tensors import unpack

from tests.unit.rollout_proxy.test_quick import chunk

QUESTION = {"model": "policy", "messages": [{"role": "user", "content": "count"}], "stream": True}
#: More than the buffers of two connections hold.
NUM_TOKENS, FILLING = 20_000, "x" * 400
_CHUNK = b'data: {"id":"chatcmpl-1","created":1,"model":"engine/m","choices":[%b]%b}\n\n'
ENDING = (
    _CHUNK % (b'{"index":0,"delta":{},"finish_reason":"stop"}', b"")
    + _CHUNK % (b"", b',"usage":{"completion_tokens":%d}' % (NUM_TOKENS + 1))
    + b"data: [DONE]\n\n"
)


async def test_a_client_that_reads_late_gets_every_token_and_they_are_captured(fake_engine: Any, proxy: Any) -> None:
    sent: list[int] = []

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        first = json.loads(chunk("begin "))
        first["prompt_token_ids"] = [1, 2, 3]
        await response.write(b"data: %b\n\n" % json.dumps(first).encode())
        for start in range(0, NUM_TOKENS, 50):
            events = (
                b"data: %b\n\n" % chunk(f"{number}{FILLING} ", token=number) for number in range(start, start + 50)
            )
            await response.write(b"".join(events))
            sent.append(start)
        await response.write(ENDING)
        await response.write_eof()
        return response

    fake_engine.reply = stream
    async with proxy() as running:
        async with running.session.post(running.url + "/v1/chat/completions", json=QUESTION) as response:
            # Until the engine waits: nothing more of it is taken.
            async with asyncio.timeout(60):
                known = -1
                while len(sent) != known:
                    known = len(sent)
                    await asyncio.sleep(0.5)
            assert known < NUM_TOKENS // 50
            data = await response.read()
        (capture,) = await running.captures()
    deltas = [json.loads(event[6:]) for event in data.decode().split("\n\n") if event.startswith("data: {")]
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in deltas if one["choices"])
    wanted = "begin " + "".join(f"{number}{FILLING} " for number in range(NUM_TOKENS))
    assert text == wanted
    assert b'logprob"' not in data and data.endswith(b"data: [DONE]\n\n")
    assert capture.problem is None
    assert unpack(capture.response_ids).tolist() == [7, *range(NUM_TOKENS)]
    assert json.loads(capture.answer)["content"] == wanted


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_client_that_never_reads_ends_with_its_request(
    fake_engine: Any, proxy: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hintloop_rollout_proxy.serving.FAREWELL_S", 0.2)

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(b"data: %b\n\n" % chunk(FILLING) * 50)

    fake_engine.reply = stream
    body = json.dumps({**QUESTION, "max_tokens": 100_000}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    async with proxy(proxy={"request_timeout_s": 1.5}) as running:
        address = urlsplit(running.url)
        # A small buffer, and no byte is ever read.
        client = socket.create_connection((address.hostname, address.port))
        client.sendall(head.encode() + body)
        async with asyncio.timeout(30):
            (capture,) = await running.captures()
        client.close()
    assert capture.status == "aborted"
