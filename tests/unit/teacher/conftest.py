"""A policy engine that only tokenizes: ids are the characters of a template of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from aiohttp import web

CONTROL = "<|end|>"


class CodePoints:
    """The vocabulary of that engine; it has one control token, id 1."""

    control_tokens: ClassVar = {1: CONTROL}

    def encode(self, text: str) -> list[int]:
        return encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def encode(text: str) -> list[int]:
    return [ord(char) for char in text.replace(CONTROL, chr(1))]


def render(messages: list[dict[str, Any]], *, generation: bool = True, tools: Any = None) -> list[int]:
    """``<role>content;`` a message; ids are code points."""
    text = f"<T{len(tools)}>" if tools else ""
    for message in messages:
        content = message["content"]
        shown = content if isinstance(content, str) else "".join(part["text"] for part in content)
        text += f"<{message['role']}>{shown};"
    return encode(text + ("<assistant>" if generation else ""))


@dataclass
class FakeEngine:
    """Answers ``/tokenize`` and ``/v1/tokenize``; ``status`` other than 200 answers that to messages."""

    url: str = ""
    status: int = 200
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append((request.path, body))
        if "prompt" in body:
            return web.json_response({"tokens": encode(body["prompt"])})
        if self.status != 200:
            return web.json_response({"error": "no"}, status=self.status)
        generation = body.get("add_generation_prompt", True)
        return web.json_response({"tokens": render(body["messages"], generation=generation, tools=body.get("tools"))})

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})


async def _served() -> AsyncIterator[FakeEngine]:
    fake = FakeEngine()
    app = web.Application()
    app.router.add_post("/tokenize", fake.tokenize)
    app.router.add_post("/v1/tokenize", fake.tokenize)
    app.router.add_get("/v1/models", fake.models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await runner.cleanup()


policy = pytest.fixture(_served, name="policy")
other_policy = pytest.fixture(_served, name="other_policy")
