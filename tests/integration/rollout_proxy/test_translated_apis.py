"""Responses and Messages by the vendors' clients: the translation beside the engine's own endpoint, on real engines.

Answers are greedy and end by themselves where they can, so that texts can be compared. Where an engine leaves its
vendor's documentation the proxy follows the vendor (``docs/apis.md``); those places are named here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest
from hintloop_contract.messages import Capture
from hintloop_contract.streams import CAPTURES
from hintloop_contract.tensors import unpack

pytestmark = pytest.mark.engine

CAPITAL = "What is the capital of France?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Any = {"type": "function", "name": "get_weather", "description": "Weather of a city", "parameters": SCHEMA}
CUSTOM: Any = {"name": "get_weather", "description": "Weather of a city", "input_schema": SCHEMA}
ARGUMENTS = '{"city": "Paris"}'
RESPONSES: dict[str, dict[str, Any]] = {
    "plain": {"input": CAPITAL, "max_output_tokens": 24},
    "history": {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Weather in Paris?"}]},
            {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "call_1", "output": "Sunny"},
            {"role": "user", "content": CAPITAL},
        ],
        "tools": [FUNCTION],
        "max_output_tokens": 24,
    },
    "shaped": {
        "input": CAPITAL,
        "text": {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}},
        "max_output_tokens": 32,
    },
    "forced": {"input": "Weather in Paris?", "tools": [FUNCTION], "tool_choice": "required", "max_output_tokens": 48},
}
MESSAGES: dict[str, dict[str, Any]] = {
    "plain": {"messages": [{"role": "user", "content": CAPITAL}], "max_tokens": 24},
    "history": {
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather in Paris?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "None", "is_error": True},
                    {"type": "text", "text": CAPITAL},
                ],
            },
        ],
        "tools": [CUSTOM],
        "max_tokens": 24,
    },
    "forced": {
        "messages": [{"role": "user", "content": "Weather in Paris?"}],
        "tools": [CUSTOM],
        "tool_choice": {"type": "any"},
        "max_tokens": 48,
    },
}


@dataclass
class Setup:
    """An engine, and the proxy before it."""

    kind: str
    engine_url: str
    proxy_url: str
    broker: Any

    def openai(self, url: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0, timeout=300)

    def anthropic(self, url: str) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0, timeout=300)

    async def served_name(self, url: str) -> str:
        """The model's name there; new weights rename it on SGLang, whose own endpoints then know no other."""
        async with self.openai(url) as client:
            return (await client.models.list()).data[0].id

    async def capture(self) -> Capture:
        """The next capture."""
        async with asyncio.timeout(180):
            while not (entries := await self.broker.read(CAPTURES, "test", 1, 200)):
                pass
        capture: Capture = entries[0].message
        return capture


@pytest.fixture(params=["vllm", "sglang"])
async def setup(
    request: pytest.FixtureRequest, redis_server: Any, start_proxy: Any, make_broker: Any
) -> AsyncIterator[Setup]:
    policy = request.getfixturevalue(f"{request.param}_policy")
    proxy = await asyncio.to_thread(start_proxy, policy.kind, policy.base_url, redis_server.url, "--no-linker")
    await asyncio.to_thread(proxy.wait, "/hintloop/ready")
    broker = make_broker(redis_server.url)
    await broker.ensure_groups()
    yield Setup(policy.kind, policy.base_url, proxy.url, broker)


def check_exact(capture: Capture, num_response: int, num_prompt: int) -> None:
    """The capture holds what the engine counted."""
    assert capture.problem is None, capture.problem_detail
    assert capture.prompt_ids is not None and capture.response_ids is not None and capture.logprobs is not None
    assert len(unpack(capture.response_ids)) == len(unpack(capture.logprobs)) == num_response
    assert len(unpack(capture.prompt_ids)) == num_prompt


def response_calls(response: Any) -> list[tuple[str, str]]:
    return [(item.name, item.arguments) for item in response.output if item.type == "function_call"]


def response_kinds(events: list[Any]) -> list[str]:
    """Event types in order, repeated deltas once. vLLM says "completed" of an answer that its limit cut."""
    kinds = [event.type.replace("response.incomplete", "response.completed") for event in events]
    return [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]


async def test_responses_are_those_of_the_engines_own_endpoint(setup: Setup) -> None:
    for name, asked in RESPONSES.items():
        # SGLang's own endpoint takes some tokens off the limit, which shows where an answer is cut.
        cut = setup.kind == "sglang" and name == "forced"
        found = []
        for url in (setup.engine_url, setup.proxy_url):
            model = await setup.served_name(url)
            async with setup.openai(url) as client:
                whole = await client.responses.create(model=model, temperature=0.0, **asked)
                stream = await client.responses.create(model=model, temperature=0.0, stream=True, **asked)
                found.append((whole, [event async for event in stream]))
        (native, native_events), (ours, events) = found
        assert response_kinds(events) == response_kinds(native_events), name
        assert [item.type for item in ours.output] == [item.type for item in native.output], name
        if not cut:
            assert ours.output_text == native.output_text, name
            assert response_calls(ours) == response_calls(native), name
            assert ours.usage.output_tokens == native.usage.output_tokens, name
        assert ours.usage.input_tokens == native.usage.input_tokens, name
        last = events[-1].response
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == last.output_text, name
        # An engine streams a call that its limit cut as a call, and gives it whole as text.
        if name != "forced":
            assert last.output_text == ours.output_text, name
            assert response_calls(last) == response_calls(ours), name
        for response in (ours, last):
            capture = await setup.capture()
            assert (capture.api, capture.response_id) == ("responses", response.id)
            check_exact(capture, response.usage.output_tokens, response.usage.input_tokens)


def message_kinds(events: list[Any]) -> list[str]:
    """Event types in order, repeated deltas once; the client itself leaves out pings."""
    kinds = [event.type for event in events]
    return [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]


def message_parts(message: Any) -> list[tuple[Any, ...]]:
    return [(block.text,) if block.type == "text" else (block.name, block.input) for block in message.content]


def streamed_text(events: list[Any]) -> str:
    """Texts and arguments, joined."""
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    return "".join(delta.text if delta.type == "text_delta" else delta.partial_json for delta in deltas)


async def test_messages_are_those_of_the_engines_own_endpoint(setup: Setup) -> None:
    for name, asked in MESSAGES.items():
        found = []
        for url in (setup.engine_url, setup.proxy_url):
            async with setup.anthropic(url) as client:
                # The newest client has no parameter for it any more.
                more: Any = {"extra_body": {"temperature": 0.0}, "model": await setup.served_name(url)}
                whole = await client.messages.create(**asked, **more)
                stream = await client.messages.create(**asked, **more, stream=True)
                found.append((whole, [event async for event in stream]))
        (native, native_events), (ours, events) = found
        assert message_kinds(events) == message_kinds(native_events), name
        assert message_parts(ours) == message_parts(native), name
        assert (ours.stop_reason, ours.usage.output_tokens) == (native.stop_reason, native.usage.output_tokens), name
        assert ours.usage.input_tokens == native.usage.input_tokens == events[0].message.usage.input_tokens, name
        assert streamed_text(events) == streamed_text(native_events), name
        for message_id in (ours.id, events[0].message.id):
            capture = await setup.capture()
            assert (capture.api, capture.response_id) == ("messages", message_id)
            check_exact(capture, ours.usage.output_tokens, ours.usage.input_tokens)
    async with setup.anthropic(setup.proxy_url) as client:
        counted = await client.messages.count_tokens(model="policy", messages=MESSAGES["plain"]["messages"])
        assert counted.input_tokens == 37


async def test_a_chain_of_responses_is_the_conversation(setup: Setup) -> None:
    async with setup.openai(setup.proxy_url) as client:
        asked: Any = {"model": "policy", "temperature": 0.0, "max_output_tokens": 24}
        first = await client.responses.create(input=CAPITAL, **asked)
        later = await client.responses.create(input="And of Spain?", previous_response_id=first.id, **asked)
        whole = [{"role": "user", "content": CAPITAL}, *first.output, {"role": "user", "content": "And of Spain?"}]
        echoed = await client.responses.create(input=whole, **asked)
        assert later.output_text == echoed.output_text
        assert later.usage is not None and echoed.usage is not None
        assert later.usage.input_tokens == echoed.usage.input_tokens > first.usage.input_tokens  # type: ignore[union-attr]
