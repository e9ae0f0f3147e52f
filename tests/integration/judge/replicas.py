"""Judge processes that come and go, on one Redis and one engine."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hintloop_contract.redis_broker import RedisBroker
from hintloop_contract.streams import TURNS

from tests.integration.conftest import free_port

from .conftest import StandInEngine

#: Questions that each judge asks at once.
CONCURRENCY = 4

Process = asyncio.subprocess.Process


class Replicas:
    """Judge processes, started and ended one by one."""

    def __init__(self, config: Path) -> None:
        """``config`` is each one's."""
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
        await asyncio.wait_for(process.wait(), 60)

    async def close(self) -> None:
        """End what is left."""
        for process in self.running:
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def judging(redis_url: str, engine: StandInEngine, folder: Path) -> AsyncIterator[Replicas]:
    """No judge yet; those that are started ask ``engine``."""
    config = folder / "config.toml"
    config.write_text(
        f'[redis]\nurl = "{redis_url}"\nclaim_idle_ms = 4000\n'
        f'[prm]\nprm_url = "{engine.url}"\nmax_concurrency = {CONCURRENCY}\ntimeout_s = 300\n'
        '[advantage]\nestimator = "grpo"\n[training]\nmax_staleness_steps = 1000\n'
        '[logging]\nlevel = "error"\n'
    )
    replicas = Replicas(config)
    try:
        yield replicas
    finally:
        await replicas.close()


async def busy(engine: StandInEngine, num: int) -> None:
    """Wait until so many questions are asked at once. None is answered before, or turns might end meanwhile."""
    engine.free.clear()
    try:
        async with asyncio.timeout(120):
            while engine.num_running < num:
                await asyncio.sleep(0.05)
    finally:
        engine.free.set()


async def left(broker: RedisBroker, num: int) -> None:
    """Wait until no more than ``num`` turns are unjudged."""
    async with asyncio.timeout(180):
        while (await broker.counts(TURNS)).length > num:
            await asyncio.sleep(0.05)
