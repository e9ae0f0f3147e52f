"""Pages of a browser that are watched: what they complain of in the console or ask of elsewhere is a failure."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Locator, Page, expect

from tests.integration.console.running import PASSWORD

WIDE = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}
#: What a busy machine may need.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)
#: What stands where something is on its way.
LOADING = re.compile("^(Loading|加载中)…$")
AXE_OPTIONS = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


class Looker:
    """Opens pages of one console. Used as a context; at its end nothing may have been complained of."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.url = url
        self.complaints: list[str] = []
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    async def __aenter__(self) -> Looker:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for context in self._contexts:
            await context.close()
        if kind is None and self.complaints:
            pytest.fail("the page complained:\n" + "\n".join(self.complaints), pytrace=False)

    async def open(
        self, path: str = "loop", *, viewport: dict[str, int] = WIDE, settled: bool = True, **context: Any
    ) -> Page:
        """A page of its own, as of a reader who was never here; ``path`` is that behind the ``#/``.

        Returns once the view has what it asked for, or (not ``settled``) once there is a heading.
        """
        made = await self._browser.new_context(
            viewport=viewport, **{"locale": "en-GB", "color_scheme": "light", **context}
        )
        made.set_default_timeout(PATIENCE_MS)
        self._contexts.append(made)
        page = await made.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", self._asked)
        if settled:
            await self.go(page, path)
        else:
            await page.goto(f"{self.url}#/{path}")
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
        return page

    async def go(self, page: Page, path: str) -> None:
        """Show a view, and wait until it is the one that is shown and has what it asked for."""
        await page.goto(f"{self.url}#/{path}")
        name = path.partition("?")[0].rstrip("/")
        route = "turn" if name.startswith("turns/") else name
        # The heading of the view before stands until the next one's code is there.
        await expect(page.locator(f"main[data-route='{route}']")).to_be_visible()
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        await expect(page.get_by_role("status").filter(has_text=LOADING)).to_have_count(0)
        await expect(page.locator(".chart:not(:has(canvas))")).to_have_count(0)

    async def sign_in(self, page: Page) -> None:
        await page.get_by_role("button", name="Sign in", exact=True).first.click()
        await page.get_by_label("Password").fill(PASSWORD)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Sign out")).to_be_visible()

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc and not request.url.startswith("data:"):
            self.complaints.append(f"asked elsewhere: {request.url}")


async def check_accessible(page: Page) -> None:
    """No rule of axe is broken."""
    results = await Axe().run(page, options=AXE_OPTIONS)
    assert results.violations_count == 0, results.generate_report()


async def overflow(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    script = "Math.max(document.documentElement.scrollWidth, document.querySelector('main').scrollWidth) - innerWidth"
    return int(await page.evaluate(script))


def version_row(page: Page, version: int) -> Locator:
    """The row of a version. The first row need not be the engines' own: a newer one may have been held back."""
    rows = page.get_by_test_id("versions").locator("tbody tr")
    return rows.filter(has=page.get_by_role("rowheader", name=f"v{version}", exact=True))
