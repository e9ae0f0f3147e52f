"""Trainers killed at any moment: every sample is in the surviving weights once, and these are as without the kills."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp.test_utils import TestServer
from hintloop_contract.broker import Broker
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import SAMPLES
from hintloop_trainer import checkpoints
from hintloop_trainer.points import Point
from hintloop_trainer.save_part import continued
from safetensors.torch import load_file

from .conftest import students
from .test_launcher import fakes

BATCH = 2
SAVE_INTERVAL = 2
PATIENCE_S = 120.0
#: The moments of a run that no one interferes with.
MOMENTS = (
    Point.BEFORE_STEP,
    Point.AFTER_STEP,
    Point.EXPORTED,
    Point.PUBLISHED,
    Point.WRITING,
    Point.BEFORE_RENAME,
    Point.AFTER_RENAME,
    Point.BEFORE_ACKNOWLEDGE,
    Point.AFTER_ACKNOWLEDGE,
)


class Nursery:
    """Starts trainers (:mod:`mortal`)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ended: asyncio.Task[int] | None = None
        self._pid = 0

    async def _line(self) -> str:
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S)).decode().strip()

    async def begin(self) -> None:
        assert await self._line() == "ready"

    async def start(self, config: Path, kill_at: str = "") -> int:
        """A trainer's pid."""
        assert self._process.stdin is not None
        order = {"config": str(config), "kill_at": kill_at, "log": str(config.with_suffix(".log"))}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._pid = int(await self._line())
        self._ended = asyncio.create_task(self._code())
        return self._pid

    async def end(self) -> None:
        """Leave nothing behind."""
        if self._ended is not None and not self._ended.done():
            os.kill(self._pid, signal.SIGKILL)
            await self._ended
        self._process.kill()
        await self._process.wait()

    async def _code(self) -> int:
        return int(await self._line())

    @property
    def ended(self) -> bool:
        return self._ended is not None and self._ended.done()

    async def code(self) -> int:
        """How the trainer ended; negative for a signal."""
        assert self._ended is not None
        # A wait that is given up must not end the waiting for the process.
        return await asyncio.shield(self._ended)


@pytest.fixture
async def nursery() -> AsyncIterator[Nursery]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("mortal.py"))),
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    found = Nursery(process)
    try:
        await found.begin()
        yield found
    finally:
        await found.end()


@dataclass
class Run:
    """A policy of its own: streams, engine, folders."""

    folder: Path
    nursery: Nursery
    broker: Broker
    engine: Any
    num_steps: int

    @property
    def config(self) -> Path:
        return self.folder / "config.toml"

    @property
    def log(self) -> str:
        return self.config.with_suffix(".log").read_text()[-6000:]

    async def feed(self) -> None:
        for turn in range(self.num_steps * BATCH):
            await self.broker.append(SAMPLES, students.make_sample(turn))

    async def step(self) -> int:
        status = await self.broker.get_status("trainer")
        return int(status.get("step") or 0)

    async def until(self, met: Callable[[dict[str, str]], bool]) -> bool:
        """Whether it came to that; false when the trainer ended before."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.nursery.ended:
                if met(await self.broker.get_status("trainer")):
                    return True
                await asyncio.sleep(0.01)
        return False

    async def die_at(self, point: Point, number: int = 1) -> None:
        """A trainer's life up to a named moment."""
        await self.nursery.start(self.config, f"{point}:{number}")
        assert await asyncio.wait_for(self.nursery.code(), PATIENCE_S) == -signal.SIGKILL, self.log

    async def die_somewhere(self, rng: random.Random) -> None:
        """A trainer's life up to any moment of its first steps."""
        begun = await self.step()
        await self.broker.set_status("trainer", {"phase": "asleep"})
        pid = await self.nursery.start(self.config)
        wanted = begun + rng.randint(0, SAVE_INTERVAL)

        def there(status: dict[str, str]) -> bool:
            asleep = status["phase"] == "asleep"
            return not asleep and (int(status["step"]) >= wanted or int(status["step"]) == self.num_steps)

        assert await self.until(there), self.log
        await asyncio.sleep(rng.uniform(0.0, 0.4))
        os.kill(pid, signal.SIGKILL)
        assert await self.nursery.code() == -signal.SIGKILL, self.log

    async def live(self) -> None:
        """A trainer's life to the end of what there is, and a clean end."""
        pid = await self.nursery.start(self.config)
        done = str(self.num_steps)
        assert await self.until(lambda status: status.get("step") == done and status["phase"] == "collecting"), self.log
        os.kill(pid, signal.SIGTERM)
        assert await asyncio.wait_for(self.nursery.code(), PATIENCE_S) == 0, self.log

    def newest(self) -> Path:
        return checkpoints.complete(self.folder / "checkpoints")[-1]

    async def check(self) -> dict[str, torch.Tensor]:
        """The final weights, once it is proven that every sample is in them once."""
        state = checkpoints.read_state(self.newest())
        turns = [f"turn-{turn:04d}" for turn in range(self.num_steps * BATCH)]
        assert (state.step, state.num_trained) == (self.num_steps, len(turns))
        assert state.trained_turn_ids == turns
        assert state.history == continued("", turns)
        assert (await self.broker.counts(SAMPLES)).length == 0
        assert (await self.broker.funnel()).drops == {}
        versions = [released.version for released in state.lineage.versions]
        assert versions == sorted(set(versions))
        assert str((await self.broker.weights()).current) == self.engine.version
        found: dict[str, torch.Tensor] = load_file(self.newest() / "hf" / "model.safetensors")
        return found


@pytest.fixture
async def make_run(tmp_path: Path, redis_server: Any, nursery: Nursery) -> AsyncIterator[Any]:
    students.tiny_model("qwen3", tied=True).save_pretrained(tmp_path / "student")
    servers: list[TestServer] = []
    brokers: list[Broker] = []

    async def make(name: str, num_steps: int) -> Run:
        engine = fakes.FakeEngine(fakes.transformers_scorer)
        server = TestServer(engine.app())
        await server.start_server()
        servers.append(server)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.toml").write_text(
            f"""
[model]
student_model_path = "{tmp_path / "student"}"
dtype = "float32"
[rollout]
rollout_batch_size = {BATCH}
[training]
train_batch_size = {BATCH}
learning_rate = 1e-3
max_staleness_steps = 1000
save_interval = {SAVE_INTERVAL}
checkpoint_dir = "{folder / "checkpoints"}"
[policy]
name = "{name}"
engines = ["{str(server.make_url("")).rstrip("/")}"]
[publishing]
weights_dir = "{folder / "weights"}"
[gate]
enabled = false
[redis]
url = "{redis_server.url}"
claim_idle_ms = 1000
"""
        )
        brokers.append(RedisBroker(connect(redis_server.url), name))
        run = Run(folder, nursery, brokers[-1], engine, num_steps)
        await run.feed()
        return run

    yield make
    for server in servers:
        await server.close()
    for broker in brokers:
        await broker.close()


def assert_equal_weights(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], rtol=0, atol=1e-5)


async def test_three_kills(make_run: Any) -> None:
    undisturbed: Run = await make_run("undisturbed", 8)
    await undisturbed.live()
    killed: Run = await make_run("killed", 8)
    # Before there is any checkpoint, between a checkpoint and its acknowledgement, and in the middle of one.
    await killed.die_at(Point.AFTER_STEP, 2)
    await killed.die_at(Point.BEFORE_ACKNOWLEDGE)
    await killed.die_at(Point.WRITING)
    await killed.live()
    assert_equal_weights(await killed.check(), await undisturbed.check())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_long_run_killed_at_ten_random_moments_and_at_every_named_one(make_run: Any, seed: int) -> None:
    undisturbed: Run = await make_run("undisturbed", 30)
    await undisturbed.live()
    killed: Run = await make_run("killed", 30)
    rng = random.Random(seed)
    moments: list[Point | None] = [*MOMENTS, *[None] * 10]
    rng.shuffle(moments)
    for moment in moments:
        if moment is None:
            await killed.die_somewhere(rng)
        else:
            await killed.die_at(moment)
    await killed.live()
    assert_equal_weights(await killed.check(), await undisturbed.check())
