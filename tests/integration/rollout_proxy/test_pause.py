"""A weight update's pause at a real engine: who asks meanwhile waits, and nobody is refused."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import httpx
import openai
import pytest
from hintloop_contract.broker import WeightsState
from hintloop_contract.streams import CAPTURES

pytestmark = pytest.mark.engine

QUESTION = [{"role": "user", "content": "Name three colours of the rainbow."}]
PAUSE_S = 1.5
PAUSES: dict[str, Any] = {
    "vllm": (("/pause?mode=keep", None), ("/resume", None)),
    "sglang": (("/pause_generation", {"mode": "retract"}), ("/continue_generation", {})),
}


@pytest.fixture(params=["vllm", "sglang"])
def policy(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"{request.param}_policy")


async def test_a_pause_makes_requests_wait_and_refuses_none(
    policy: Any, redis_server: Any, start_proxy: Any, make_broker: Any
) -> None:
    proxy = await asyncio.to_thread(start_proxy, policy.kind, policy.base_url, redis_server.url, "--no-linker")
    await asyncio.to_thread(proxy.wait, "/hintloop/ready")
    broker = make_broker(redis_server.url)
    await broker.ensure_groups()
    pause, resume = PAUSES[policy.kind]
    async with (
        openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=120) as client,
        httpx.AsyncClient(base_url=policy.base_url, timeout=60) as engine,
    ):

        async def ask(stream: bool, max_tokens: int = 4) -> float:
            """When the whole answer was here."""
            asked: dict[str, Any] = {
                "model": "policy",
                "messages": QUESTION,
                "temperature": 0.0,
                "max_tokens": max_tokens,
            }
            more: dict[str, Any] = {"stream": stream, "extra_body": {"ignore_eos": True}}
            answer: Any = await client.chat.completions.create(**asked, **more)
            if stream:
                async for _ in answer:
                    pass
            else:
                assert answer.usage.completion_tokens == max_tokens
            return time.monotonic()

        running = asyncio.create_task(ask(False, 96))
        await asyncio.sleep(0.3)
        await broker.set_weights(WeightsState(current=1, updating=2))
        (await engine.post(pause[0], json=pause[1])).raise_for_status()
        await asyncio.sleep(0.2)
        waiting = [asyncio.create_task(ask(number % 2 == 0)) for number in range(4)]
        await asyncio.sleep(PAUSE_S)
        assert not any(task.done() for task in waiting)
        resumed = time.monotonic()
        (await engine.post(resume[0], json=resume[1])).raise_for_status()
        await broker.set_weights(WeightsState(current=2))
        answered = await asyncio.gather(*waiting)
        await running
        metrics = (await engine.get(proxy.url + "/metrics")).text
    assert min(answered) > resumed
    found = dict(re.findall(r"^(hintloop_proxy_pause_wait_seconds_(?:count|sum)) (\S+)$", metrics, re.MULTILINE))
    assert float(found["hintloop_proxy_pause_wait_seconds_count"]) == 5
    assert float(found["hintloop_proxy_pause_wait_seconds_sum"]) >= 4 * PAUSE_S
    assert not re.search(r"^hintloop_proxy_refused_total\{", metrics, re.MULTILINE)
    captures: list[Any] = []
    async with asyncio.timeout(120):
        while len(captures) < 5:
            captures += [entry.message for entry in await broker.read(CAPTURES, "test", 10, 200)]
    assert {capture.status for capture in captures} == {"complete"}
    # Each of them met both versions; the linker drops such turns as `mixed_version`.
    assert {(capture.version_oldest, capture.version_newest) for capture in captures} <= {(1, 2), (0, 2)}
