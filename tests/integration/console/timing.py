"""What a reader waits for, by the browser's own clock."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page, expect

from tests.integration.console.looking import Looker

_PAINT = """() => new Promise(done => new PerformanceObserver((list, observer) => {
  const paint = list.getEntriesByName('first-contentful-paint')[0]
  if (paint) { observer.disconnect(); done(paint.startTime) }
}).observe({ type: 'paint', buffered: true }))"""

# Scrolls through the list, a window's height each frame, and gives the milliseconds between frames.
_SCROLL = """async (selector) => {
  const box = document.querySelector(selector)
  box.scrollTo(0, 0)
  const frames = []
  let last = performance.now()
  for (let frame = 0; frame < 60; frame += 1) {
    box.scrollBy(0, box.clientHeight)
    await new Promise(requestAnimationFrame)
    const now = performance.now()
    if (frame > 2) frames.push(now - last)
    last = now
  }
  return frames
}"""


async def first_paint_ms(looker: Looker, path: str) -> float:
    """First contentful paint of a page that is opened for the first time, milliseconds after the navigation began."""
    page = await looker.open(path, settled=False)
    paint = float(await page.evaluate(_PAINT))
    await page.context.close()
    return paint


async def first_row_ms(looker: Looker, path: str) -> float:
    """Until the first row of a list is there."""
    page = await looker.open(path, settled=False)
    await expect(page.get_by_role("row").nth(1)).to_be_visible()
    seen: Any = await page.evaluate("performance.now()")
    await page.context.close()
    return float(seen)


async def frames_ms(page: Page, selector: str) -> list[float]:
    """The milliseconds between frames while the list ``selector`` is scrolled through."""
    return [float(frame) for frame in await page.evaluate(_SCROLL, selector)]
