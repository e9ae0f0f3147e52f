"""The master dies under a stream of turns: proxy, linker and judges go on at its successor; every turn comes once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hintloop_contract.broker import Broker
from hintloop_contract.codec import decode_fields
from hintloop_contract.config.loading import load_config
from hintloop_contract.messages import Drop
from hintloop_contract.opening import open_broker
from hintloop_contract.streams import CAPTURES, DROPS, JUDGED, TURNS, Keys
from redis.crc import key_slot

from tests.integration.conftest import free_port

from .servers import Cluster, Sentinels

NUM_SESSIONS = 80
#: Sessions begun before the master is killed, and seconds between two.
BEFORE = 25
EVERY_S = 0.04
POLICY = "ha"


class Services:
    """A proxy with its linker, and judges, as processes of their own."""

    def __init__(self, folder: Path, redis_url: str, engine_url: str) -> None:
        self.config = folder / "config.toml"
        self._log = folder / "services.log"
        self.port = free_port()
        self.config.write_text(
            f'[redis]\nurl = "{redis_url}"\nwait_replicas = 1\nclaim_idle_ms = 2000\n'
            f'[policy]\nname = "{POLICY}"\nengines = ["{engine_url}"]\n[rollout]\nengine = "vllm"\n'
            f'[proxy]\nport = {self.port}\nspool_dir = "{folder / "spool"}"\n'
            "[linker]\nlease_ms = 1000\nsettle_ms = 200\n"
            f'[prm]\nprm_url = "{engine_url}"\njudge_backend = "rules"\n[advantage]\nestimator = "grpo"\n'
            "[training]\nmax_staleness_steps = 1000\n"
        )
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, module: str, *flags: str) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", module, "--config", str(self.config), *flags]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._running.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

    async def ready(self, url: str) -> None:
        async with httpx.AsyncClient(timeout=30) as client, asyncio.timeout(180):
            while True:
                try:
                    if (await client.get(url)).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.1)

    async def start_all(self, num_judges: int) -> None:
        ports = [free_port() for _ in range(num_judges)]
        self.start("hintloop_rollout_proxy")
        for port in ports:
            self.start("hintloop_judge", "--set", f"prm.port={port}")
        await self.ready(f"http://127.0.0.1:{self.port}/hintloop/ready")
        for port in ports:
            await self.ready(f"http://127.0.0.1:{port}/health")

    def log(self) -> str:
        return self._log.read_text()[-6000:]

    def stop(self) -> list[int]:
        for process in self._running:
            process.send_signal(signal.SIGTERM)
        codes = []
        for process in self._running:
            try:
                codes.append(process.wait(90))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        self._running.clear()
        return codes


@pytest.fixture
async def start(tmp_path: Path, engine: str) -> AsyncIterator[Callable[[str, int], Any]]:
    made: list[Services] = []

    async def services(redis_url: str, num_judges: int) -> Services:
        made.append(Services(tmp_path, redis_url, engine))
        await made[-1].start_all(num_judges)
        return made[-1]

    yield services
    for services_of_test in made:
        services_of_test.stop()


async def converse(client: httpx.AsyncClient, url: str, number: int) -> None:
    """One session of two requests: the second settles the first one's turn."""
    question = {"role": "user", "content": f"question {number}"}
    reply = {"role": "user", "content": f"That is wrong. Do it again, number {number}."}
    messages = [question]
    for _ in range(2):
        body = {"model": "policy", "messages": messages}
        response = await client.post(f"{url}/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        answer = response.json()["choices"][0]["message"]["content"]
        messages = [question, {"role": "assistant", "content": answer}, reply]


async def settled(broker: Any) -> Counter[str]:
    """How often each turn left the judges: judged, or dropped on the way there."""
    found: Counter[str] = Counter()
    for _, fields in await broker.client.xrange(broker.keys.stream(JUDGED)):
        found[fields[b"turn_id"].decode()] += 1
    for _, fields in await broker.client.xrange(broker.keys.stream(DROPS)):
        drop = decode_fields(fields, Drop)
        assert drop.stage == "judge", drop
        found[drop.turn_id] += 1
    return found


async def numbers_of(broker: Broker, turn_ids: list[str]) -> list[int]:
    """Which question each turn answered."""
    numbers = []
    for turn_id in turn_ids:
        record = await broker.get_turn(turn_id)
        assert record is not None
        numbers.append(int(json.loads(record.messages)[0]["content"].split()[-1]))
    return numbers


async def survive(services: Services, fail_over: Callable[[], Any]) -> None:
    """Hold ``NUM_SESSIONS`` conversations with a failover among them; each turn is judged once."""
    url = f"http://127.0.0.1:{services.port}"
    tasks: list[asyncio.Task[Any]] = []
    async with httpx.AsyncClient(timeout=180) as client:
        for number in range(NUM_SESSIONS):
            if number == BEFORE:
                tasks.append(asyncio.create_task(asyncio.to_thread(fail_over)))
            tasks.append(asyncio.create_task(converse(client, url, number)))
            await asyncio.sleep(EVERY_S)
        await asyncio.gather(*tasks)
    broker = open_broker(load_config([services.config]).config)
    try:
        async with asyncio.timeout(180):
            while sum((await settled(broker)).values()) < NUM_SESSIONS or (await broker.counts(TURNS)).length:
                await asyncio.sleep(0.25)
        # What would come twice comes within the time after which it is claimed.
        await asyncio.sleep(2.5)
        found = await settled(broker)
        assert set(found.values()) == {1}, found.most_common(5)
        assert sorted(await numbers_of(broker, list(found))) == list(range(NUM_SESSIONS)), services.log()
        funnel = await broker.funnel()
        assert (funnel.steps["captured"], funnel.steps["linked"]) == (2 * NUM_SESSIONS, NUM_SESSIONS)
        # The second request of each session waits for a third.
        assert (await broker.counts(CAPTURES)).length == NUM_SESSIONS
    except TimeoutError:
        pytest.fail(f"turns are missing: {await settled(broker)}\n{services.log()}")
    finally:
        await broker.close()


async def test_a_sentinel_failover_loses_and_doubles_no_turn(sentinels: Sentinels, start: Any) -> None:
    services = await start(sentinels.url, 2)
    before = sentinels.master()
    await survive(services, lambda: sentinels.fail_over())
    assert sentinels.master() is not before
    # The killed one comes back as a replica, and the services end properly.
    before.start()
    assert await asyncio.to_thread(services.stop) == [0, 0, 0], services.log()


async def test_a_cluster_failover_loses_and_doubles_no_turn(cluster: Cluster, start: Any) -> None:
    services = await start(cluster.url, 1)
    slot = key_slot(Keys(POLICY).of("").encode())
    before = cluster.owner(slot)

    def fail_over() -> None:
        """Each master has one replica: nothing counts as written until the killed one is back as the new one's."""
        old, new = cluster.fail_over(slot)
        time.sleep(2)
        assert new.ask("WAIT", "1", "100") == 0
        old.start()

    await survive(services, fail_over)
    assert cluster.owner(slot) is not before
    assert await asyncio.to_thread(services.stop) == [0, 0], services.log()
