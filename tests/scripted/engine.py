"""A scripted engine on a socket of 127.0.0.1: says what a test tells it to, in the recorded wire shapes of either.

It passes the proxy's start-up probe with made-up scores. ``truth`` keeps what really was sampled, by response id.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from . import shapes
from .answers import Given, Scripted, Truth, prompt_ids_of, tokens_of

Script = Callable[[dict[str, Any]], Scripted]


class ScriptedEngine:
    """Engine ``kind`` (``vllm`` or ``sglang``) whose chat completions are what ``script`` says of each request."""

    def __init__(self, kind: str, script: Script) -> None:
        self.kind = kind
        self.script = script
        self.url = ""
        self.model = "scripted"
        self.truth: dict[str, Truth] = {}
        self.asked: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        for name in ("input", "output"):
            if request.headers.get(f"x-sglext-return-{name}-ids") == "1":
                asked[f"return_{name}_ids_in_sglext"] = True
        self.asked.append(asked)
        said = self.script(asked)
        given = Given(asked, said, f"chatcmpl-{next(self._numbers):012d}", prompt_ids_of(asked), tokens_of(said))
        self.truth[given.response_id] = given.truth
        if not asked.get("stream"):
            return web.Response(body=shapes.body(self.kind, given), content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for event in shapes.events(self.kind, given):
            await response.write(event)
        await response.write_eof()
        return response

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": self.model, "object": "model", "created": 1, "owned_by": "x", "max_model_len": 32768}
        return web.json_response({"object": "list", "data": [model]})

    async def _completions(self, request: web.Request) -> web.Response:
        """vLLM's side of the probe: two nats a token, half of it after temperature."""
        asked = await request.json()
        if asked.get("logprobs"):
            top = {f"token_id:{token}": -0.5 * (token + 1) for token in range(5)}
            return web.json_response({"choices": [{"logprobs": {"top_logprobs": [top]}}]})
        if "prompt_logprobs" in asked:
            scores = [None, *({str(token): {"logprob": -2.0}} for token in asked["prompt"][1:])]
            return web.json_response({"choices": [{"prompt_logprobs": scores}]})
        choice = {"prompt_token_ids": [5, 6], "token_ids": [7, 8], "logprobs": {"token_logprobs": [-1.0, -1.0]}}
        return web.json_response({"choices": [choice]})

    async def _generate(self, request: web.Request) -> web.Response:
        """SGLang's side of the probe."""
        asked = await request.json()
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
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_get("/server_info", _settings)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/v1/chat/completions", self.chat)
        return app


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
