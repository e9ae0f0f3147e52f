"""Sentinels and a Cluster for whoever asks, and a policy engine that replays one recorded answer."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from .servers import Cluster, Sentinels

WIRE = Path(__file__).parents[2] / "fixtures" / "wire" / "vllm"


@pytest.fixture
def sentinels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sentinels]:
    group = Sentinels(tmp_path_factory.mktemp("sentinels"))
    try:
        group.start()
        yield group
    finally:
        group.stop()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    group = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        group.start()
        yield group
    finally:
        group.stop()


@pytest.fixture
async def engine() -> AsyncIterator[str]:
    """The engine's address. Its answers differ in their ids and in a number that they end with."""
    recorded = (WIRE / "chat_stop.json").read_text()
    numbers = itertools.count()

    async def chat(_: web.Request) -> web.Response:
        number = next(numbers)
        body = json.loads(recorded)["body"]
        body["id"] += f"-{number}"
        body["choices"][0]["message"]["content"] += f" ({number})"
        return web.json_response(body)

    async def score(request: web.Request) -> web.Response:
        asked = await request.json()
        if "prompt_logprobs" in asked:
            scores = [None, *({str(token): {"logprob": -2.0}} for token in asked["prompt"][1:])]
            return web.json_response({"choices": [{"prompt_logprobs": scores}]})
        sampled = {"prompt_token_ids": [5], "token_ids": [7, 8], "logprobs": {"token_logprobs": [-1.0, -1.0]}}
        return web.json_response({"choices": [sampled]})

    async def plain(_: web.Request) -> web.Response:
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
