"""Generated conversations with injected faults, through sockets and the linker: nothing corrupted passes, nothing good
is dropped, and agents see what they would see without a proxy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.scripted.answers import Fault
from tests.scripted.plans import draw_plans

from .series import Tally, live


async def live_both(num_each: int, start_proxy: Any, redis_server: Any, folder: Path) -> Tally:
    """As many requests with either engine, side by side."""
    drawn = {kind: draw_plans(kind, num_each, number) for number, kind in enumerate(("vllm", "sglang"))}
    lives = [live(kind, plans, start_proxy, redis_server.url, folder) for kind, plans in drawn.items()]
    vllm, sglang = await asyncio.gather(*lives)
    total = vllm + sglang
    print(total)
    return total


async def test_a_few_hundred_turns(start_proxy: Any, redis_server: Any, tmp_path: Path) -> None:
    total = await live_both(150, start_proxy, redis_server, tmp_path)
    total.check()
    assert total.num_requests >= 300 and total.num_turns > 30


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_ten_thousand_turns(start_proxy: Any, redis_server: Any, tmp_path: Path) -> None:
    total = await live_both(5000, start_proxy, redis_server, tmp_path)
    total.check()
    assert total.num_requests >= 10_000 and total.num_turns > 1000
    assert set(total.faults) == {str(fault) for fault in Fault}
