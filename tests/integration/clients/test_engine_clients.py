"""Stock agent libraries, unmodified but for the base URL, on the real engines: whatever the small model says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from .test_scripted_clients import read_turns

pytestmark = pytest.mark.engine

#: Name and words. At most six answers each.
AGENTS = {
    "openai_chat": ("plain",),
    "openai_responses": ("plain",),
    "anthropic_messages": ("plain",),
    "openai_agents": ("plain", "chat"),
    "langchain_openai_chat": ("plain",),
    "smolagents_tools": ("tools",),
    "mini_swe_agent": (),
}


#: On SGLang the others, which speak what these speak, belong to the long series.
VENDORS = ("openai_chat", "openai_responses", "anthropic_messages")
RUNS = [
    pytest.param(agent, kind, marks=[pytest.mark.slow] if kind == "sglang" and agent not in VENDORS else [])
    for kind in ("vllm", "sglang")
    for agent in AGENTS
]


@pytest.mark.parametrize(("agent", "kind"), RUNS)
async def test_every_main_line_answer_is_linked(
    agent: str,
    kind: str,
    request: pytest.FixtureRequest,
    run_agent: Any,
    redis_server: Any,
    start_proxy: Any,
    make_broker: Any,
) -> None:
    policy = request.getfixturevalue(f"{kind}_policy")
    proxy = await asyncio.to_thread(start_proxy, policy.kind, policy.base_url, redis_server.url)
    await asyncio.to_thread(proxy.wait, "/hintloop/ready")
    broker = make_broker(redis_server.url)
    await broker.ensure_groups()
    said = await run_agent(agent, proxy.url, *AGENTS[agent], MAX_TOKENS="12", MAX_STEPS="2")
    assert 2 <= said["answers"] <= 6
    num_main = said["answers"] - said.get("side", 0)
    turns = await read_turns(broker, num_main - 1)
    assert len(turns) == num_main - 1, (await broker.funnel()).drops
    assert len({turn.session_id for turn in turns}) == 1
    for turn in turns:
        record = await broker.get_turn(turn.turn_id)
        assert len(record.response_ids) == len(record.logprobs) == turn.num_response_tokens > 0
        assert json.loads(record.next_state)
