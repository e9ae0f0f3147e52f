"""Redis is killed under traffic and comes back: agents notice nothing, no capture is lost or doubled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from hintloop_contract.streams import CAPTURES, TURNS

WIRE = Path(__file__).parents[2] / "fixtures" / "wire" / "vllm"


@pytest.fixture
async def recorded_engine() -> AsyncIterator[str]:
    """An engine that replays one recorded answer, and the start-up probe."""
    recorded = json.loads((WIRE / "chat_stop.json").read_text())["body"]

    async def chat(request: web.Request) -> web.Response:
        return web.json_response(recorded)

    async def score(request: web.Request) -> web.Response:
        asked = await request.json()
        if "prompt_logprobs" in asked:
            scores = [None, *({str(token): {"logprob": -2.0}} for token in asked["prompt"][1:])]
            return web.json_response({"choices": [{"prompt_logprobs": scores}]})
        sampled = {"prompt_token_ids": [5], "token_ids": [7, 8], "logprobs": {"token_logprobs": [-1.0, -1.0]}}
        return web.json_response({"choices": [sampled]})

    async def plain(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/completions", score)
    app.router.add_get("/{rest:.*}", plain)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def ask(client: httpx.AsyncClient, url: str, text: str) -> None:
    body = {"model": "policy", "messages": [{"role": "user", "content": text}]}
    response = await client.post(url + "/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text


async def texts_of(broker: Any, count: int) -> list[str]:
    texts: list[str] = []
    async with asyncio.timeout(180):
        while len(texts) < count:
            for entry in await broker.read(CAPTURES, "test", 100, 200):
                texts.append(json.loads(entry.message.request)["messages"][0]["content"])
    return texts


async def test_nothing_is_lost_when_redis_dies(
    recorded_engine: str, redis_server: Any, start_proxy: Any, make_broker: Any
) -> None:
    proxy = await asyncio.to_thread(start_proxy, "vllm", recorded_engine, redis_server.url, "--no-linker")
    asked = []
    async with httpx.AsyncClient(timeout=180) as client:
        for number in range(60):
            if number == 20:
                redis_server.kill()
            if number == 40:
                redis_server.start()
            asked.append(f"question {number}")
            await ask(client, proxy.url, asked[-1])
    broker = make_broker(redis_server.url)
    await broker.ensure_groups()
    assert await texts_of(broker, 60) == asked
    await asyncio.sleep(1)
    assert await broker.read(CAPTURES, "test", 100, None) == []
    assert (await broker.funnel()).steps["captured"] == 60
    assert await asyncio.to_thread(proxy.stop) == 0


async def test_what_waits_on_disk_survives_a_restart(
    recorded_engine: str, redis_server: Any, start_proxy: Any, make_broker: Any, tmp_path: Path
) -> None:
    first = await asyncio.to_thread(start_proxy, "vllm", recorded_engine, redis_server.url, "--no-linker")
    redis_server.kill()
    async with httpx.AsyncClient(timeout=180) as client:
        for number in range(10):
            await ask(client, first.url, f"question {number}")
    assert await asyncio.to_thread(first.stop) == 0
    assert list((tmp_path / "spool").glob("*.spool"))
    redis_server.start()
    second = await asyncio.to_thread(start_proxy, "vllm", recorded_engine, redis_server.url, "--no-linker")
    broker = make_broker(redis_server.url)
    await broker.ensure_groups()
    assert await texts_of(broker, 10) == [f"question {number}" for number in range(10)]
    assert await asyncio.to_thread(second.stop) == 0
    assert not list((tmp_path / "spool").glob("*.spool"))


async def test_another_linker_takes_over_what_is_undecided(
    recorded_engine: str, redis_server: Any, start_proxy: Any, make_broker: Any
) -> None:
    """The first proxy dies with an answer undecided; the second links it from the captures alone."""
    broker = make_broker(redis_server.url)
    first = await asyncio.to_thread(start_proxy, "vllm", recorded_engine, redis_server.url)
    await asyncio.to_thread(first.wait, "/hintloop/ready")
    async with httpx.AsyncClient(timeout=180) as client:
        await ask(client, first.url, "question")
        async with asyncio.timeout(180):
            while (await broker.counts(CAPTURES)).pending != 1:
                await asyncio.sleep(0.05)
        first.process.kill()
        first.process.wait()
        second = await asyncio.to_thread(start_proxy, "vllm", recorded_engine, redis_server.url)
        answer = json.loads((WIRE / "chat_stop.json").read_text())["body"]["choices"][0]["message"]["content"]
        messages = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "thanks"},
        ]
        response = await client.post(second.url + "/v1/chat/completions", json={"model": "m", "messages": messages})
        assert response.status_code == 200
    async with asyncio.timeout(180):
        while not (entries := await broker.read(TURNS, "test", 10, 200)):
            pass
    (entry,) = entries
    record = await broker.get_turn(entry.turn_id)
    assert json.loads(record.next_state) == messages[2:]
    assert json.loads(record.messages) == messages[:1]
    assert (len(record.prompt_ids), len(record.response_ids), len(record.logprobs)) == (37, 8, 8)
    assert await asyncio.to_thread(second.stop) == 0


async def test_no_request_stops_the_writer_or_the_linker(
    recorded_engine: str, redis_server: Any, start_proxy: Any, make_broker: Any
) -> None:
    """Hostile requests among good ones: the process lives, and the good ones become a turn."""
    broker = make_broker(redis_server.url)
    proxy = await asyncio.to_thread(start_proxy, "vllm", recorded_engine, redis_server.url)
    await asyncio.to_thread(proxy.wait, "/hintloop/ready")
    question, deep = {"role": "user", "content": "question"}, "[" * 3000
    odd: list[dict[str, Any]] = [
        {"messages": [{"role": "assistant", "tool_calls": 5}, question]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": deep}}]}, question]},
        {"messages": [question], "seed": 10**30},
        {"messages": [question], "top_k": 2**64},
    ]
    async with httpx.AsyncClient(timeout=180) as client:
        await ask(client, proxy.url, "question")
        for body in odd:
            response = await client.post(proxy.url + "/v1/chat/completions", json={"model": "m", **body})
            assert response.status_code == 200, response.text
        answer = json.loads((WIRE / "chat_stop.json").read_text())["body"]["choices"][0]["message"]["content"]
        messages = [question, {"role": "assistant", "content": answer}, {"role": "user", "content": "thanks"}]
        response = await client.post(proxy.url + "/v1/chat/completions", json={"model": "m", "messages": messages})
        async with asyncio.timeout(180):
            while not (entries := await broker.read(TURNS, "test", 10, 200)):
                pass
        record = await broker.get_turn(entries[0].turn_id)
        assert json.loads(record.next_state) == messages[2:]
        state = (await client.get(proxy.url + "/hintloop/ready")).json()
    assert {state["tasks"][name] for name in ("linker", "writer")} == {"running"}
    assert (await broker.funnel()).drops == {("capture", "not_trainable"): 2}
    assert await asyncio.to_thread(proxy.stop) == 0
