"""More judges judge more at once, and each turn once while they come and go.

How much more they judge in a second is measured by `make bench ONLY=prm`.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.redis_broker import RedisBroker
from hintloop_contract.streams import DEAD, JUDGED

from .conftest import StandInEngine, link
from .replicas import CONCURRENCY, Replicas, busy, judging, left

NUM_TURNS = 160
LATENCY_S = 1.0


@pytest.fixture
async def replicas(redis_server: Any, engine: StandInEngine, tmp_path: Path) -> AsyncIterator[Replicas]:
    async with judging(redis_server.url, engine, tmp_path) as replicas:
        yield replicas


async def test_four_judges_ask_four_times_as_much_and_no_turn_is_judged_twice(
    broker: RedisBroker, engine: StandInEngine, replicas: Replicas
) -> None:
    engine.seconds = LATENCY_S
    names = [f"turn-{number:03d}" for number in range(NUM_TURNS)]
    for name in names:
        await link(broker, name, f"Thanks, {name} .")
    await replicas.start(1)
    await busy(engine, CONCURRENCY)
    await left(broker, NUM_TURNS - 3 * CONCURRENCY)
    assert engine.most_running == CONCURRENCY
    await replicas.start(3)
    await busy(engine, 4 * CONCURRENCY)
    assert engine.most_running == 4 * CONCURRENCY

    # They come and go: two are killed at work, one is asked to stop, two begin.
    await replicas.end(signal.SIGKILL)
    await replicas.start(1)
    await asyncio.sleep(1.5)
    await replicas.end(signal.SIGKILL)
    await replicas.end(signal.SIGTERM)
    await replicas.start(1)
    await left(broker, 0)
    judged = [entry.turn_id for entry in await broker.read(JUDGED, "test", 2 * NUM_TURNS, 1)]
    assert sorted(judged) == names
    assert (await broker.funnel()).drops == {}
    assert (await broker.counts(DEAD)).length == 0
    repeated = sum(engine.asked[name] - 1 for name in names)
    assert all(engine.asked[name] >= 1 for name in names)
    assert repeated <= 2 * CONCURRENCY, "only what a killed judge was asking may be asked again"
    print(f"{repeated} asked again")
