"""What the proxy adds, what a weight update costs a request, and that none is refused meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from hintloop_contract.broker import WeightsState
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_rollout_proxy.timing import Timing
from hintloop_rollout_proxy.versions import VersionView

ASK = {"messages": [{"role": "user", "content": "hi"}]}


async def metrics_of(running: Any) -> dict[str, float]:
    text = await (await running.session.get(running.url + "/metrics")).text()
    return {name: float(value) for name, value in re.findall(r"^(\S+) (\S+)$", text, re.MULTILINE)}


class Clock:
    """Stands for ``perf_counter``."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("timing", "versions"):
        monkeypatch.setattr(f"hintloop_rollout_proxy.{module}.perf_counter", clock)
    return clock


def test_added_is_what_the_engine_did_not_take(clock: Clock) -> None:
    metrics, timing = ProxyMetrics(), Timing()
    for step, moment in ((timing.ask, 100.25), (timing.ask, 101.0), (timing.receive, 103.0)):
        clock.now = moment
        step()
    clock.now = 103.5
    timing.answer(metrics, VersionView(MemoryBroker()))
    assert timing.added_s == pytest.approx(0.75)
    text = metrics.render().decode()
    assert "hintloop_proxy_added_seconds_sum 0.75" in text
    assert "hintloop_proxy_first_byte_seconds_sum 3.5" in text
    assert "hintloop_proxy_pause_wait_seconds_count 0.0" in text


async def test_only_time_inside_a_publishing_is_a_wait(clock: Clock) -> None:
    broker = MemoryBroker()
    view = VersionView(broker)
    await view.read()
    assert view.published_within(0.0, 200.0) == 0.0
    await broker.set_weights(WeightsState(updating=1))
    await view.read()
    assert view.published_within(90.0, 104.0) == pytest.approx(4.0)
    clock.now = 110.0
    await view.read()
    await broker.set_weights(WeightsState(current=1))
    await view.read()
    assert view.published_within(90.0, 130.0) == pytest.approx(10.0)
    assert view.published_within(105.0, 107.0) == pytest.approx(2.0)
    assert view.published_within(110.0, 130.0) == 0.0
    await broker.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_slow_engine_is_not_what_the_proxy_added(stream: bool, fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stream_stop" if stream else "chat_stop")
    replay = fake_engine.reply

    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        answer: web.StreamResponse = await replay(request)
        return answer

    fake_engine.reply = slow
    async with proxy() as running:
        status, _ = await running.ask({**ASK, "stream": stream})
        found = await metrics_of(running)
    assert status == 200
    first_byte_s = found["hintloop_proxy_first_byte_seconds_sum"]
    assert first_byte_s >= 0.3
    assert found["hintloop_proxy_added_seconds_count"] == 1
    # However busy the machine is, the engine's own time is in the first figure alone.
    assert found["hintloop_proxy_added_seconds_sum"] <= first_byte_s - 0.29


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def test_no_request_is_refused_during_a_weight_update_and_its_wait_is_measured(
    fake_engine: Any, proxy: Any, clock: Clock
) -> None:
    fake_engine.replay("chat_stop")
    replay, resumed = fake_engine.reply, asyncio.Event()
    held: list[web.Request] = []

    async def paused(request: web.Request) -> web.StreamResponse:
        # A paused engine takes requests and holds them, as vLLM's `keep` and SGLang's `retract` do.
        held.append(request)
        await resumed.wait()
        answer: web.StreamResponse = await replay(request)
        return answer

    broker = MemoryBroker()
    async with proxy(broker) as running:
        assert (await running.ask(ASK))[0] == 200
        fake_engine.reply = paused
        versions = running.deps.versions
        await broker.set_weights(WeightsState(updating=1))
        await eventually(lambda: versions.published_within(0.0, 200.0) > 0)
        clock.now = 103.0
        asked = [asyncio.create_task(running.ask({**ASK, "stream": number % 2 == 1})) for number in range(12)]
        # The engine's health may not answer either.
        fake_engine.healthy = False
        await eventually(lambda: len(held) == 12)
        clock.now = 107.0
        await asyncio.sleep(0.4)
        assert not any(task.done() for task in asked)
        resumed.set()
        await broker.set_weights(WeightsState(current=1))
        statuses = [status for status, _ in await asyncio.gather(*asked)]
        fake_engine.healthy = True
        await eventually(lambda: versions.published_within(0.0, 200.0) == 7.0)
        found = await metrics_of(running)
        clock.now = 120.0
        assert (await running.ask(ASK))[0] == 200
        after = await metrics_of(running)
    assert statuses == [200] * 12
    assert found["hintloop_proxy_pause_wait_seconds_count"] == 12
    assert found["hintloop_proxy_pause_wait_seconds_sum"] == 12 * 4.0
    assert after["hintloop_proxy_pause_wait_seconds_count"] == 12
    assert not [name for name in found if name.startswith("hintloop_proxy_refused_total")]
    await broker.close()


async def test_readiness_shows_what_waits_to_be_written(fake_engine: Any, proxy: Any) -> None:
    async with proxy() as running:
        async with running.session.get(running.url + "/hintloop/ready") as response:
            state = json.loads(await response.read())
    assert state["captures"] == {"queued": 0, "spooled": 0, "spool_bytes": 0, "redis": "there"}
