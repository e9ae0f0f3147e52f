"""Through the proxy with the stock SDK: what is captured is the engine's own, what is seen is nothing new."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from hintloop_contract.messages import Capture
from hintloop_contract.streams import CAPTURES, TURNS
from hintloop_contract.tensors import unpack

pytestmark = pytest.mark.engine

QUESTION = [{"role": "user", "content": "Name three colours of the rainbow."}]
GREEDY = {"temperature": 0.0, "max_tokens": 16}
OURS = {"token_ids", "prompt_token_ids", "response_token_ids", "meta_info", "sglext"}


@pytest.fixture(params=["vllm", "sglang"])
def policy(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"{request.param}_policy")


@pytest.fixture
async def setup(policy: Any, redis_server: Any, start_proxy: Any, make_broker: Any) -> AsyncIterator[Any]:
    proxy = await asyncio.to_thread(start_proxy, policy.kind, policy.base_url, redis_server.url, "--no-linker")
    await asyncio.to_thread(proxy.wait, "/hintloop/ready")
    broker = make_broker(redis_server.url)
    await broker.ensure_groups()
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=300) as client:
        yield client, broker, policy


def told(document: dict[str, Any]) -> set[str]:
    """Members that say something; vLLM names some of ours with null to whoever asks for nothing."""
    return {name for name, value in document.items() if value is not None}


async def one_capture(broker: Any) -> Capture:
    async with asyncio.timeout(180):
        while not (entries := await broker.read(CAPTURES, "test", 1, 200)):
            pass
    capture: Capture = entries[0].message
    return capture


async def engines_own_answer(policy: Any) -> tuple[list[int], list[int], list[float]]:
    """Prompt ids, response ids and log-probabilities as the engine gives them without a proxy or a stream."""
    ask = {"model": policy.name, "messages": QUESTION, **GREEDY, "logprobs": True, "return_token_ids": True}
    if policy.kind == "sglang":
        ask |= {"return_prompt_token_ids": True, "return_meta_info": True}
    async with httpx.AsyncClient(timeout=300) as client:
        document = (await client.post(policy.base_url + "/v1/chat/completions", json=ask)).json()
    choice = document["choices"][0]
    logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    if policy.kind == "sglang":
        return choice["prompt_token_ids"], choice["response_token_ids"], logprobs
    return document["prompt_token_ids"], choice["token_ids"], logprobs


async def test_stream_is_exact_and_shows_nothing_of_ours(setup: Any) -> None:
    client, broker, policy = setup
    prompt_ids, response_ids, logprobs = await engines_own_answer(policy)
    stream = await client.chat.completions.create(model="policy", messages=QUESTION, stream=True, **GREEDY)
    text, num_chunks = "", 0
    async for chunk in stream:
        num_chunks += 1
        document = chunk.model_dump(exclude_unset=True)
        assert not OURS & told(document)
        assert document.get("usage") is None
        assert document["model"] == "policy"
        (choice,) = document["choices"]
        assert not OURS & told(choice)
        assert choice.get("logprobs") is None
        text += choice["delta"].get("content") or ""
    capture = await one_capture(broker)
    assert num_chunks > 5
    assert capture.problem is None, capture.problem_detail
    assert unpack(capture.prompt_ids).tolist() == prompt_ids
    assert unpack(capture.response_ids).tolist() == response_ids
    np.testing.assert_allclose(unpack(capture.logprobs), np.float32(logprobs), atol=2e-4)
    assert json.loads(capture.answer)["content"] == text
    assert capture.usage_completion_tokens == len(response_ids)
    assert capture.behaviour_space == ("processed" if policy.kind == "vllm" else "after_temperature")


async def test_whole_answer_is_exact_and_shows_nothing_of_ours(setup: Any) -> None:
    client, broker, policy = setup
    prompt_ids, response_ids, _ = await engines_own_answer(policy)
    answer = await client.chat.completions.create(model="policy", messages=QUESTION, **GREEDY)
    # SGLang puts a list where the SDK expects a text, with or without a proxy.
    document = answer.model_dump(exclude_unset=True, warnings=False)
    assert not OURS & told(document)
    assert not OURS & told(document["choices"][0])
    assert document["choices"][0].get("logprobs") is None
    capture = await one_capture(broker)
    assert capture.problem is None, capture.problem_detail
    assert unpack(capture.prompt_ids).tolist() == prompt_ids
    assert unpack(capture.response_ids).tolist() == response_ids
    assert json.loads(capture.answer)["content"] == answer.choices[0].message.content


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("stream", [False, True])
async def test_forced_tool_is_captured_as_its_parser_shows_it(setup: Any, stream: bool) -> None:
    client, broker, policy = setup
    ask: dict[str, Any] = {
        "model": "policy",
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "temperature": 0.0,
        "max_tokens": 96,
    }
    if stream:
        async with client.chat.completions.stream(**ask) as events:
            async for _ in events:
                pass
        message = events.current_completion_snapshot.choices[0].message
    else:
        message = (await client.chat.completions.create(**ask)).choices[0].message
    capture = await one_capture(broker)
    assert capture.problem is None, capture.problem_detail
    assert capture.sampling.constrained
    ids, logprobs = unpack(capture.response_ids), unpack(capture.logprobs)
    assert len(ids) == len(logprobs) == capture.usage_completion_tokens
    (seen,) = message.tool_calls
    (captured,) = json.loads(capture.answer)["tool_calls"]
    assert captured["id"] == seen.id
    assert captured["function"] == {"name": "get_weather", "arguments": seen.function.arguments}
    json.loads(seen.function.arguments)
    # The ids are those of the words that the parser read, not of what it showed.
    detokenize = {"model": policy.name, "tokens": ids.tolist()}
    async with httpx.AsyncClient(timeout=180) as engine:
        text = (await engine.post(policy.base_url + "/detokenize", json=detokenize)).json()
    assert "get_weather" in (text.get("prompt") or text.get("text"))


async def test_agent_that_leaves_ends_the_generation(setup: Any) -> None:
    client, broker, policy = setup
    stream = await client.chat.completions.create(
        model="policy", messages=QUESTION, stream=True, temperature=1.0, max_tokens=1500
    )
    async for _ in stream:
        break
    await stream.close()
    capture = await one_capture(broker)
    assert (capture.status, capture.problem) == ("aborted", "aborted")
    # The engine is free again: a short answer comes at once, not behind 1,500 tokens.
    start = time.monotonic()
    await client.chat.completions.create(model="policy", messages=QUESTION, temperature=0.0, max_tokens=1)
    assert time.monotonic() - start < 30
    assert policy.kind in capture.engine


async def test_conversation_becomes_turns(policy: Any, redis_server: Any, start_proxy: Any, make_broker: Any) -> None:
    proxy = await asyncio.to_thread(start_proxy, policy.kind, policy.base_url, redis_server.url)
    await asyncio.to_thread(proxy.wait, "/hintloop/ready")
    broker = make_broker(redis_server.url)
    messages: list[Any] = list(QUESTION)
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0, timeout=300) as client:
        for complaint in ("Shorter, please.", "Thank you.", "Bye."):
            stream = await client.chat.completions.create(
                model="policy", messages=messages, stream=True, temperature=0.7, max_tokens=12
            )
            text = ""
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
            messages += [{"role": "assistant", "content": text.strip()}, {"role": "user", "content": complaint}]
    turns: list[Any] = []
    async with asyncio.timeout(180):
        while len(turns) < 2:
            turns += [entry.message for entry in await broker.read(TURNS, "test", 10, 200)]
    assert [turn.turn_index for turn in turns] == [0, 1]
    assert turns[0].session_id == turns[1].session_id
    record = await broker.get_turn(turns[0].turn_id)
    assert json.loads(record.next_state) == [{"role": "user", "content": "Shorter, please."}]
    assert len(record.response_ids) == len(record.logprobs) == turns[0].num_response_tokens
