"""Ten thousand turns are listed as ten are: a screenful is drawn, every one can be reached (how soon: benchmarks)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.conftest import RedisServer
from tests.integration.console.conftest import open_traffic
from tests.integration.console.exchanges import ORDINARY
from tests.integration.console.looking import Looker
from tests.integration.console.running import RunningConsole

pytestmark = pytest.mark.asyncio(loop_scope="session")

NUMBER = 10_000


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def console(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningConsole]:
    redis = RedisServer(tmp_path_factory.mktemp("many-redis"))
    redis.start()
    traffic = await open_traffic(redis, smollm2_dir)
    made = RunningConsole(tmp_path_factory.mktemp("many"), redis.url, tokenizer=smollm2_dir)
    try:
        await traffic.begin()
        made.start()
        await traffic.many(NUMBER, ORDINARY)
        made.wait_for_turns(NUMBER)
        yield made
    finally:
        made.stop()
        await traffic.broker.close()
        redis.kill()


async def test_ten_thousand_turns(browser: Browser, console: RunningConsole):
    async with Looker(browser, console.url) as looker:
        page = await looker.open("turns")
        await expect(page.get_by_test_id("total")).to_have_text("10,000 turns")
        rows = page.get_by_test_id("rows")
        assert await rows.get_attribute("aria-rowcount") == str(NUMBER + 1)
        assert await page.get_by_role("row").count() < 80
        oldest = NUMBER + 1  # the header is the first row
        async with asyncio.timeout(240):
            while not await page.locator(f"[role=row][aria-rowindex='{oldest}']").count():
                await rows.evaluate("box => box.scrollTo(0, box.scrollHeight)")
                await page.wait_for_timeout(250)
        await expect(page.locator(f"[role=row][aria-rowindex='{oldest}']")).to_be_visible()
        assert await page.get_by_role("row").count() < 80
