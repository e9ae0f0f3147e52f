"""Turns to judge, and a judge's engine on loopback that answers as told."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from hintloop_contract.messages import Capture, LinkedTurn, Sampling, TurnRecord
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import CAPTURES, TURNS
from hintloop_contract.tensors import pack

#: Gets a request's body, gives the texts of its choices, a status, or bytes to send as they are.
Reply = Callable[[dict[str, Any]], Any]


async def link(broker: RedisBroker, turn_id: str, reply: str, answer: str = "Rain is water.") -> None:
    """Append a linked turn whose user answered ``reply``."""
    capture = Capture(turn_id=turn_id, engine="vllm", engine_url="", request=b"{}", start_ms=0, end_ms=1)
    await broker.append(CAPTURES, capture)
    (entry,) = await broker.read(CAPTURES, "linker", 1, 100)
    turn = LinkedTurn(
        turn_id=turn_id,
        session_id="s",
        turn_index=0,
        engine="vllm",
        engine_url="http://127.0.0.1:1",
        behaviour_space="processed",
        sampling=Sampling(),
        version_oldest=0,
        version_newest=0,
        num_prompt_tokens=2,
        num_response_tokens=1,
        captured_ms=0,
        linked_ms=0,
    )
    record = TurnRecord(
        turn_id=turn_id,
        messages=b'[{"role": "user", "content": "What is rain?"}]',
        answer=json.dumps({"role": "assistant", "content": answer}).encode(),
        next_state=json.dumps([{"role": "user", "content": reply}]).encode(),
        prompt_ids=pack([1, 2], "int32"),
        response_ids=pack([3], "int32"),
        logprobs=pack([-0.5], "float32"),
    )
    assert await broker.commit(entry, TURNS, turn, record=record)


def is_hint(body: dict[str, Any]) -> bool:
    """Whether a question asks for a hint."""
    text = body["messages"][0]["content"]
    return "[HINT_START]" in text or '{"hint"' in text


@dataclass
class StandInEngine:
    """A chat endpoint without limits of its own. ``reply`` decides; ``seconds`` pass before it does."""

    url: str = ""
    reply: Reply = field(default=lambda body: ["\\boxed{1}"])
    seconds: float = 0.0
    free: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, unless answers about turns are held back; a judge that starts asks about none."""
    drip: bool = False
    num_asked: int = 0
    num_running: int = 0
    most_running: int = 0
    """Most questions at once."""
    asked: Counter[str] = field(default_factory=Counter)
    """Questions by the turn whose name stands in the user's words (``turn-…``)."""

    def __post_init__(self) -> None:
        """Nothing is held back."""
        self.free.set()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer a question."""
        body = await request.json()
        text = body["messages"][0]["content"]
        named = [word.strip(".") for word in text.split() if word.startswith("turn-")]
        self.asked.update(named)
        self.num_asked += 1
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            await asyncio.sleep(self.seconds)
            if named:
                await self.free.wait()
        finally:
            self.num_running -= 1
        if self.drip:
            return await _drip(request)
        told = self.reply(body)
        if isinstance(told, bytes):
            return web.Response(body=told, content_type="application/json")
        if isinstance(told, int):
            return web.json_response({"error": "told so"}, status=told)
        texts, reason = (told["texts"], told["finish_reason"]) if isinstance(told, dict) else (told, "stop")
        choices = [{"message": {"role": "assistant", "content": text}, "finish_reason": reason} for text in texts]
        return web.json_response({"choices": choices})

    async def models(self, request: web.Request) -> web.Response:
        """Name the one model."""
        return web.json_response({"data": [{"id": "stand-in"}]})


async def _drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(100):
        await response.write(b" ")
        await asyncio.sleep(0.05)
    return response


@asynccontextmanager
async def serving() -> AsyncIterator[StandInEngine]:
    """An engine on a free port."""
    stand_in = StandInEngine()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", stand_in.complete)
    app.router.add_get("/v1/models", stand_in.models)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        stand_in.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield stand_in
    finally:
        await runner.cleanup()


@pytest.fixture
async def engine() -> AsyncIterator[StandInEngine]:
    """The engine, serving."""
    async with serving() as stand_in:
        yield stand_in


@pytest.fixture
async def broker(redis_server: Any) -> AsyncIterator[RedisBroker]:
    """The streams on a real Redis."""
    broker = RedisBroker(connect(redis_server.url), "default")
    await broker.ensure_groups()
    yield broker
    await broker.close()
