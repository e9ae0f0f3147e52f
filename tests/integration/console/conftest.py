"""A console with something to show, and a real Chromium that looks at it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from hintloop_contract.broker import Broker
from hintloop_contract.config import load_config
from hintloop_contract.diagnosis.alarms import Alarm
from hintloop_contract.opening import open_broker
from playwright.async_api import Browser, async_playwright

from tests.conftest import RedisServer
from tests.integration.console.exchanges import ARABIC, DROPS, HOSTILE, ORDINARY, VERY_LONG
from tests.integration.console.looking import Looker
from tests.integration.console.running import RunningConsole
from tests.integration.console.traffic import Traffic

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
#: No sandbox as root, no GPU, nothing that asks the network.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
]
ALARM = Alarm(
    cause="engine_drift",
    since_ms=1_764_450_000_000,
    seen="trainer and engine differ by 0.31 nats in the mean",
    evidence={"engine_difference_abs_mean": 0.31},
)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Redis with traffic in it, and the console in front."""

    broker: Broker
    traffic: Traffic
    console: RunningConsole


def chromium_path() -> str:
    """Debian's Chromium, or whatever else of its kind is there."""
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        pytest.fail(
            "there is no Chromium; scripts/browser.sh installs it (Debian: apt-get install chromium)", pytrace=False
        )
    return found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=chromium_path(), args=ARGUMENTS)
        yield chromium
        await chromium.close()


async def open_traffic(redis: RedisServer, tokenizer: Path) -> Traffic:
    """Traffic of the default policy into ``redis``."""
    config = load_config(environ={}, flags={"redis.url": redis.url}).config
    return Traffic(open_broker(config), tokenizer)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def deployment(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployment]:
    """Sessions of every kind, drops, steps, versions, an alarm; a doctor that says what a real one would."""
    folder = tmp_path_factory.mktemp("console")
    redis = RedisServer(tmp_path_factory.mktemp("console-redis"))
    redis.start()
    traffic = await open_traffic(redis, smollm2_dir)
    script = Path(__file__).with_name("doctor_stand_in.py")
    settings = [f'console.doctor_command=["{sys.executable}", "{script}"]']
    console = RunningConsole(folder, redis.url, tokenizer=smollm2_dir, settings=settings)
    try:
        await traffic.begin()
        # Whoever has the lease says which alarms stand; the console's own recogniser waits for it.
        assert await traffic.broker.set_alarms("test", await traffic.broker.time_ms(), [ALARM], [], lease_ms=3_600_000)
        number = 0
        for start in range(6):
            session = [ORDINARY[(start + place) % len(ORDINARY)] for place in range(1 + start)]
            number += len(await traffic.session(session, tenant="default" if start % 2 else "team-blue"))
        number += len(await traffic.session([HOSTILE, ARABIC, VERY_LONG]))
        for drop in DROPS:
            await traffic.drop(drop)
        console.start()
        console.wait_for_turns(number)
        yield Deployment(broker=traffic.broker, traffic=traffic, console=console)
    finally:
        console.stop()
        await traffic.broker.close()
        redis.kill()


@pytest_asyncio.fixture(loop_scope="session")
async def looker(browser: Browser, deployment: Deployment) -> AsyncIterator[Looker]:
    """Opens pages; whatever a page complains of fails the test."""
    async with Looker(browser, deployment.console.url) as made:
        yield made
