from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hintloop_contract.broker import WeightsState
from hintloop_contract.errors import DependencyError
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_trainer.errors import EngineAwayError, PublishError
from hintloop_trainer.publish import protocol
from hintloop_trainer.publish.engines import EngineHttp
from hintloop_trainer.publish.protocol import Publisher
from hintloop_trainer.publish.reconciler import reconcile_forever
from hintloop_trainer.publish.release import Release
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


async def test_an_engine_that_fails_the_probe_is_never_taken_for_current(site: Site, engine: FakeEngine) -> None:
    await site.publisher.publish(site.release(1))
    right = engine.scorer
    engine.version, engine.scorer = "default", lambda ids: [-2.0] * (len(ids) - 1)
    for _ in range(2):
        engine.calls.clear()
        await site.publisher.reconcile()
        # It says that it has the version, for that was set before its probe failed.
        assert engine.version == "1"
        assert any("pause" in call for call in engine.calls)
        state = await site.broker.weights()
        assert state.current == 1 and state.updating is not None and state.updating > 1
    engine.scorer = right
    for _ in range(2):
        assert (await site.broker.weights()).updating is not None
        await site.publisher.reconcile()
    assert await site.broker.weights() == WeightsState(current=1, updating=None)


async def test_answers_begun_before_a_repair_ended_keep_counting_as_mixed(site: Site, engine: FakeEngine) -> None:
    await site.publisher.publish(site.release(1))
    await site.broker.inflight_add("turn", await site.broker.time_ms())
    engine.version = "default"
    for _ in range(3):
        await site.publisher.reconcile()
    assert (await site.broker.weights()).updating is not None
    await site.broker.inflight_remove("turn")
    await site.publisher.reconcile()
    assert (await site.broker.weights()).updating is None


async def test_a_failed_publish_brings_the_engines_back(site: Site, engine: FakeEngine) -> None:
    await site.publisher.publish(site.release(1))
    with pytest.raises(PublishError, match="probe"):
        await site.publisher.publish(site.release(2, [-1.5, -1.5]))
    assert (engine.version, engine.directory) == ("1", str(site.folder / "1"))
    assert (await site.broker.weights()) == WeightsState(current=1, updating=2)
    for _ in range(2):
        await site.publisher.reconcile()
    assert (await site.broker.weights()) == WeightsState(current=1, updating=None)


async def test_a_restarted_trainer_knows_the_way_back(site: Site, engine: FakeEngine) -> None:
    await site.publisher.publish(site.release(1))
    later = Publisher(site.broker, [site.control], weights_dir=site.folder, tolerance=1e-3, keep_versions=2)
    await later.restore()
    with pytest.raises(PublishError, match="probe"):
        await later.publish(site.release(2, [-1.5, -1.5]))
    assert (engine.version, engine.directory) == ("1", str(site.folder / "1"))
    assert (await site.broker.weights()) == WeightsState(current=1, updating=2)


@pytest.mark.parametrize("failures", [1, 3])
async def test_a_resume_that_fails_is_tried_again(
    site: Site, engine: FakeEngine, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "RESUME_WAIT_S", 0.01)
    resume, tries = site.control.resume, 0

    async def unsteady() -> None:
        nonlocal tries
        tries += 1
        if tries <= failures:
            raise PublishError(site.control.url, "/resume", "HTTP 500")
        await resume()

    monkeypatch.setattr(site.control, "resume", unsteady)
    await site.publisher.publish(site.release(1))
    assert not engine.paused


async def test_an_engine_left_paused_is_resumed_by_the_reconciler(site: Site, engine: FakeEngine) -> None:
    await site.publisher.publish(site.release(1))
    for path in ("/resume", "/continue_generation"):
        engine.fail[path] = web.Response(status=500)
    with pytest.raises(PublishError):
        await site.publisher.publish(site.release(2))
    assert engine.paused
    engine.fail.clear()
    await site.publisher.reconcile()
    assert not engine.paused
    assert engine.version == "1"


@pytest.mark.parametrize("answer", [web.json_response(None), web.json_response([1]), web.json_response({})])
async def test_an_answer_of_another_form_is_a_failed_publish(answer: web.Response, tmp_path: Path) -> None:
    engine = FakeEngine()
    for path in ("/weight_info", "/model_info", "/v1/models", "/v1/completions", "/generate"):
        engine.fail[path] = answer
    async with TestServer(engine.app()) as server, aiohttp.ClientSession() as session:
        for make in CONTROLS.values():
            control = make(EngineHttp(session, str(server.make_url("")).rstrip("/"), "", 5.0))
            with pytest.raises(PublishError, match="unexpected answer"):
                await control.score(IDS)


async def test_reconciling_goes_on_after_what_no_one_foresaw(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, looks = asyncio.Event(), 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise KeyError("choices")
        stop.set()

    monkeypatch.setattr(site.publisher, "reconcile", look)
    await asyncio.wait_for(reconcile_forever(site.publisher, 0.01, stop), 60)
    assert looks == 2


async def test_a_version_is_above_all_that_is_on_disk(site: Site) -> None:
    site.release(41)
    assert await site.publisher.take_version() == 42
    assert await site.publisher.take_version(above=50) == 51


class Partitioned:
    """An engine that may be cut off, and keeps what it serves meanwhile."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.away = False
        self.serves: int | None = None

    async def _reach(self) -> None:
        if self.away:
            raise EngineAwayError(self.url, "/", "cut off")

    async def pause(self) -> None:
        await self._reach()

    async def replace(self, directory: Path, version: int) -> None:
        await self._reach()
        self.serves = version

    async def resume(self) -> None:
        await self._reach()

    async def version(self) -> int | None:
        await self._reach()
        return self.serves

    async def score(self, token_ids: list[int], adapter: str | None = None) -> list[float]:
        await self._reach()
        return [-1.0] * (len(token_ids) - 1)

    async def adapters(self) -> list[str]:
        raise NotImplementedError

    async def load_adapter(self, name: str, directory: Path) -> None:
        raise NotImplementedError

    async def unload_adapter(self, name: str) -> None:
        raise NotImplementedError


async def test_old_versions_go_unless_an_engine_was_last_seen_with_them(tmp_path: Path) -> None:
    one, two = Partitioned("http://one"), Partitioned("http://two")
    broker = MemoryBroker()
    publisher = Publisher(broker, [one, two], weights_dir=tmp_path, tolerance=1e-3, keep_versions=2)

    async def publish(version: int) -> list[str]:
        (tmp_path / str(version)).mkdir()
        await publisher.publish(Release(version, tmp_path / str(version), IDS, [-1.0, -1.0]))
        return kept()

    def kept() -> list[str]:
        return sorted(path.name for path in tmp_path.glob("[0-9]*"))

    assert await publish(1) == ["1"]
    two.away = True
    assert [await publish(version) for version in (2, 3, 4)][-1] == ["1", "3", "4"]
    assert await broker.get_status("engines") == {"http://one": "4", "http://two": ""}
    two.away = False
    await publisher.reconcile()
    assert two.serves == 4
    assert await publish(5) == ["4", "5"]
    await broker.close()


@pytest.mark.parametrize(
    ("message", "methods"),
    [
        ("Method 'hintloop_reload' is not implemented.", ["hintloop_reload", "reload_weights"]),
        ("Call to collective_rpc method failed: out of memory", ["hintloop_reload"]),
    ],
)
async def test_only_a_vllm_without_the_extension_is_asked_for_its_own_reload(
    engine: FakeEngine, tmp_path: Path, message: str, methods: list[str]
) -> None:
    async def only_plain(request: web.Request) -> web.Response:
        method = (await request.json())["method"]
        engine.calls.append(method)
        if method == "hintloop_reload":
            return web.json_response({"error": {"message": message}}, status=500)
        return web.json_response({"results": [None]})

    app = web.Application()
    app.router.add_post("/collective_rpc", only_plain)
    app.router.add_post("/reset_prefix_cache", engine._succeed)
    app.router.add_post("/update_weight_version", engine._name)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        control = VllmControl(EngineHttp(session, str(server.make_url("")).rstrip("/"), "", 5.0))
        if len(methods) == 1:
            with pytest.raises(PublishError, match="out of memory"):
                await control.replace(tmp_path, 4)
        else:
            await control.replace(tmp_path, 4)
            assert engine.version == "4"
    assert engine.calls == methods
