"""Somebody with a browser who looks at a demo's console while it runs, and reloads nothing."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from playwright.async_api import Page, async_playwright, expect
from playwright.async_api import TimeoutError as WaitedTooLong

from tests.integration.console.conftest import ARGUMENTS, chromium_path
from tests.integration.console.looking import Looker

START_S, STEP_S = 400.0, 500.0
#: How long a trained turn may take to be shown as one after its step is drawn. Where the gate held the step back there
#: is none, and the demo has to outlast this: it makes one more step.
TRAINED_S = 30.0
URL = re.compile(r"console: ready \((http://\S+?)\)")
#: A log-probability in the panel, or an advantage with its sign.
NUMBER = re.compile(r"[+\u2212-]?\d+\.\d{3}")


def console_url(output: Path, process: subprocess.Popen[str]) -> str:
    """The console's address, as soon as the demo has said it."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := URL.search(output.read_text()):
            return found[1]
        time.sleep(0.5)
    raise AssertionError(f"the demo named no console:\n{output.read_text()[-4000:]}")


async def captured(page: Page) -> int:
    """The first number of the funnel."""
    row = await page.locator("table.funnel tr .num").first.inner_text()
    return int(re.sub(r"\D", "", row))


async def look_on(url: str, pictures: Path) -> None:
    """The funnel rises, the step is drawn when it is made, a token tells its numbers; all without a reload.

    ``pictures`` is a folder for what was seen.
    """
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium_path(), args=ARGUMENTS)
        async with Looker(browser, url) as looker:
            loop, learning = await looker.open("loop"), await looker.open("learning")
            for page in (loop, learning):
                await page.evaluate("window.openedOnce = true")
            await _rising(loop)
            await loop.screenshot(path=pictures / "loop.png", full_page=True)
            await _drawn(learning)
            await learning.screenshot(path=pictures / "learning.png", full_page=True)
            for page in (loop, learning):
                assert await page.evaluate("window.openedOnce === true"), "the page was loaded anew"
            await _told(looker, pictures)
        await browser.close()


async def _rising(loop: Page) -> None:
    await expect(loop.locator("table.funnel")).to_be_visible(timeout=STEP_S * 1000)
    first = loop.locator("table.funnel tr .num").first
    before = await captured(loop)
    await expect(first).not_to_have_text(await first.inner_text(), timeout=STEP_S * 1000)
    assert await captured(loop) > before


async def _drawn(learning: Page) -> None:
    loss = learning.get_by_role("img", name=re.compile("^Loss and its parts.* at step 1"))
    await expect(loss.locator("canvas")).to_be_visible(timeout=STEP_S * 1000)


async def _told(looker: Looker, pictures: Path) -> None:
    """A token's numbers. Where the gate held the step back, no turn counts as trained: then those of a scored one."""
    page = await looker.open("turns?stage=trained")
    link = page.get_by_role("row").nth(1).get_by_role("link")
    names = ["advantage", "teacher", "student", "behaviour"]
    try:
        await link.wait_for(timeout=TRAINED_S * 1000)
    except WaitedTooLong:
        await looker.go(page, "turns?stage=scored")
        names = ["teacher", "behaviour"]
    await link.click()
    await page.locator("#token-0").hover()
    panel = page.locator(".wide-panel")
    for name in names:
        await expect(panel.get_by_test_id(name)).to_contain_text(NUMBER)
    await page.screenshot(path=pictures / "turn.png", full_page=True)
