"""A chat endpoint on loopback that answers as told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

Answer = Callable[[dict[str, Any]], tuple[int, Any]]


def completion(*texts: str | None, finish_reason: str = "stop") -> dict[str, Any]:
    """A chat completion with a choice a text."""
    message = [{"role": "assistant", "content": text} for text in texts]
    return {"choices": [{"message": one, "finish_reason": finish_reason} for one in message]}


@dataclass
class FakeEndpoint:
    """``answer`` gets a request's body and gives status and body; every request is kept.

    ``together``: nothing is answered before so many have waited at once.
    """

    url: str = ""
    answer: Answer = field(default=lambda body: (200, completion("\\boxed{0}")))
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    slow_s: float = 0.0
    together: int = 0
    retry_after: str = ""
    num_running: int = 0
    most_running: int = 0
    models: list[str] = field(default_factory=lambda: ["judge-model"])

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        while self.most_running < self.together:
            await asyncio.sleep(0.01)
        await asyncio.sleep(self.slow_s)
        self.num_running -= 1
        status, answer = self.answer(body)
        headers = {"Retry-After": self.retry_after} if self.retry_after else {}
        return web.json_response(answer, status=status, headers=headers)

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self.models]})


@pytest.fixture
async def endpoint() -> AsyncIterator[FakeEndpoint]:
    fake = FakeEndpoint()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", fake.complete)
    app.router.add_get("/v1/models", fake.list_models)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await runner.cleanup()
