"""How much more four judges judge than one: real processes and a real Redis, an engine that answers after a second."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import JUDGED

from benchmarks.goals import Goal
from tests.conftest import RedisServer
from tests.integration.judge.conftest import link, serving
from tests.integration.judge.replicas import CONCURRENCY, busy, judging

NUM_TURNS = 420
LATENCY_S = 1.0
WINDOW_S = 5.0
NUM_WINDOWS = 3


def slope(times: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Turns per second: the slope of their count over ``[N]`` times in seconds; 0 where there are too few to tell.

    Steps of whole batches do not bend it.
    """
    if len(times) < 2 or times[-1] == times[0]:
        return 0.0
    return float(np.polyfit(times - times[0], np.arange(len(times)), 1)[0])


async def _rate(broker: RedisBroker) -> float:
    """Turns judged per second, the best of some windows: what else the machine does can only lower it.

    Raises:
        RuntimeError: none were judged.
    """
    best = 0.0
    for _ in range(NUM_WINDOWS):
        start_s = await broker.time_ms() / 1000
        await asyncio.sleep(WINDOW_S)
        entries = await broker.client.xrange(broker.keys.stream(JUDGED))
        times = np.array([int(entry_id.split(b"-")[0]) / 1000 for entry_id, _ in entries])
        best = max(best, slope(times[times >= start_s]))
    if not best:
        raise RuntimeError("no turn was judged while it was measured: the judges do not come up, or all turns are done")
    return best


async def _measure(redis: RedisServer, folder: Path) -> tuple[float, float]:
    broker = RedisBroker(connect(redis.url), "default")
    try:
        await broker.ensure_groups()
        for number in range(NUM_TURNS):
            await link(broker, f"turn-{number:03d}", f"Thanks, turn-{number:03d} .")
        async with serving() as engine, judging(redis.url, engine, folder) as replicas:
            engine.seconds = LATENCY_S
            await replicas.start(1)
            await busy(engine, CONCURRENCY)
            alone = await _rate(broker)
            await replicas.start(3)
            await busy(engine, 4 * CONCURRENCY)
            return alone, await _rate(broker)
    finally:
        await broker.close()


async def run() -> tuple[list[Goal], dict[str, Any]]:
    """Measured, against the goal of 3.8 times."""
    with tempfile.TemporaryDirectory() as folder:
        redis = RedisServer(Path(folder))
        redis.start()
        try:
            alone, together = await _measure(redis, Path(folder))
        finally:
            redis.kill()
    goals = [Goal("judges_one_to_four_speedup", "at least", 3.8, round(together / alone, 2), "times")]
    setting = {"concurrency": CONCURRENCY, "engine_seconds": LATENCY_S}
    return goals, {"setting": setting, "turns_per_s_one": round(alone, 2), "turns_per_s_four": round(together, 2)}
