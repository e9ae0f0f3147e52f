"""What differs on a translated API from the engine's own endpoint, member by member: what ``docs/apis.md`` lists.

Both are read by the vendor's client. A new difference fails, and so does one that is there no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

CAPITAL = "What is the capital of France?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Any = {"type": "function", "name": "get_weather", "description": "Weather", "parameters": SCHEMA}
RESPONSES: dict[str, dict[str, Any]] = {
    "ended": {"input": CAPITAL, "max_output_tokens": 24},
    "cut": {"input": CAPITAL, "max_output_tokens": 4},
    "tools": {"input": CAPITAL, "tools": [FUNCTION], "instructions": "Be brief.", "max_output_tokens": 4},
}
MESSAGES: dict[str, dict[str, Any]] = {
    "ended": {"messages": [{"role": "user", "content": CAPITAL}], "max_tokens": 24},
    "cut": {"messages": [{"role": "user", "content": CAPITAL}], "max_tokens": 4},
    "stopped": {"messages": [{"role": "user", "content": CAPITAL}], "max_tokens": 24, "stop_sequences": ["France"]},
}
#: Members that are never equal: ids, times, and what a cache holds.
ASIDE = frozenset(
    ("id", "item_id", "model", "created_at", "completed_at", "sequence_number", "obfuscation", "cached_tokens")
)
ORDER = "order of events"
PENALTIES = {"frequency_penalty", "presence_penalty", "usage.output_tokens_details.tool_output_tokens"}
CUT = {"delta", "text", "part.text", "item.content[].text", "output[].content[].text"}
LAST_ITEM = {"item.status", "output[].status"}
CACHED = {"usage.cache_creation_input_tokens", "usage.cache_read_input_tokens"}
#: By engine and API: what stands in the first column of a table of ``docs/apis.md``, and the members that it means.
KNOWN: dict[tuple[str, str], dict[str, set[str]]] = {
    ("vllm", "responses"): {
        "an answer cut by its limit, streamed": {ORDER, "type"},
        "its last item": LAST_ITEM,
        "what was left out of the request": {
            "service_tier",
            "store",
            "text.format.type",
            "tool_choice",
            "top_logprobs",
        },
        "extras (`kv_transfer_params`, `*_per_turn`, penalties)": PENALTIES,
    },
    ("vllm", "messages"): {"cached tokens in `usage`": CACHED},
    ("sglang", "responses"): {
        "`max_output_tokens`": CUT | {"usage.output_tokens", "usage.total_tokens"},
        "its last item": LAST_ITEM,
        "what was left out of the request": {
            "background",
            "service_tier",
            "text.format.type",
            "tools[].strict",
            "top_logprobs",
            "top_p",
        },
        "`phase` of a message": {"item.phase", "output[].phase"},
    },
    ("sglang", "messages"): {
        "`stop_sequence`": {"stop_reason", "stop_sequence", "delta.stop_reason", "delta.stop_sequence"},
        "cached tokens in `usage`": CACHED,
        "`usage` in a stream": {"usage.input_tokens", "usage.output_tokens"},
    },
}


@dataclass
class Sides:
    """An engine, with and without the proxy before it."""

    kind: str
    urls: tuple[str, str]


@pytest.fixture(params=["vllm", "sglang"])
async def sides(request: pytest.FixtureRequest, redis_server: Any, start_proxy: Any) -> AsyncIterator[Sides]:
    policy = request.getfixturevalue(f"{request.param}_policy")
    proxy = await asyncio.to_thread(start_proxy, policy.kind, policy.base_url, redis_server.url, "--no-linker")
    await asyncio.to_thread(proxy.wait, "/hintloop/ready")
    yield Sides(policy.kind, (policy.base_url, proxy.url))


def members(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of parsed objects with its path; places in lists are not told apart."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in ASIDE:
                yield from members(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for inner in value:
            yield from members(inner, f"{path}[]")
    else:
        yield path, value


def differing(native: Any, ours: Any) -> dict[str, str]:
    """Members of which the two say something else; one that is absent says nothing, as null does."""
    found = [{(path, repr(leaf)) for path, leaf in members(one) if leaf is not None} for one in (native, ours)]
    said: dict[str, str] = {}
    for path in {path for path, _ in found[0] ^ found[1]}:
        both = [sorted(leaf for at, leaf in one if at == path) for one in found]
        said[path.removeprefix("response.").removeprefix("message.")] = f"{both[0]} {both[1]}"
    return said


def joined(events: list[Any]) -> list[dict[str, Any]]:
    """Events as plain objects, neighbouring deltas joined."""
    found: list[dict[str, Any]] = []
    for event in events:
        one = event.model_dump(exclude_unset=True)
        delta = one.get("delta")
        before = found[-1] if found else {}
        if delta is not None and before.get("type") == one["type"]:
            add_delta(before, delta)
        else:
            found.append(one)
    return found


def add_delta(event: dict[str, Any], delta: Any) -> None:
    if isinstance(delta, str):
        event["delta"] += delta
        return
    for name, value in delta.items():
        if name != "type" and isinstance(value, str):
            event["delta"][name] = event["delta"].get(name, "") + value


async def served_name(url: str) -> str:
    """The model's name there; new weights rename it on SGLang, whose own endpoints then know no other."""
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0, timeout=180) as client:
        return (await client.models.list()).data[0].id


async def ask_responses(url: str, asked: dict[str, Any]) -> tuple[Any, list[Any]]:
    model = await served_name(url)
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0, timeout=300) as client:
        whole = await client.responses.create(model=model, temperature=0.0, **asked)
        stream = await client.responses.create(model=model, temperature=0.0, stream=True, **asked)
        return whole, [event async for event in stream]


async def ask_messages(url: str, asked: dict[str, Any]) -> tuple[Any, list[Any]]:
    more: Any = {"extra_body": {"temperature": 0.0}, "model": await served_name(url)}
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0, timeout=300) as client:
        whole = await client.messages.create(**asked, **more)
        stream = await client.messages.create(**asked, **more, stream=True)
        return whole, [event async for event in stream]


@pytest.mark.engine
@pytest.mark.parametrize("api", ["responses", "messages"])
async def test_what_differs_is_known(sides: Sides, api: str) -> None:
    ask, requests = (ask_responses, RESPONSES) if api == "responses" else (ask_messages, MESSAGES)
    found: dict[str, str] = {}
    for asked in requests.values():
        (native, native_events), (ours, our_events) = [await ask(url, asked) for url in sides.urls]
        found |= differing(*(one.model_dump(exclude_unset=True, warnings=False) for one in (native, ours)))
        pairs = joined(native_events), joined(our_events)
        kinds = [[one["type"] for one in events] for events in pairs]
        if kinds[0] != kinds[1]:
            found[ORDER] = f"{kinds[0]} {kinds[1]}"
        for one, other in zip(*pairs, strict=False):
            found |= differing(one, other)
    known = KNOWN[sides.kind, api]
    assert found.keys() == set().union(*known.values()), found


def test_the_list_is_the_documented_one() -> None:
    documented = (Path(__file__).parents[3] / "docs" / "apis.md").read_text()
    rows = {row for known in KNOWN.values() for row in known}
    assert [row for row in rows if f"| {row} |" not in documented] == []
