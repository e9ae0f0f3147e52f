"""Keys, tenants and the size limit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hintloop_contract.config.access import key_hash
from hintloop_contract.streams import TURNS
from hintloop_rollout_proxy.linker_task import LinkerTask

ASK = {"messages": [{"role": "user", "content": "hi"}]}
KEYS = [
    {"hash": key_hash("k-acme"), "tenant": "acme"},
    {"hash": key_hash("k-quiet"), "tenant": "quiet", "train": False},
    "k-plain",
]


async def test_a_key_tells_tenant_and_credential_and_ends_here(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    async with proxy(proxy={"api_keys": KEYS}, policy={"api_key": "engine-key"}) as running:
        for headers in ({"authorization": "Bearer k-acme"}, {"x-api-key": "k-quiet"}, {"api-key": "k-plain"}):
            assert (await running.ask(ASK, **headers))[0] == 200
        captures = await running.captures(3)
    assert [capture.tenant for capture in captures] == ["acme", "quiet", "default"]
    assert len({capture.credential for capture in captures}) == 3
    assert {headers["authorization"] for headers, _ in fake_engine.seen} == {"Bearer engine-key"}
    assert not any("api-key" in headers or "x-api-key" in headers for headers, _ in fake_engine.seen)


@pytest.mark.parametrize("key", ["", "wrong", "k-acm", key_hash("k-acme")])
async def test_a_wrong_key_is_401_in_the_apis_own_form(key: str, fake_engine: Any, proxy: Any) -> None:
    async with proxy(proxy={"api_keys": KEYS}) as running:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/models", "/v1/feedback"):
            method = "GET" if path == "/v1/models" else "POST"
            async with running.session.request(method, running.url + path, json=ASK, headers=headers) as response:
                assert response.status == 401
                assert response.headers["www-authenticate"] == "Bearer"
                document = await response.json()
            error = document["error"]
            if path == "/v1/messages":
                assert (document["type"], error["type"]) == ("error", "authentication_error")
            else:
                assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
            assert "proxy.api_keys" in error["message"]
            assert not key or key not in error["message"]
        for path in ("/hintloop/health", "/metrics"):
            assert (await running.session.get(running.url + path)).status == 200
    assert fake_engine.seen == []


async def test_a_key_that_does_not_train_is_served_linked_and_dropped(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    mine = {"authorization": "Bearer k-quiet"}
    async with proxy(proxy={"api_keys": KEYS}, linker={"settle_ms": 50}) as running:
        status, data = await running.ask(ASK, **mine)
        assert status == 200
        answer = json.loads(data)["choices"][0]["message"]
        follow_up = [*ASK["messages"], answer, {"role": "user", "content": "Shorter."}]
        await running.ask({"messages": follow_up}, **mine)
        stop = asyncio.Event()
        linking = asyncio.create_task(LinkerTask(running.broker, running.deps.config, running.deps.metrics).run(stop))
        async with asyncio.timeout(60):
            while not (drops := (await running.broker.funnel()).drops):
                await asyncio.sleep(0.02)
        stop.set()
        await linking
        funnel = await running.broker.funnel()
    assert {reason for _, reason in drops} == {"tenant_opt_out"}
    assert funnel.steps.get("linked", 0) == 0


async def test_a_body_in_pieces_is_refused_as_soon_as_it_is_too_large(fake_engine: Any, proxy: Any) -> None:
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b"x" * 1000
            await asyncio.sleep(0.001)

    async with proxy(proxy={"max_request_bytes": 10_000}) as running:
        url = running.url + "/v1/messages"
        async with running.session.post(url, data=pieces()) as response:
            assert response.status == 413
            document = await response.json()
        assert sent < 1000
        for path in ("/v1/chat/completions", "/tokenize", "/v1/feedback"):
            async with running.session.post(running.url + path, data=b"x" * 10_001) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (413, "request_too_large")
    assert (document["type"], document["error"]["type"]) == ("error", "request_too_large")
    assert "proxy.max_request_bytes" in document["error"]["message"]


async def test_a_declared_length_is_refused_before_anything_is_read(fake_engine: Any, proxy: Any) -> None:
    async with proxy(proxy={"max_request_bytes": 10_000}) as running:
        host, port = running.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\nexpect: 100-continue\r\n\r\n"
        )
        writer.write(head)
        async with asyncio.timeout(60):
            assert b"413" in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_tenants_do_not_continue_one_another(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    async with proxy(proxy={"api_keys": KEYS}) as running:
        stop = asyncio.Event()
        linking = asyncio.create_task(LinkerTask(running.broker, running.deps.config, running.deps.metrics).run(stop))
        _, data = await running.ask(ASK, authorization="Bearer k-acme", x_session_id="s")
        answer = json.loads(data)["choices"][0]["message"]
        # The other tenant comes first, with the same session id and the whole transcript.
        for key, words in (("k-plain", "Theirs."), ("k-acme", "Ours.")):
            follow_up = [*ASK["messages"], answer, {"role": "user", "content": words}]
            await running.ask({"messages": follow_up}, authorization=f"Bearer {key}", x_session_id="s")
        turns: list[Any] = []
        async with asyncio.timeout(60):
            while not turns:
                turns = await running.broker.read(TURNS, "test", 10, 50)
        record = await running.broker.get_turn(turns[0].turn_id)
        stop.set()
        await linking
    assert [entry.tenant for entry in turns] == ["acme"]
    assert json.loads(record.next_state) == [{"role": "user", "content": "Ours."}]
