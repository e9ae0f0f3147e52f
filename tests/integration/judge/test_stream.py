"""The judge as a process on a real Redis: turns in, judged turns and drops out, a clean end."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
from hintloop_contract.messages import JudgedTurn
from hintloop_contract.redis_broker import RedisBroker
from hintloop_contract.streams import JUDGED

from tests.integration.conftest import free_port

from .conftest import link

REPLIES = {
    "complaint": "Far too long. I just want one short sentence! What is snow?",
    "approval": "Perfect, one short sentence. What is snow?",
    "neutral": "What is snow?",
}


async def judged(broker: RedisBroker, count: int) -> dict[str, JudgedTurn]:
    found: dict[str, JudgedTurn] = {}
    async with asyncio.timeout(120):
        while len(found) < count:
            for entry in await broker.read(JUDGED, "test", 10, 200):
                assert isinstance(entry.message, JudgedTurn)
                found[entry.turn_id] = entry.message
    return found


async def drops(broker: RedisBroker, count: int) -> dict[tuple[str, str], int]:
    async with asyncio.timeout(120):
        while sum((funnel := await broker.funnel()).drops.values()) < count:
            await asyncio.sleep(0.1)
    return funnel.drops


async def test_the_process_judges_the_stream(broker: RedisBroker, redis_server: Any, tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "config.toml"
    config.write_text(f'[redis]\nurl = "{redis_server.url}"\n[prm]\njudge_backend = "rules"\nport = {port}\n')
    for name, reply in REPLIES.items():
        await link(broker, name, reply)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "hintloop_judge", "--config", str(config))
    try:
        found = await judged(broker, 2)
        assert {name: (turn.judgement.score, turn.judgement.hint) for name, turn in found.items()} == {
            "complaint": (-1, "I just want one short sentence!"),
            "approval": (1, "One short sentence."),
        }
        assert await drops(broker, 1) == {("judge", "no_hint"): 1}
        steps = (await broker.funnel()).steps
        assert (steps["judged"], steps["hinted"]) == (2, 2)
        async with httpx.AsyncClient() as http:
            part = (await http.get(f"http://127.0.0.1:{port}/v1/prm")).json()
        assert part["judge"]["backend"] == "rules"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
