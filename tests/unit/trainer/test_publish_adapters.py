"""Adapters to fake engines of both dialects: names, what stays loaded, and what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hintloop_contract.broker import WeightsState
from hintloop_contract.ids import adapter_name
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_trainer.errors import PublishError
from hintloop_trainer.publish.adapters import LOADED
from hintloop_trainer.publish.engines import EngineHttp
from hintloop_trainer.publish.protocol import Publisher
from hintloop_trainer.publish.release import ADAPTER_CONFIG, Release
from hintloop_trainer.publish.sglang import SglangControl
from hintloop_trainer.publish.vllm import VllmControl

from .fake_engines import FakeEngine

CONTROLS: dict[str, Any] = {"vllm": VllmControl, "sglang": SglangControl}
LOAD = ("/v1/load_lora_adapter", "/load_lora_adapter")


class FakeAdapterEngine(FakeEngine):
    """Holds adapters by name; ``scores`` says how the probe is scored under each."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters: dict[str, str] = {}
        self.scores: dict[str, float] = {}
        self.asked: list[str | None] = []

    def app(self) -> web.Application:
        app = super().app()
        for path in LOAD:
            app.router.add_post(path, self._load_adapter)
            app.router.add_post(path.replace("/load", "/unload"), self._unload_adapter)
        return app

    async def _load_adapter(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["lora_name"] in self.adapters:
            return web.json_response({"success": False, "message": "already loaded"}, status=400)
        self.adapters[body["lora_name"]] = body["lora_path"]
        prose = request.path.startswith("/v1")
        return web.Response(text="Success: added") if prose else web.json_response({"success": True})

    async def _unload_adapter(self, request: web.Request) -> web.Response:
        body = await request.json()
        del self.adapters[body["lora_name"]]
        self.scores.pop(body["lora_name"], None)
        prose = request.path.startswith("/v1")
        return web.Response(text="Success: removed") if prose else web.json_response({"success": True})

    async def _models(self, request: web.Request) -> web.Response:
        others = [{"id": name, "parent": "policy"} for name in self.adapters]
        return web.json_response({"data": [{"id": "policy"}, *others]})

    def _score(self, name: str | None, count: int) -> list[float]:
        self.asked.append(name)
        assert name is None or name == "policy" or name in self.adapters
        return [self.scores.get(name or "", -1.0)] * count

    async def _completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        values = self._score(body["model"], len(body["prompt"]) - 1)
        rows = [{str(token): {"logprob": value}} for token, value in zip(body["prompt"][1:], values, strict=True)]
        return web.json_response({"choices": [{"prompt_logprobs": [None, *rows]}]})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        values = self._score(body.get("lora_path"), len(body["input_ids"]) - 1)
        rows = [[value, token, None] for token, value in zip(body["input_ids"][1:], values, strict=True)]
        return web.json_response({"meta_info": {"input_token_logprobs": [[None, 0, None], *rows]}})


class Site:
    """One fake engine of a dialect and a publisher for it."""

    def __init__(self, dialect: str, folder: Path, session: aiohttp.ClientSession, url: str) -> None:
        self.folder = folder
        self.broker = MemoryBroker()
        self.control = CONTROLS[dialect](EngineHttp(session, url, "", 5.0))
        self.publisher = Publisher(self.broker, [self.control], weights_dir=folder, tolerance=1e-3, keep_versions=1)

    def release(self, version: int, score: float = -1.0) -> Release:
        directory = self.folder / str(version)
        directory.mkdir()
        (directory / ADAPTER_CONFIG).write_text("{}")
        return Release(version, directory, [1, 2, 3], [score, score])

    async def publish(self, version: int) -> None:
        await self.publisher.publish(self.release(version))
        await asyncio.gather(*self.publisher._tidying)


@pytest.fixture
def engine() -> FakeAdapterEngine:
    return FakeAdapterEngine()


@pytest.fixture(params=sorted(CONTROLS))
async def site(request: pytest.FixtureRequest, engine: FakeAdapterEngine, tmp_path: Path) -> AsyncIterator[Site]:
    async with TestServer(engine.app()) as server, aiohttp.ClientSession() as session:
        made = Site(request.param, tmp_path, session, str(server.make_url("")).rstrip("/"))
        yield made
        await made.broker.close()


async def test_an_adapter_is_loaded_beside_the_others_without_a_pause(site: Site, engine: FakeAdapterEngine) -> None:
    await site.publish(1)
    await site.publish(2)
    assert engine.adapters == {adapter_name(version): str(site.folder / str(version)) for version in (1, 2)}
    assert engine.asked == [adapter_name(1), adapter_name(2)]
    assert not any("pause" in call or "cache" in call for call in engine.calls)
    assert await site.broker.weights() == WeightsState(current=2, updating=None)
    assert await site.broker.get_status("engines") == {site.control.url: "2"}


async def test_the_newest_few_stay_loaded_and_on_disk(site: Site, engine: FakeAdapterEngine) -> None:
    for version in range(1, LOADED + 3):
        await site.publish(version)
    newest = range(3, LOADED + 3)
    assert sorted(engine.adapters) == sorted(adapter_name(version) for version in newest)
    assert sorted(int(path.name) for path in site.folder.glob("[0-9]*")) == list(newest)


async def test_an_engine_that_restarted_is_given_the_current_one(site: Site, engine: FakeAdapterEngine) -> None:
    await site.publish(1)
    await site.publish(2)
    engine.adapters.clear()
    await site.publisher.reconcile()
    assert list(engine.adapters) == [adapter_name(2)]


async def test_other_scores_fail_and_the_version_before_stays_in_force(site: Site, engine: FakeAdapterEngine) -> None:
    await site.publish(1)
    engine.scores[adapter_name(2)] = -2.0
    with pytest.raises(PublishError, match="probe"):
        await site.publisher.publish(site.release(2))
    assert await site.broker.weights() == WeightsState(current=1, updating=2)
    assert await site.broker.get_status("engines") == {site.control.url: "1"}
    engine.scores.clear()
    await site.publish(3)
    assert await site.broker.weights() == WeightsState(current=3, updating=None)


async def test_an_adapter_that_scores_otherwise_is_loaded_anew(site: Site, engine: FakeAdapterEngine) -> None:
    await site.publish(1)
    engine.scores[adapter_name(1)] = -2.0
    site.publisher._verified.clear()
    await site.publisher.reconcile()
    assert sum(call in LOAD for call in engine.calls) == 2
    assert site.control.url in site.publisher._verified


async def test_a_restarted_trainer_disturbs_no_answer(site: Site, engine: FakeAdapterEngine) -> None:
    await site.publish(1)
    later = Publisher(site.broker, [site.control], weights_dir=site.folder, tolerance=1e-3, keep_versions=1)
    await later.restore()
    await later.reconcile()
    assert sum("load" in call for call in engine.calls) == 1, "it was there, and the probe says so"


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=404, text="Not Found"),
        web.json_response({"success": False, "error_message": "LoRA is not enabled."}, status=400),
    ],
)
async def test_an_engine_without_adapters_is_told_how_to_start(
    site: Site, engine: FakeAdapterEngine, answer: web.Response
) -> None:
    for path in LOAD:
        engine.fail[path] = answer
    with pytest.raises(PublishError, match="HINTLOOP_LORA_RANK"):
        await site.publisher.publish(site.release(1))
