"""How the page behaves: signing in, rolling back, languages, themes, keys, and a console that goes away."""

from __future__ import annotations

import asyncio
import re

import pytest
from hintloop_contract.control import Command, ControlOutcome, ControlState, Pause
from playwright.async_api import expect

from tests.integration.console.conftest import Deployment
from tests.integration.console.exchanges import GOOD
from tests.integration.console.looking import Looker, version_row

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_rollback_is_asked_for_only_when_confirmed(looker: Looker, deployment: Deployment):
    page = await looker.open("learning")
    versions = page.get_by_test_id("versions")
    await expect(version_row(page, deployment.traffic.version)).to_contain_text("current")
    await expect(versions.get_by_role("button", name="Roll back")).to_have_count(0)
    await page.get_by_role("button", name="Sign in to roll back").click()
    await page.get_by_label("Password").fill("not the password")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("That is not the password.")).to_be_visible()
    looker.complaints.clear()  # the browser reports the refusal itself
    await page.keyboard.press("Escape")
    await looker.sign_in(page)

    rows = deployment.console.get("versions").json()["rows"]
    target = next(row["version"] for row in rows if row["can_go_back"])
    button = versions.get_by_role("button", name=f"Roll back to version {target}", exact=True)
    await button.click()
    dialog = page.get_by_role("dialog", name=f"Roll back to version {target}?")
    await expect(dialog).to_contain_text("Training pauses until you resume it")
    await page.get_by_role("button", name="Cancel").click()
    await expect(dialog).not_to_be_visible()
    assert await deployment.broker.next_control() is None

    await button.click()
    await page.get_by_test_id("confirm-rollback").click()
    await expect(page.get_by_text(f"Asked the trainer to go back to version {target}.")).to_be_visible()
    asked = await deployment.broker.next_control()
    assert asked is not None
    assert (asked[1].command, asked[1].version) == (Command.ROLLBACK, target)

    # What a trainer does with it.
    done = ControlOutcome(state=ControlState.DONE, detail=f"weights of version {target}", version=target + 100)
    pause = Pause(reason=f"rolled back to version {target}", since_ms=await deployment.broker.time_ms())
    await deployment.broker.settle_control(asked[0], done, pause=pause)
    await expect(page.get_by_test_id("paused")).to_contain_text(f"rolled back to version {target}")
    await page.get_by_role("button", name="Resume training").click()
    await expect(page.get_by_text("Asked the trainer to resume.")).to_be_visible()
    resumed = await deployment.broker.next_control()
    assert resumed is not None and resumed[1].command == Command.RESUME
    await deployment.broker.settle_control(resumed[0], ControlOutcome(state=ControlState.DONE), pause=None)
    await expect(page.get_by_test_id("paused")).to_have_count(0)


async def test_speaks_the_readers_language_and_switches(looker: Looker):
    page = await looker.open("loop", locale="zh-CN")
    await expect(page.get_by_role("heading", level=1)).to_have_text("回路")
    assert await page.evaluate("document.documentElement.lang") == "zh-CN"
    for name, heading in (("sessions", "会话"), ("learning", "学习"), ("drops", "丢弃"), ("doctor", "诊断")):
        await looker.go(page, name)
        await expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        left = await page.locator("main").inner_text()
        assert not re.search(r"\b(Loading|Nothing|Show all|Sign in|dropped)\b", left), name
    await page.get_by_role("button", name="English").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Doctor")
    # The choice outlives the page.
    await page.reload()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Doctor")
    await page.keyboard.press("l")
    await expect(page.get_by_role("heading", level=1)).to_have_text("诊断")


async def test_follows_the_systems_theme_and_switches(looker: Looker):
    page = await looker.open("loop", color_scheme="dark")

    async def ground() -> int:
        colour = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    async def becomes(low: int, high: int) -> None:
        async with asyncio.timeout(60):
            while not low < await ground() < high:
                await page.wait_for_timeout(50)

    await becomes(-1, 100)
    await page.get_by_role("button", name="Light theme").click()
    await becomes(650, 1000)
    await page.reload()
    await expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert await ground() > 650
    await page.keyboard.press("t")
    await becomes(-1, 100)


async def test_is_used_by_keyboard_alone(looker: Looker):
    page = await looker.open("loop")
    for key, heading in (("2", "Sessions"), ("3", "Learning"), ("4", "Drops"), ("5", "Doctor"), ("1", "Loop")):
        await page.keyboard.press(key)
        await expect(page.get_by_role("heading", level=1)).to_have_text(heading)
    await page.keyboard.press("?")
    help_ = page.get_by_role("dialog", name="Keyboard")
    await expect(help_).to_be_visible()
    await page.keyboard.press("2")  # belongs to the dialog, not to the page
    await expect(page.get_by_role("heading", level=1)).to_have_text("Loop")
    await help_.get_by_label("Single-key shortcuts").uncheck()
    await page.keyboard.press("Escape")
    await page.keyboard.press("2")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Loop")
    await page.keyboard.press("?")
    await help_.get_by_label("Single-key shortcuts").check()
    await page.keyboard.press("Escape")
    await looker.go(page, "turns")
    await expect(page.get_by_test_id("rows").get_by_role("row").nth(2)).to_be_visible()
    for place in (1, 2):
        await page.keyboard.press("j")
        await expect(page.get_by_role("row").nth(place).get_by_role("link")).to_be_focused()
    wanted = await page.get_by_role("row").nth(2).get_by_role("link").get_attribute("href")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(re.escape(wanted or "?")))


async def test_says_when_the_console_is_away_and_comes_back(looker: Looker, deployment: Deployment):
    page = await looker.open("turns")
    await expect(page.get_by_test_id("link")).to_have_text("Live")
    deployment.console.stop()
    await expect(page.get_by_test_id("link")).to_have_text("Disconnected")
    await expect(page.get_by_test_id("lost")).to_contain_text("reconnecting by itself")
    await expect(page.get_by_role("row").nth(1)).to_be_visible()  # what was seen stays
    (turn_id,) = await deployment.traffic.session([GOOD])
    deployment.console.start()
    await expect(page.get_by_test_id("link")).to_have_text("Live")
    await expect(page.get_by_test_id("lost")).to_have_count(0)
    first = page.get_by_role("row").nth(1).get_by_role("link")
    await expect(first).to_have_attribute("href", f"#/turns/{turn_id}")
    # That nothing answered meanwhile is what the browser complains of.
    assert all("net::ERR_" in complaint for complaint in looker.complaints)
    looker.complaints.clear()
