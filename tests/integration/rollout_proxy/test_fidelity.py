"""What a client sees through the proxy is what it sees without: bytes, status and headers, on the real engines.

Both are asked greedily. Left aside are ids, times and what a cache changes; texts are compared joined, since an engine
under load sends several tokens at once.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

pytestmark = pytest.mark.engine

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
Json = dict[str, Any]

USER = [{"role": "user", "content": "What is the capital of France?"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "What is the capital"}, {"type": "text", "text": "?"}]}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
NAMED = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
SHAPED = {"response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}}
USAGE = {"stream_options": {"include_usage": True}}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
TEXT = "The capital of France is"
IDS = [504, 3575, 282, 4649, 314]
#: Two choices are drawn, so only their form is compared.
DRAWN = {"n": 2, "temperature": 0.8, "ignore_eos": True}

CHATS: dict[str, Json] = {
    "plain": {},
    "ended": {"max_tokens": 24},
    "stop": {"stop": ["France"], "max_tokens": 8},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "ids": {"return_token_ids": True},
    "choices": DRAWN,
    "tool": {**NAMED, "max_tokens": 30},
    "shaped": {**SHAPED, "max_tokens": 8},
    "parts": {"messages": PARTS},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, *USER]},
    "unknown_member": {"nobody_knows": [1, {"a": None}], "metadata": {"a": "b"}},
    "bad_temperature": {"temperature": -1},
    "too_long": {"max_tokens": 1_000_000},
    "no_messages": {"messages": None},
    "bad_messages": {"messages": [{"role": "user"}, 3]},
    "bad_tool": {"tools": [{"type": "function"}]},
}
STREAMED: dict[str, Json] = {"usage": USAGE, "continuous": CONTINUOUS, "continuous_tool": {**CONTINUOUS, **NAMED}}
TEXTS: dict[str, Json] = {
    "plain": {},
    "ids": {"prompt": IDS, "return_token_ids": True},
    "list": {"prompt": [TEXT, "Paris is"]},
    "echo": {"echo": True},
    "logprobs": {"logprobs": 1},
    "choices": DRAWN,
    "stop": {"stop": ["Paris"], "max_tokens": 8},
    "bad_temperature": {"temperature": -1},
    "no_prompt": {"prompt": None},
}
GREEDY = {"max_new_tokens": 4, "temperature": 0.0}
GENERATED: dict[str, Json] = {
    "plain": {},
    "ids": {"text": None, "input_ids": IDS},
    "logprobs": {"return_logprob": True, "logprob_start_len": 0},
    "prompt_ids": {"return_prompt_token_ids": True},
    "choices": {"sampling_params": {**GREEDY, "n": 2}},
    "batch": {"text": [TEXT, "Paris is"]},
    "no_prompt": {"text": None},
    "bad_temperature": {"sampling_params": {"temperature": -1}},
}


@dataclass(frozen=True)
class Answer:
    """What a client got."""

    status: int
    headers: dict[str, str]
    data: bytes


@dataclass
class Sides:
    """An engine, with and without the proxy before it."""

    kind: str
    engine_url: str
    proxy_url: str
    session: aiohttp.ClientSession

    async def both(self, path: str, body: Any) -> tuple[Answer, Answer]:
        """The direct answer, and the proxy's."""
        return await self.ask(self.engine_url + path, body), await self.ask(self.proxy_url + path, body)

    async def ask(self, url: str, body: Any, method: str = "POST") -> Answer:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        async with self.session.request(method, url, data=data, headers=headers) as response:
            named = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, named, await response.read())


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def policy(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"{request.param}_policy")


@pytest.fixture
async def sides(policy: Any, redis_server: Any, start_proxy: Any) -> AsyncIterator[Sides]:
    proxy = await asyncio.to_thread(start_proxy, policy.kind, policy.base_url, redis_server.url, "--no-linker")
    await asyncio.to_thread(proxy.wait, "/hintloop/ready")
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        yield Sides(policy.kind, policy.base_url, proxy.url, session)


#: Headers of the connection and the server, not of the answer.
ASIDE = {"date", "server", "content-length", "transfer-encoding", "connection", "keep-alive"}
MASKS = (
    (rb'("(?:id|request_id)": ?")[^"]*', rb"\1"),
    (rb'("(?:created|completed_at)": ?)\d+', rb"\g<1>0"),
    (rb'("(?:e2e_latency|response_sent_to_client_ts|queue_time|cached_tokens|device|host)": ?)[\d.e-]+', rb"\g<1>0"),
    (rb'"response_sent_to_client_ts":0,?', b""),
)
NUMBER = re.compile(rb"-?\d+\.\d+(?:e-?\d+)?")
EMPTIED = (
    (rb'("(?:content|text|arguments|token|reasoning_content|reasoning)":)"(?:[^"\\]|\\.)*"', rb'\1""'),
    (rb'"logprobs":\{.*\},"finish_reason"', b'"logprobs":{},"finish_reason"'),
    (rb'("(?:token_ids|output_ids)":)\[.*?\](?=[,}])', rb"\1[]"),
    (rb'("output_token_logprobs":)\[.*?\](?=,"output_token_logprobs_length")', rb"\1[]"),
    (rb'("(?:completion_tokens|total_tokens|reasoning_tokens|output_token_logprobs_length)":)\d+', rb"\g<1>0"),
)
INDEX = re.compile(rb'"index":(\d+)')


def masked(data: bytes) -> bytes:
    """Without what differs from one answer to the next; numbers are :func:`numbers`."""
    return NUMBER.sub(b"0.0", without_times(data))


def without_times(data: bytes) -> bytes:
    """Without ids, times and what a cache changes."""
    for pattern, replacement in MASKS:
        data = re.sub(pattern, replacement, data)
    return data


def numbers(data: bytes) -> list[float]:
    """Every number with a point: log-probabilities, which a cache changes in their last digits."""
    return [float(found) for found in NUMBER.findall(without_times(data))]


def forms(data: bytes) -> list[bytes]:
    """The events with their texts, ids and counts emptied; equal neighbours once. Choices take turns as they please."""
    events = masked(data).split(b"\n\n")
    for pattern, replacement in EMPTIED:
        events = [re.sub(pattern, replacement, event) for event in events]
    events.sort(key=lambda event: found.group(1) if (found := INDEX.search(event)) else b"~")
    return [event for event, _ in itertools.groupby(events)]


def texts(data: bytes) -> dict[tuple[str, int], str]:
    """What the events said, joined, by member and choice."""
    found: dict[tuple[str, int], str] = {}
    for event in data.split(b"\n\n"):
        if not event.startswith(b"data: {"):
            continue
        document = json.loads(event[6:])
        if "choices" not in document:
            found["text", document.get("index", 0)] = document.get("text", "")
            continue
        for choice in document["choices"]:
            said = choice.get("delta", choice)
            for name in ("content", "text", "reasoning_content", "finish_reason"):
                key = name, choice["index"]
                found[key] = found.get(key, "") + (said.get(name) or choice.get(name) or "")
    return found


def unlike(direct: Answer, seen: Answer, drawn: bool) -> str:
    """Where the client sees the proxy, or ``""``."""
    if seen.status != direct.status:
        return f"status {direct.status} {direct.data!r:.300}, through the proxy {seen.status} {seen.data!r:.300}"
    named = [{name for name in one.headers if name not in ASIDE} for one in (direct, seen)]
    if named[0] != named[1]:
        return f"headers {named[0]}, through the proxy {named[1]}"
    if seen.headers["content-type"] != direct.headers["content-type"]:
        return f"content type {direct.headers['content-type']}, through the proxy {seen.headers['content-type']}"
    if direct.headers["content-type"].startswith("text/event-stream"):
        if not drawn and texts(seen.data) != texts(direct.data):
            return f"texts {texts(direct.data)}, through the proxy {texts(seen.data)}"
        return first_unlike(forms(direct.data), forms(seen.data))
    if drawn:
        return first_unlike(forms(direct.data), forms(seen.data))
    different = first_unlike([masked(direct.data)], [masked(seen.data)])
    return different or ("" if numbers(seen.data) == pytest.approx(numbers(direct.data), abs=0.01) else "numbers")


def first_unlike(direct: list[bytes], seen: list[bytes]) -> str:
    for place, (one, other) in enumerate(itertools.zip_longest(direct, seen)):
        if one != other:
            return f"{place}:\n{one!r}\nthrough the proxy\n{other!r}"
    return ""


async def compare(sides: Sides, path: str, base: Json, asked: dict[str, Json]) -> list[str]:
    """Ask everything on both sides; what differs."""
    found = {}
    for name, more in asked.items():
        body = {key: value for key, value in (base | more).items() if value is not None}
        found[name] = unlike(*await sides.both(path, body), name.startswith("choices"))
    return [f"{path} {name}: {problem}" for name, problem in found.items() if problem]


#: What is the same, streamed or not: how a prompt is read, and what is refused before.
READ_ALIKE = {"parts", "developer", "unknown_member", "no_messages", "bad_messages", "bad_tool", "no_prompt", "echo"}


def streamed(asked: dict[str, Json]) -> dict[str, Json]:
    """The same, as streams."""
    return {f"{name} streamed": {**more, "stream": True} for name, more in asked.items() if name not in READ_ALIKE}


async def test_nobody_sees_the_proxy(sides: Sides) -> None:
    greedy = {"model": "policy", "max_tokens": 4, "temperature": 0.0}
    problems = await compare(sides, CHAT, greedy | {"messages": USER}, CHATS | streamed(CHATS | STREAMED))
    more = streamed({**TEXTS, "usage": USAGE, "continuous": CONTINUOUS})
    problems += await compare(sides, COMPLETIONS, greedy | {"prompt": TEXT}, TEXTS | more)
    asked = GENERATED if sides.kind == "sglang" else {"plain": {}}
    problems += await compare(sides, GENERATE, {"text": TEXT, "sampling_params": GREEDY}, asked | streamed(asked))
    for path, body in itertools.product((CHAT, COMPLETIONS), (b"", b"{", b"[]", b'{"model": "\\ud800"}', b"\xff")):
        problem = unlike(*await sides.both(path, body), False)
        problems += [f"{path} {body!r}: {problem}"] if problem else []
    direct, seen = [await sides.ask(url + CHAT, None, "GET") for url in (sides.engine_url, sides.proxy_url)]
    problems += [problem for problem in (unlike(direct, seen, False),) if problem]
    assert not problems, "\n".join(problems)
    # The one thing that is meant to differ: agents need not know how the engine calls its model.
    seen = await sides.ask(sides.proxy_url + CHAT, greedy | {"model": "nobody", "messages": USER})
    assert (seen.status, json.loads(seen.data)["model"]) == (200, "policy")
