"""`publishing.transport = "none"`: versions are released on disk, and no engine hears of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer
from hintloop_contract.broker import WeightsState
from hintloop_contract.config.schema import Config
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_trainer.errors import PublishError
from hintloop_trainer.publish.release import Release
from hintloop_trainer.wiring import engine_controls, make_publisher


async def release_one(tmp_path: Path, transport: str) -> tuple[list[str], WeightsState]:
    """Release version 1 and reconcile once; the paths that the engine was asked for, and the weights' state."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=404)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        config = Config.model_validate(
            {
                "policy": {"engines": [str(server.make_url("")).rstrip("/")]},
                "rollout": {"engine": "vllm"},
                "publishing": {"transport": transport, "weights_dir": tmp_path / "weights"},
                "model": {"dtype": "float32"},
            }
        )
        broker = MemoryBroker("default")
        publisher = make_publisher(config, broker, engine_controls(config, session))
        directory = tmp_path / "weights" / "1"
        directory.mkdir(parents=True)
        (directory / "model.safetensors").write_bytes(b"")
        try:
            await publisher.publish(Release(1, directory, [1, 2], [-1.0], []))
            await publisher.reconcile()
        except PublishError:
            assert transport == "disk"
        await publisher.close()
        return asked, await broker.weights()


def test_no_engine_is_told_of_a_version(tmp_path: Path) -> None:
    asked, state = asyncio.run(release_one(tmp_path, "none"))
    assert asked == []
    assert state == WeightsState(current=1, updating=None)
    assert (tmp_path / "weights" / "current").resolve().name == "1"


def test_by_disk_the_same_engine_is(tmp_path: Path) -> None:
    asked, state = asyncio.run(release_one(tmp_path, "disk"))
    assert asked
    assert state.current is None
