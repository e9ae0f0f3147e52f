"""How long a reader of the console waits with 10,000 turns in it: first paint, first row, scrolling, one turn."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from playwright.async_api import async_playwright

from benchmarks.goals import Goal, print_goals, write_report
from benchmarks.model import model_dir
from tests.conftest import RedisServer
from tests.integration.console.conftest import ARGUMENTS, chromium_path, open_traffic
from tests.integration.console.exchanges import ORDINARY, VERY_LONG
from tests.integration.console.looking import Looker
from tests.integration.console.running import RunningConsole
from tests.integration.console.timing import first_paint_ms, first_row_ms, frames_ms

NUMBER = 10_000
ROUNDS = 7
VIEWS = ("loop", "sessions", "turns", "learning", "drops", "doctor")


async def measure(folder: Path, model: Path) -> dict[str, list[float]]:
    """Milliseconds by what was waited for, each ``ROUNDS`` times, in a browser that keeps nothing between them."""
    (folder / "redis").mkdir()
    redis = RedisServer(folder / "redis")
    redis.start()
    traffic = await open_traffic(redis, model)
    console = RunningConsole(folder, redis.url, tokenizer=model)
    try:
        await traffic.begin()
        console.start()
        await traffic.many(NUMBER, ORDINARY)
        for said in (*ORDINARY, VERY_LONG):
            await traffic.session([said])
        console.wait_for_turns(NUMBER + len(ORDINARY) + 1)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium_path(), args=ARGUMENTS)
            async with Looker(browser, console.url) as looker:
                measured = await look(looker, console)
            await browser.close()
    finally:
        console.stop()
        await traffic.broker.close()
        redis.kill()
    return measured


async def look(looker: Looker, console: RunningConsole) -> dict[str, list[float]]:
    """Open every view again and again."""

    async def again(wait: Callable[[], Awaitable[float]]) -> list[float]:
        return [round(await wait(), 1) for _ in range(ROUNDS)]

    measured = {f"first paint, {view}": await again(lambda view=view: first_paint_ms(looker, view)) for view in VIEWS}
    measured["first row, turns"] = await again(lambda: first_row_ms(looker, "turns"))
    measured["first row, sessions"] = await again(lambda: first_row_ms(looker, "sessions"))
    page = await looker.open("turns")
    await page.get_by_role("row").nth(1).wait_for()

    async def longest_frame() -> float:
        return max(await frames_ms(page, "[data-testid=rows]"))

    measured["longest frame, scrolling turns"] = await again(longest_frame)
    longest = console.get("turns", q="which line comes first", limit=1).json()["rows"][0]

    async def turn() -> float:
        page = await looker.open(f"turns/{longest['turn_id']}", settled=False)
        await page.get_by_test_id("tokens").wait_for()
        seen = float(await page.evaluate("performance.now()"))
        await page.context.close()
        return seen

    measured[f"a turn of {longest['tokens']} tokens"] = await again(turn)
    return measured


def main() -> int:
    """Measure, print, write ``.hintloop/bench/console.json``."""
    model = model_dir()
    folder = Path(tempfile.mkdtemp(prefix="hintloop-console-"))
    try:
        measured = asyncio.run(measure(folder, model))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    medians = {name: statistics.median(values) for name, values in measured.items()}
    worst = max(value for name, value in medians.items() if name.startswith("first paint"))
    goals = [
        Goal("first paint, the slowest view", "at most", 1000, worst, "ms"),
        Goal("first row of 10,000 turns", "at most", 1500, medians["first row, turns"], "ms"),
        Goal("longest frame while scrolling", "at most", 100, medians["longest frame, scrolling turns"], "ms"),
    ]
    for name, values in measured.items():
        print(f"{name:34} median {medians[name]:7.1f} ms, {min(values):.1f} to {max(values):.1f}")
    print_goals(f"console, {NUMBER:,} turns", goals)
    write_report("console", goals, medians_ms=medians, milliseconds=measured, rounds=ROUNDS, turns=NUMBER)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
