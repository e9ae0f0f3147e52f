"""More judges judge more: throughput of one and four processes, and each turn once while they come and go."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hintloop_contract.redis_broker import RedisBroker
from hintloop_contract.streams import DEAD, JUDGED, TURNS

from tests.integration.conftest import free_port

from .conftest import StandInEngine, link

NUM_TURNS = 380
CONCURRENCY = 4
LATENCY_S = 1.0
WINDOW_S = 5.0

Process = asyncio.subprocess.Process


class Replicas:
    """Judge processes, started and ended one by one."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self.running: list[Process] = []

    async def start(self, num: int) -> None:
        """Start ``num`` more."""
        command = (sys.executable, "-m", "hintloop_judge", "--config", str(self._config))
        for _ in range(num):
            process = await asyncio.create_subprocess_exec(*command, "--set", f"prm.port={free_port()}")
            self.running.append(process)

    async def end(self, number: signal.Signals) -> None:
        """End the oldest."""
        process = self.running.pop(0)
        process.send_signal(number)
        await asyncio.wait_for(process.wait(), 30)

    async def close(self) -> None:
        for process in self.running:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.fixture
async def replicas(redis_server: Any, engine: StandInEngine, tmp_path: Path) -> AsyncIterator[Replicas]:
    config = tmp_path / "config.toml"
    config.write_text(
        f'[redis]\nurl = "{redis_server.url}"\nclaim_idle_ms = 2000\n'
        f'[prm]\nprm_url = "{engine.url}"\nmax_concurrency = {CONCURRENCY}\n'
        '[advantage]\nestimator = "grpo"\n[training]\nmax_staleness_steps = 1000\n'
    )
    replicas = Replicas(config)
    yield replicas
    await replicas.close()


async def commit_times(broker: RedisBroker) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """When each judged turn was committed, seconds of Redis' clock."""
    entries = await broker.client.xrange(broker.keys.stream(JUDGED))
    return np.array([int(entry_id.split(b"-")[0]) / 1000 for entry_id, _ in entries])


async def rate(broker: RedisBroker, num_windows: int = 2) -> float:
    """Turns per second: the slope of the count over a window, which steps of whole batches do not bend.

    The best of some windows: what else the machine does can only lower it.
    """
    best = 0.0
    for _ in range(num_windows):
        start_s = await broker.time_ms() / 1000
        await asyncio.sleep(WINDOW_S)
        times = await commit_times(broker)
        inside = times[times >= start_s]
        best = max(best, float(np.polyfit(inside - start_s, np.arange(len(inside)), 1)[0]))
    return best


async def busy(engine: StandInEngine, num: int) -> None:
    """Wait until so many questions are asked at once."""
    async with asyncio.timeout(90):
        while engine.most_running < num:
            await asyncio.sleep(0.05)


async def left(broker: RedisBroker, num: int) -> None:
    """Wait until no more than ``num`` turns are unjudged."""
    async with asyncio.timeout(120):
        while (await broker.counts(TURNS)).length > num:
            await asyncio.sleep(0.05)


async def test_four_judges_do_four_times_the_work_and_no_turn_twice(
    broker: RedisBroker, engine: StandInEngine, replicas: Replicas
) -> None:
    engine.seconds = LATENCY_S
    names = [f"turn-{number:03d}" for number in range(NUM_TURNS)]
    for name in names:
        await link(broker, name, f"Thanks, {name} .")
    await replicas.start(1)
    await busy(engine, CONCURRENCY)
    alone = await rate(broker)
    await replicas.start(3)
    await busy(engine, 4 * CONCURRENCY)
    together = await rate(broker)
    assert together / alone >= 3.8, f"{alone:.2f} turns/s by one, {together:.2f} by four"

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
    print(f"{alone:.2f} turns/s by one, {together:.2f} by four ({together / alone:.2f} times); {repeated} asked again")
