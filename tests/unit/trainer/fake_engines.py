"""Stand-ins for engines: the control routes of both dialects over HTTP, with failures on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from transformers import AutoModelForCausalLM

Scorer = Callable[[list[int]], list[float]]


def transformers_scorer(directory: Path) -> Scorer:
    """Scores of the model of ``directory``."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    @torch.no_grad()
    def score(ids: list[int]) -> list[float]:
        plain = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return [plain[position, token].item() for position, token in enumerate(ids[1:])]

    return score


class FakeEngine:
    """Remembers what it was asked; ``fail`` maps a path to an answer given instead of the right one."""

    def __init__(self, load: Callable[[Path], Scorer] | None = None) -> None:
        self.calls: list[str] = []
        self.paused = False
        self.version = "default"
        self.directory: str | None = None
        self.fail: dict[str, web.Response] = {}
        self.scorer: Scorer = lambda ids: [-1.0] * (len(ids) - 1)
        self._load = load

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._record])
        app.router.add_post("/pause", self._pause)
        app.router.add_post("/pause_generation", self._pause)
        app.router.add_post("/resume", self._resume)
        app.router.add_post("/continue_generation", self._resume)
        app.router.add_post("/collective_rpc", self._rpc)
        app.router.add_post("/reset_prefix_cache", self._succeed)
        app.router.add_post("/update_weight_version", self._name)
        app.router.add_post("/update_weights_from_disk", self._update)
        app.router.add_get("/weight_info", self._version)
        app.router.add_get("/model_info", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/generate", self._generate)
        return app

    @web.middleware
    async def _record(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.calls.append(request.path)
        failure = self.fail.get(request.path)
        if failure is None:
            answer: web.StreamResponse = await handler(request)
            return answer
        # A response can be sent once only.
        return web.Response(status=failure.status, body=failure.body, content_type=failure.content_type)

    def take(self, directory: str) -> None:
        self.directory = directory
        if self._load:
            self.scorer = self._load(Path(directory))

    async def _pause(self, request: web.Request) -> web.Response:
        self.paused = True
        return web.json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        self.paused = False
        return web.json_response({"status": "resumed"})

    async def _rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(body["method"])
        self.take(body["kwargs"]["weights_path"])
        return web.json_response({"results": [{"success": True, "message": ""}]})

    async def _succeed(self, request: web.Request) -> web.Response:
        return web.json_response({"success": True})

    async def _name(self, request: web.Request) -> web.Response:
        self.version = (await request.json())["new_version"]
        return web.json_response({"success": True})

    async def _update(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.take(body["model_path"])
        self.version = body["weight_version"]
        return web.json_response({"success": True, "message": "", "num_paused_requests": 0})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.version})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy"}]})

    async def _completions(self, request: web.Request) -> web.Response:
        assert not self.paused, "a paused engine answers no one"
        ids = (await request.json())["prompt"]
        rows = [{str(token): {"logprob": value}} for token, value in zip(ids[1:], self.scorer(ids), strict=True)]
        return web.json_response({"choices": [{"prompt_logprobs": [None, *rows]}]})

    async def _generate(self, request: web.Request) -> web.Response:
        assert not self.paused, "a paused engine answers no one"
        ids = (await request.json())["input_ids"]
        rows = [[value, token, None] for token, value in zip(ids[1:], self.scorer(ids), strict=True)]
        return web.json_response({"meta_info": {"input_token_logprobs": [[None, ids[0], None], *rows]}})
