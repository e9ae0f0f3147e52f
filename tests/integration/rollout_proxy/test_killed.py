"""A proxy is killed under traffic: whatever answer an agent saw the end of, Redis has it."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import httpx
import pytest
from aiohttp import web
from hintloop_contract.streams import CAPTURES

from .test_replicas import PATH, answer_to, serving

NUM_AGENTS, NUM_KILLS = 8, 3
LIFE_S = 0.7


@pytest.fixture
async def quick_engine() -> Any:
    """An engine whose every answer names its question, streamed if asked so."""

    async def chat(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        answer = answer_to(asked["messages"][-1]["content"])
        if not asked.get("stream"):
            return web.json_response(answer)
        choice = answer["choices"][0]
        choice["delta"] = choice.pop("message")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        usage = {**answer, "choices": []}
        for event in (json.dumps(answer | {"usage": None}), json.dumps(usage), "[DONE]"):
            await response.write(f"data: {event}\n\n".encode())
        await response.write_eof()
        return response

    async def plain(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy"}]})

    app = web.Application()
    app.router.add_post(PATH, chat)
    app.router.add_get("/{rest:.*}", plain)
    async with serving(app) as url:
        yield url


async def ask_until_it_dies(client: httpx.AsyncClient, url: str, numbers: Any, seen: set[str]) -> None:
    """Ask one question after the other; ``seen`` gets those whose answer ended."""
    while True:
        number = next(numbers)
        body = {"model": "m", "messages": [{"role": "user", "content": f"q{number}"}], "stream": bool(number % 2)}
        try:
            async with client.stream("POST", url + PATH, json=body) as response:
                data = b""
                async for block in response.aiter_bytes():
                    data += block
                    # An agent reads no further.
                    if body["stream"] and b"data: [DONE]" in data:
                        break
        except httpx.HTTPError:
            return
        assert response.status_code == 200, data
        seen.add(f"q{number}")


async def test_an_answer_whose_end_was_seen_is_not_lost(
    quick_engine: str, redis_server: Any, start_proxy: Any, make_broker: Any
) -> None:
    broker = make_broker(redis_server.url)
    numbers, seen = itertools.count(), set[str]()
    for _ in range(NUM_KILLS):
        proxy = await asyncio.to_thread(start_proxy, "vllm", quick_engine, redis_server.url, "--no-linker")
        async with httpx.AsyncClient(timeout=60) as client:
            agents = [
                asyncio.create_task(ask_until_it_dies(client, proxy.url, numbers, seen)) for _ in range(NUM_AGENTS)
            ]
            await asyncio.sleep(LIFE_S)
            proxy.process.kill()
            await asyncio.gather(*agents)
        proxy.process.wait()
    stored = set()
    while entries := await broker.read(CAPTURES, "test", 1000, None):
        stored |= {json.loads(entry.message.request)["messages"][0]["content"] for entry in entries}
    assert len(seen) > 10 * NUM_KILLS
    assert seen - stored == set()
