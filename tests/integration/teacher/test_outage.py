"""An hour without the PRM engine, on a clock that is moved: turns wait, none is lost, and all are taught after."""

import asyncio
import socket

import purgatory.domain.model
import pytest
from hintloop_contract import worker
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import Sample
from hintloop_contract.streams import DEAD, JUDGED, SAMPLES
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_teacher import engine as teacher_engine
from hintloop_teacher import policy_engines
from hintloop_teacher.wiring import build_deps, run_worker

from tests.scripted.moved_clock import MovedClock
from tests.scripted.scoring_engine import WireEngine, served

from .conftest import check_sample, judged

HOUR_S = 3600.0
NUM_TURNS = 12


async def lengths(broker: MemoryBroker) -> tuple[int, ...]:
    """Turns that wait, samples, dead letters."""
    return tuple([(await broker.counts(stream)).length for stream in (JUDGED, SAMPLES, DEAD)])


async def outage(clock: MovedClock, port: int, student_dir: str) -> None:
    broker = MemoryBroker()
    await broker.ensure_groups()
    async with served(WireEngine("vllm")) as policy:
        config = Config.model_validate(
            {
                "model": {"student_model_path": student_dir},
                "rollout": {"engine": "vllm"},
                "policy": {"engines": [policy.url]},
                "prm": {"prm_url": f"http://127.0.0.1:{port}", "max_concurrency": 4},
            }
        )
        deps = await build_deps(config, broker)
        stop = asyncio.Event()
        working = asyncio.create_task(run_worker(deps, stop))
        prm = WireEngine("vllm")
        async with served(prm, port):
            while deps.control is None:
                await asyncio.sleep(0.5)
        began, asked = clock.now, len(prm.paths)
        for number in range(NUM_TURNS):
            await judged(broker, f"turn-{number:02d}")
        while clock.now < began + HOUR_S:
            await asyncio.sleep(60)
            assert await lengths(broker) == (NUM_TURNS, 0, 0)
        assert (await broker.funnel()).drops == {}
        async with served(prm, port):
            back = clock.now
            while (await broker.counts(JUDGED)).length:
                await asyncio.sleep(0.5)
            assert clock.now - back < 60
            stop.set()
            await working
    assert await lengths(broker) == (0, NUM_TURNS, 0)
    assert (await broker.funnel()).drops == {}
    # Probed again before anything was scored: another engine could stand there now.
    assert "/version" in prm.paths[asked:]
    for entry in await broker.read(SAMPLES, "test", NUM_TURNS, 10):
        assert isinstance(entry.message, Sample)
        check_sample(entry.message)
    await broker.close()


def test_an_hour_without_the_engine_sends_nothing_to_dead(monkeypatch: pytest.MonkeyPatch, student_dir: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    clock = MovedClock()
    clock.rule(monkeypatch, worker, purgatory.domain.model, teacher_engine, policy_engines)
    clock.run(outage(clock, port, student_dir))
    assert clock.now - MovedClock.now >= HOUR_S
