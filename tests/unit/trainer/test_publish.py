from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hintloop_contract.broker import WeightsState
from hintloop_contract.errors import DependencyError
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_trainer.errors import PublishError
from hintloop_trainer.publish.engines import EngineHttp
from hintloop_trainer.publish.protocol import Publisher, Release
from hintloop_trainer.publish.sglang import SglangControl
from hintloop_trainer.publish.vllm import VllmControl

from .fake_engines import FakeEngine

IDS = [1, 2, 3]
CONTROLS = {"vllm": VllmControl, "sglang": SglangControl}


class Site:
    """One fake engine of a dialect and a publisher for it."""

    def __init__(self, dialect: str, folder: Path, session: aiohttp.ClientSession, server: TestServer) -> None:
        self.server = server
        self.broker = MemoryBroker()
        http = EngineHttp(session, str(server.make_url("")).rstrip("/"), "", 5.0)
        self.control = CONTROLS[dialect](http)
        self.folder = folder
        self.publisher = Publisher(self.broker, [self.control], weights_dir=folder, tolerance=1e-3, keep_versions=2)

    def release(self, version: int, scores: list[float] | None = None) -> Release:
        directory = self.folder / str(version)
        directory.mkdir()
        return Release(version, directory, IDS, scores or [-1.0, -1.0])


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(params=sorted(CONTROLS))
async def site(request: pytest.FixtureRequest, engine: FakeEngine, tmp_path: Path) -> AsyncIterator[Site]:
    async with TestServer(engine.app()) as server, aiohttp.ClientSession() as session:
        made = Site(request.param, tmp_path, session, server)
        yield made
        await made.broker.close()


async def test_a_release_reaches_the_engine_and_is_announced(site: Site, engine: FakeEngine) -> None:
    await site.publisher.publish(site.release(1))
    assert engine.version == "1"
    assert engine.directory == str(site.folder / "1")
    assert not engine.paused
    assert (site.folder / "current").resolve() == site.folder / "1"
    assert await site.broker.weights() == WeightsState(current=1, updating=None)
    assert await site.broker.get_status("engines") == {site.control.url: "1"}


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/reset_prefix_cache", {"success": False}),
        ("/collective_rpc", {"results": [{"success": False, "message": "does not fit"}]}),
        ("/update_weight_version", {"success": False}),
        ("/update_weights_from_disk", {"success": False, "message": "does not fit"}),
    ],
)
async def test_every_success_field_is_read(
    site: Site, engine: FakeEngine, path: str, answer: dict[str, object]
) -> None:
    await site.publisher.publish(site.release(1))
    engine.calls.clear()
    engine.fail[path] = web.json_response(answer)
    second = site.release(2)
    concerned = (
        path == "/update_weights_from_disk" if isinstance(site.control, SglangControl) else "weights" not in path
    )
    if not concerned:
        await site.publisher.publish(second)
        return
    with pytest.raises(PublishError):
        await site.publisher.publish(second)
    assert not engine.paused
    # No one can say what the engine serves: both versions stay in force, and the old one is current.
    assert await site.broker.weights() == WeightsState(current=1, updating=2)
    assert (site.folder / "current").resolve().name == "1"

    engine.fail.clear()
    await site.publisher.publish(second)
    assert await site.broker.weights() == WeightsState(current=2, updating=None)


async def test_other_scores_than_the_trainers_are_a_failed_publish(site: Site, engine: FakeEngine) -> None:
    with pytest.raises(PublishError, match="probe"):
        await site.publisher.publish(site.release(1, [-1.0, -1.01]))
    assert not engine.paused


async def test_a_score_that_is_missing_is_a_failed_publish(site: Site, engine: FakeEngine) -> None:
    engine.scorer = lambda ids: [-1.0, None]  # type: ignore[list-item]
    with pytest.raises(PublishError, match="log-probabilities"):
        await site.publisher.publish(site.release(1))


async def test_an_http_error_is_a_failed_publish_and_the_engine_resumes(site: Site, engine: FakeEngine) -> None:
    for path in ("/collective_rpc", "/update_weights_from_disk"):
        engine.fail[path] = web.Response(status=400, text="no")
    with pytest.raises(PublishError, match="HTTP 400"):
        await site.publisher.publish(site.release(1))
    assert not engine.paused


async def test_no_engine_at_all_is_an_absent_dependency(site: Site) -> None:
    release = site.release(1)
    await site.server.close()
    with pytest.raises(DependencyError, match="policy engines"):
        await site.publisher.publish(release)


async def test_an_engine_that_restarted_is_brought_back(site: Site, engine: FakeEngine) -> None:
    await site.publisher.publish(site.release(1))
    engine.version, engine.directory = "default", None
    await site.publisher.reconcile()
    assert (engine.version, engine.directory) == ("1", str(site.folder / "1"))
    engine.calls.clear()
    await site.publisher.reconcile()
    assert len(engine.calls) == 1


async def test_old_versions_go_unless_an_engine_reports_them(site: Site, engine: FakeEngine) -> None:
    for version in range(1, 5):
        await site.publisher.publish(site.release(version))
    assert sorted(path.name for path in site.folder.glob("[0-9]*")) == ["3", "4"]


async def test_a_vllm_without_the_extension_is_asked_for_its_own_reload(engine: FakeEngine, tmp_path: Path) -> None:
    async def only_plain(request: web.Request) -> web.Response:
        method = (await request.json())["method"]
        engine.calls.append(method)
        return web.Response(status=500) if method == "hintloop_reload" else web.json_response({"results": [None]})

    app = web.Application()
    app.router.add_post("/collective_rpc", only_plain)
    app.router.add_post("/reset_prefix_cache", engine._succeed)
    app.router.add_post("/update_weight_version", engine._name)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        control = VllmControl(EngineHttp(session, str(server.make_url("")).rstrip("/"), "", 5.0))
        await control.replace(tmp_path, 4)
    assert engine.calls == ["hintloop_reload", "reload_weights"]
    assert engine.version == "4"
