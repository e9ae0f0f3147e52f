"""Stock agent libraries, unmodified but for the base URL, before a scripted engine: every answer is linked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hintloop_contract.streams import TURNS
from hintloop_contract.tensors import unpack

from tests.scripted.engine import ScriptedEngine, serving

from . import scripts

AGENTS: dict[str, tuple[Callable[[], scripts.Script], tuple[str, ...], int]] = {
    "openai_chat": (scripts.weather, ("tools",), 4),
    "openai_responses": (scripts.weather, ("tools",), 4),
    "anthropic_messages": (scripts.weather, ("tools",), 4),
    "openai_agents chat": (scripts.weather, ("tools", "chat"), 4),
    "openai_agents responses": (scripts.weather, ("tools", "responses"), 4),
    "langchain_openai_chat": (scripts.weather, ("tools",), 4),
    "smolagents_tools": (scripts.smolagents_tools, ("tools",), 4),
    "smolagents_code": (scripts.smolagents_code, ("code",), 4),
    "mini_swe_agent": (scripts.shell, (), 4),
}
FILES = {"smolagents_code": "smolagents_tools"}


#: In SGLang's shapes these belong to the long series: they speak what others speak.
LONG = ("openai_agents chat", "openai_agents responses", "langchain_openai_chat", "smolagents_code")
RUNS = [
    pytest.param(agent, kind, marks=[pytest.mark.slow] if kind == "sglang" and agent in LONG else [])
    for kind in ("vllm", "sglang")
    for agent in AGENTS
]


@pytest.mark.parametrize(("agent", "kind"), RUNS)
async def test_every_answer_is_linked_to_what_followed(
    agent: str, kind: str, run_agent: Any, redis_server: Any, start_proxy: Any, make_broker: Any
) -> None:
    make_script, words, num_answers = AGENTS[agent]
    name = agent.split()[0]
    async with serving(ScriptedEngine(kind, make_script())) as engine:
        proxy = await asyncio.to_thread(start_proxy, kind, engine.url, redis_server.url)
        await asyncio.to_thread(proxy.wait, "/hintloop/ready")
        broker = make_broker(redis_server.url)
        await broker.ensure_groups()
        said = await run_agent(FILES.get(name, name), proxy.url, *words)
        turns = await read_turns(broker, num_answers - 1)
        records = [await broker.get_turn(turn.turn_id) for turn in turns]
    assert said["answers"] == num_answers == len(engine.asked)
    assert len(turns) == num_answers - 1
    assert len({turn.session_id for turn in turns}) == 1
    assert [turn.turn_index for turn in turns] == list(range(num_answers - 1))
    for record, truth in zip(records, list(engine.truth.values()), strict=False):
        assert tuple(unpack(record.prompt_ids)) == truth.prompt_ids
        assert tuple(unpack(record.response_ids)) == truth.response_ids
        np.testing.assert_array_equal(unpack(record.logprobs), np.float32(truth.logprobs))
        assert json.loads(record.next_state), "something followed"


async def read_turns(broker: Any, count: int) -> list[Any]:
    """``count`` turns in order, or as many as come within three minutes, and all that come a second later."""
    turns: list[Any] = []
    ends = time.monotonic() + 180
    while len(turns) < count and time.monotonic() < ends:
        turns += [entry.message for entry in await broker.read(TURNS, "test", 50, 200)]
    turns += [entry.message for entry in await broker.read(TURNS, "test", 50, 1000)]
    return sorted(turns, key=lambda turn: turn.turn_index)
