"""A scripted engine on a socket of 127.0.0.1: says what a test tells it to, in the recorded wire shapes of either.

It passes the proxy's start-up probe with made-up scores. ``truth`` keeps what really was sampled, by response id, and
``truths`` that of every choice.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from . import wire
from .answers import Fault, Given, Scripted, Truth, prompt_ids_of, spoken
from .shapes import FINGERPRINT

Script = Callable[[dict[str, Any]], Scripted | Sequence[Scripted]]
#: Pieces into which a stream is cut at most.
MOST_PIECES = 300
#: Requests that only the proxy's probe makes.
PROBES = ("ignore_eos", "prompt_logprobs", "return_tokens_as_token_ids", "logprob_start_len")


class ScriptedEngine:
    """Engine ``kind`` (``vllm`` or ``sglang``) whose answers are what ``script`` says of each request."""

    def __init__(self, kind: str, script: Script) -> None:
        self.kind = kind
        self.script = script
        self.url = ""
        self.model = "scripted"
        self.truth: dict[str, Truth] = {}
        self.truths: dict[tuple[str, int], Truth] = {}
        self.asked: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)

    def give(self, path: str, asked: dict[str, Any], said: Scripted | Sequence[Scripted]) -> Given:
        """An answer with ids of its own; its truth is kept."""
        choices = (said,) if isinstance(said, Scripted) else tuple(said)
        number = next(self._numbers)
        # SGLang gives each choice an id of its own.
        ids = [f"{number:012d}-{i if self.kind == 'sglang' else 0}" for i in range(len(choices))]
        text_only = path != wire.CHAT
        made = [spoken(one, f"chatcmpl-{name}", text_only) for one, name in zip(choices, ids, strict=True)]
        given = Given(asked.get("model", self.model), tuple(prompt_ids_of(asked)), tuple(made))
        for index, _ in enumerate(made):
            for name in {one.response_id for one in made}:
                self.truths[name, index] = given.truth(index)
        self.truth[made[0].response_id] = given.truth(0)
        return given

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = await self._asked(request)
        return await self.answer(request, asked, self.give(request.path, asked, self.script(asked)))

    async def _asked(self, request: web.Request) -> dict[str, Any]:
        asked: dict[str, Any] = await request.json()
        for name in ("input", "output"):
            if request.headers.get(f"x-sglext-return-{name}-ids") == "1":
                asked[f"return_{name}_ids_in_sglext"] = True
        self.asked.append(asked)
        return asked

    async def answer(
        self, request: web.Request, asked: dict[str, Any], given: Given, pieces: Iterable[int] = ()
    ) -> web.StreamResponse:
        """Send an answer; a stream is cut into pieces of so many bytes, again and again, or event by event."""
        if asked.get("stream"):
            return await self._stream(request, asked, given, pieces)
        data = wire.body_of(self.kind, request.path, given, asked)
        if given.fault is Fault.DISCONNECTED:
            headers = {"content-type": "application/json", "content-length": str(len(data))}
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            await response.write(wire.cut(data, given))
            return hang_up(request, response)
        if given.fault is Fault.TRUNCATED:
            data = wire.cut(data, given)
        return web.Response(body=data, content_type="application/json")

    async def _stream(
        self, request: web.Request, asked: dict[str, Any], given: Given, pieces: Iterable[int]
    ) -> web.StreamResponse:
        events = wire.events_of(self.kind, request.path, given, asked)
        data = b"".join(events)
        if given.fault in (Fault.TRUNCATED, Fault.DISCONNECTED):
            data = data[: int(given.at * (len(data) - len(wire.DONE)))]
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for part in parts(data, pieces, [len(event) for event in events]):
            await response.write(part)
            await asyncio.sleep(0)
        if given.fault is Fault.DISCONNECTED:
            return hang_up(request, response)
        await response.write_eof()
        return response

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": self.model, "object": "model", "created": 1, "owned_by": "x", "max_model_len": 32768}
        return web.json_response({"object": "list", "data": [model]})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        """vLLM's side of the probe: two nats a token, half of it after temperature."""
        asked = await request.json()
        if not any(name in asked for name in PROBES):
            return await self.chat(request)
        if asked.get("logprobs"):
            top = {f"token_id:{token}": -0.5 * (token + 1) for token in range(5)}
            return web.json_response({"choices": [{"logprobs": {"top_logprobs": [top]}}]})
        if "prompt_logprobs" in asked:
            scores = [None, *({str(token): {"logprob": -2.0}} for token in asked["prompt"][1:])]
            return web.json_response({"choices": [{"prompt_logprobs": scores}]})
        choice = {"prompt_token_ids": [5, 6], "token_ids": [7, 8], "logprobs": {"token_logprobs": [-1.0, -1.0]}}
        return web.json_response({"choices": [choice], "system_fingerprint": FINGERPRINT})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        """SGLang's side of the probe."""
        asked = await request.json()
        if not any(name in asked for name in PROBES):
            return await self.chat(request)
        if "input_ids" in asked:
            entries = [[-2.0 if i else None, token, None] for i, token in enumerate(asked["input_ids"])]
            return web.json_response({"meta_info": {"input_token_logprobs": entries}})
        meta = {"input_token_logprobs": [[None, 5, None], [-2.0, 6, None]]}
        return web.json_response({"meta_info": meta | {"output_token_logprobs": [[-1.0, 7, None], [-1.0, 8, None]]}})

    def app(self) -> web.Application:
        """Its routes."""
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_get("/health", _health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post(wire.COMPLETIONS, self._completions)
        app.router.add_get("/server_info", _settings)
        if self.kind == "sglang":
            app.router.add_post(wire.GENERATE, self._generate)
        app.router.add_post(wire.CHAT, self.chat)
        return app


def parts(data: bytes, pieces: Iterable[int], lengths: Iterable[int]) -> list[bytes]:
    """``data`` cut into pieces of these sizes in rotation, larger where they would be too many; else by ``lengths``."""
    least = len(data) // MOST_PIECES
    sizes: Iterable[int] = itertools.cycle([max(size, least) for size in pieces]) if pieces else lengths
    found, start = [], 0
    for size in sizes:
        if start >= len(data):
            break
        if size:
            found.append(data[start : start + size])
            start += size
    return found


def hang_up(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Close the connection in the middle of an answer."""
    if request.transport is not None:
        request.transport.close()
    return response


async def _health(request: web.Request) -> web.Response:
    return web.Response()


async def _settings(request: web.Request) -> web.Response:
    return web.json_response({"sampling_defaults": "openai"})


@asynccontextmanager
async def serving(engine: ScriptedEngine) -> AsyncIterator[ScriptedEngine]:
    """The engine on a free port; sets its ``url``."""
    runner = web.AppRunner(engine.app(), shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await asyncio.shield(runner.cleanup())
