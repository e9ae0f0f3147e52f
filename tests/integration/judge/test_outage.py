"""An hour without the judge's engine, on a clock that is moved: turns wait, none is lost, and all are judged after."""

import asyncio
import json
import socket
from typing import Any

import purgatory.domain.model
import pytest
from aiohttp import web
from hintloop_contract import worker
from hintloop_contract.config.schema import Config
from hintloop_contract.redis_broker import RedisBroker
from hintloop_contract.streams import DEAD, JUDGED, TURNS
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_judge.wiring import build_deps, run_worker

from tests.scripted.moved_clock import MovedClock

from .conftest import link

HOUR_S = 3600.0
NUM_TURNS = 12


async def serve(port: int, asked: list[float], clock: MovedClock) -> web.AppRunner:
    """The engine, back on its port."""

    async def complete(request: web.Request) -> web.Response:
        asked.append(clock.now)
        choice = {"message": {"role": "assistant", "content": json.dumps({"score": 1})}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner


async def waiting(broker: RedisBroker) -> tuple[int, int, int]:
    """Turns that wait, that are judged, and dead letters."""
    return tuple([(await broker.counts(stream)).length for stream in (TURNS, JUDGED, DEAD)])  # type: ignore[return-value]


async def outage(clock: MovedClock, port: int) -> None:
    broker = MemoryBroker()
    await broker.ensure_groups()
    for number in range(NUM_TURNS):
        await link(broker, f"turn-{number:02d}", f"Thanks, turn-{number:02d}.")
    prm: dict[str, Any] = {"prm_url": f"http://127.0.0.1:{port}", "max_concurrency": 4}
    config = Config.model_validate({"prm": prm, "advantage": {"estimator": "grpo"}})
    asked: list[float] = []
    runner = await serve(port, asked, clock)
    deps = await build_deps(config, broker)
    assert await deps.backend.ready()
    await runner.cleanup()
    began, num_probes = clock.now, len(asked)
    stop = asyncio.Event()
    working = asyncio.create_task(run_worker(deps, stop))
    while clock.now < began + HOUR_S:
        await asyncio.sleep(60)
        assert await waiting(broker) == (NUM_TURNS, 0, 0)
    assert (await broker.funnel()).drops == {}
    runner = await serve(port, asked, clock)
    back = clock.now
    while (await broker.counts(TURNS)).length:
        await asyncio.sleep(0.5)
    assert clock.now - back < 60
    assert await waiting(broker) == (0, NUM_TURNS, 0)
    assert (await broker.funnel()).drops == {}
    assert len(asked) >= num_probes + NUM_TURNS
    stop.set()
    await working
    await broker.close()
    await runner.cleanup()


def test_an_hour_without_the_engine_sends_nothing_to_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    clock = MovedClock()
    clock.rule(monkeypatch, worker, purgatory.domain.model)
    clock.run(outage(clock, port))
    assert clock.now - MovedClock.now >= HOUR_S
