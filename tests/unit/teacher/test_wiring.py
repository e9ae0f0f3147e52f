"""Which engines the teacher waits for, and how the keys of the PRM engine reach its client."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_teacher import wiring
from hintloop_teacher.app import make_app
from hintloop_teacher.wiring import build_deps, run_worker
from httpx import ASGITransport, AsyncClient

from tests.scripted.scoring_engine import WireEngine, served
from tests.scripted.student import save_student

from .test_app import save_model


@pytest.mark.parametrize(("estimator", "waits"), [("grpo", False), ("on_policy_distillation", True)])
async def test_engines_are_waited_for_only_where_a_teacher_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, estimator: str, waits: bool
) -> None:
    asked: list[Any] = []

    class Worker:
        def __init__(self, broker: Any, options: Any, handler: Any, ready: Any) -> None:
            self.ready = ready

        async def run(self, stop: asyncio.Event) -> None:
            asked.append(await self.ready())

    monkeypatch.setattr(wiring, "StreamWorker", Worker)
    broker = MemoryBroker()
    settings = {
        "model": {"student_model_path": save_model(tmp_path / "m")},
        "advantage": {"estimator": estimator},
        "prm": {"prm_url": "http://127.0.0.1:9"},
        "policy": {"engines": ["http://127.0.0.1:9"]},
    }
    deps = await build_deps(Config.model_validate(settings), broker)

    async def prepared() -> None: ...

    monkeypatch.setattr(deps.engine, "prepare", prepared)
    await run_worker(deps, asyncio.Event())
    assert asked == [not waits]
    await broker.close()


GONE = "http://127.0.0.1:9"


async def deps_of(tmp_path: Path, **prm: Any) -> Any:
    settings = {"model": {"student_model_path": save_student(tmp_path / "s")}, "prm": prm}
    return await build_deps(Config.model_validate(settings), MemoryBroker())


async def test_the_teacher_may_have_an_address_of_its_own(tmp_path: Path) -> None:
    async with served(WireEngine("vllm")) as engine:
        deps = await deps_of(tmp_path, prm_url=GONE, teacher_url=f"{engine.url}/v1/")
        report = await deps.engine.prepare()
        assert report.url == engine.url
        await deps.engine.close()
        shared = await deps_of(tmp_path, prm_url=f"{engine.url}/v1")
        assert (await shared.engine.prepare()).url == engine.url
        await shared.engine.close()


async def test_the_deadline_bounds_a_request(tmp_path: Path) -> None:
    async with served(WireEngine("vllm", flaws={"hangs"})) as engine:
        deps = await deps_of(tmp_path, prm_url=engine.url, timeout_s=60, deadline_s=1.5)
        with pytest.raises(DependencyError, match=r"within 1\.5 s \(prm\.deadline_s\)"):
            await deps.engine.prepare()
        assert len(engine.paths) == 1
        await deps.engine.close()


async def test_an_engine_is_left_alone_after_the_configured_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr("purgatory.domain.model.time", SimpleNamespace(time=lambda: now[0]))
    async with served(WireEngine("vllm")) as engine:
        engine.status = 500
        deps = await deps_of(tmp_path, prm_url=engine.url, circuit_failures=2, circuit_open_s=0.5)
        for _ in range(2):
            with pytest.raises(DependencyError, match=r"failed 2 times in a row; it is left alone for 0\.5 s"):
                await deps.engine.prepare()
        assert len(engine.paths) == 2
        engine.status = 200
        now[0] += 0.55
        assert (await deps.engine.prepare()).dialect == "vllm"
        await deps.engine.close()


async def test_the_control_runs_on_demand_and_is_shown(tmp_path: Path) -> None:
    async with served(WireEngine("sglang")) as engine:
        deps = await deps_of(tmp_path, prm_url=engine.url)
        async with AsyncClient(transport=ASGITransport(make_app(deps)), base_url="http://test") as http:
            first = (await http.post("/v1/null_hint_control")).json()
            assert (first["passed"], first["prm"]["status"]) == (None, "recorded")
            again = (await http.post("/v1/null_hint_control")).json()
            assert (again["passed"], again["prm"]["mean"]) == (True, 0.0)
            engine.flaws = {"shifted"}
            wrong = (await http.post("/v1/null_hint_control")).json()
            assert (wrong["passed"], wrong["prm"]["status"]) == (False, "differs")
            assert (await http.get("/v1/prm")).json()["teacher"]["control"] == wrong
            engine.status = 503
            away = await http.post("/v1/null_hint_control")
            assert (away.status_code, away.json()["detail"]["reason"]) == (503, "prm_engine")
        await deps.engine.close()
