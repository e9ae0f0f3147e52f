"""An agent that lives generated conversations against an address, and an engine that says its part of them.

The agent keeps what it saw of every answer beside what it would have seen without anything in between.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from aiohttp import web

from . import wire
from .answers import Given, Scripted, tokens_of
from .engine import ScriptedEngine
from .plans import Plan, Step

Json = dict[str, Any]
EXCHANGE = "x-exchange"
CALLED = "call_of_exchange_"


class PlannedEngine(ScriptedEngine):
    """Says what was planned for the exchange that a request names."""

    def __init__(self, kind: str) -> None:
        """Nothing is planned yet."""
        super().__init__(kind, lambda asked: Scripted("nothing was planned"))
        self.plans: dict[str, Step] = {}
        self.given: dict[str, Given] = {}

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer as planned."""
        number = request.headers.get(EXCHANGE, "")
        step = self.plans[number]
        asked = await self._asked(request)
        given = self.give(request.path, asked, with_call_ids(step.said, number))
        self.given[number] = given
        return await self.answer(request, asked, given, step.pieces)


def with_call_ids(said: tuple[Scripted, ...], exchange: str) -> list[Scripted]:
    """The choices with tool-call ids that are nowhere else."""
    return [
        replace(
            one,
            calls=tuple(
                replace(call, id=f"{CALLED}{exchange}_{index}_{place}") for place, call in enumerate(one.calls)
            ),
        )
        for index, one in enumerate(said)
    ]


@dataclass(slots=True)
class Seen:
    """One exchange as the agent saw it. ``followed``: messages that came after the answer, if any did."""

    plan: Plan
    step: Step
    number: str
    status: int
    headers: dict[str, str]
    data: bytes
    broken: bool
    asked: Json
    followed: list[Json] = field(default_factory=list)
    retries: bool = False
    """Whether it repeats the request before it."""


class Agent:
    """Lives conversations against ``url``."""

    def __init__(self, url: str, engine: PlannedEngine, session: aiohttp.ClientSession) -> None:
        """``engine`` is told what it will be asked."""
        self._url = url
        self._engine = engine
        self._session = session

    async def live(self, plan: Plan, number: int) -> list[Seen]:
        """Every exchange of a conversation."""
        history = History(plan, number)
        found: list[Seen] = []
        for place, step in enumerate(plan.steps):
            exchange = f"{plan.kind}-{number}-{place}"
            seen = await self._ask(plan, step, exchange, history)
            seen.retries = bool(found) and found[-1].step.hurts
            found.append(seen)
            if step.hurts or place == len(plan.steps) - 1:
                continue
            said = with_call_ids(step.said, exchange)[step.chosen]
            ids = self._engine.given[exchange].truth(step.chosen).response_ids
            seen.followed = history.go_on(step, said, list(ids), place)
        return found

    async def _ask(self, plan: Plan, step: Step, exchange: str, history: History) -> Seen:
        self._engine.plans[exchange] = step
        asked = history.request() | asks_of(plan, step)
        headers = {EXCHANGE: exchange} | ({"x-session-id": history.name} if plan.named else {})
        data, broken, status, got = b"", False, 0, {}
        try:
            async with self._session.post(self._url + plan.path, json=asked, headers=headers) as response:
                status, got = response.status, {name.lower(): value for name, value in response.headers.items()}
                async for block in response.content.iter_any():
                    data += block
        except aiohttp.ClientPayloadError:
            broken = True
        except TimeoutError:
            raise AssertionError(f"{exchange} was never answered to its end: {step}\n{data[-1000:]!r}") from None
        return Seen(plan, step, exchange, status, got, data, broken, asked)


def asks_of(plan: Plan, step: Step) -> Json:
    """How a step's request is asked."""
    asked: Json = {"model": "policy"} if plan.path != wire.GENERATE else {}
    options = {}
    for name in step.asks:
        if name in ("include_usage", "continuous_usage_stats"):
            options[name] = True
        elif name == "logprobs":
            asked[name] = True if plan.path == wire.CHAT else 0
        else:
            asked[name] = True
    if step.stream:
        asked["stream"] = True
        if options:
            asked["stream_options"] = options
    if plan.path == wire.GENERATE:
        return asked | {"sampling_params": {"max_new_tokens": 300, "n": len(step.said)}}
    return asked | ({"n": len(step.said)} if len(step.said) > 1 else {})


class History:
    """A conversation so far, as its API wants it."""

    def __init__(self, plan: Plan, number: int) -> None:
        """Begin it; no other has the same opening."""
        self._plan = plan
        self.name = f"{plan.kind} conversation {number}"
        opening = f"{self.name}: {plan.opening}"
        self._messages: list[Json] = [{"role": "system", "content": plan.system}] if plan.system else []
        self._messages.append({"role": "user", "content": opening})
        self._prompt: Any = words_as_ids(opening) if plan.by_ids else f"{plan.system}\n{opening}\n"

    def request(self) -> Json:
        """The members that hold it."""
        plan = self._plan
        if plan.path == wire.CHAT:
            tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("get_weather",)]
            return {"messages": list(self._messages)} | ({"tools": tools} if plan.by_ids else {})
        if plan.path == wire.COMPLETIONS:
            return {"prompt": self._prompt}
        return {"input_ids" if plan.by_ids else "text": self._prompt}

    def go_on(self, step: Step, said: Scripted, ids: list[int], place: int) -> list[Json]:
        """Add the answer and what comes after; the latter, as messages."""
        words = f"{step.words} (after {place})"
        if self._plan.path != wire.CHAT:
            if self._plan.by_ids:
                self._prompt = [*self._prompt, *ids, *words_as_ids(words)]
                return []
            self._prompt += said.content + words
            return [{"role": "user", "content": words}]
        answer: Json = {"role": "assistant", "content": said.content or None}
        if said.calls:
            answer["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in said.calls
            ]
        if said.reasoning and step.thinks_aloud:
            answer["reasoning_content"] = said.reasoning
        after = [{"role": "tool", "tool_call_id": call.id, "content": f"result of {call.id}"} for call in said.calls]
        if not after or not step.results_only:
            after.append({"role": "user", "content": words})
        self._messages += [answer, *after]
        return after


def words_as_ids(words: str) -> list[int]:
    """Token ids that stand for them."""
    return [
        3 + zlib.crc32(f"{i}{word}".encode("utf-8", "surrogatepass")) % 40_000 for i, word in enumerate(words.split())
    ]


def direct(seen: Seen, given: Given, kind: str) -> list[bytes]:
    """What the agent would have seen of a stream, or of a whole answer, with nothing in between."""
    named = replace(given, model="policy")
    if seen.step.stream:
        return wire.events_of(kind, seen.plan.path, named, seen.asked)
    return [wire.body_of(kind, seen.plan.path, named, seen.asked)]


def says_something(said: Scripted) -> bool:
    """Whether there is an answer to learn from."""
    return any(token.shown for token in tokens_of(said))


def message_of(plan: Plan, said: Scripted) -> Json:
    """The answer as it is captured, reasoning under one name."""
    if plan.path != wire.CHAT:
        return {"content": said.content, "reasoning": "", "calls": []}
    calls = [(call.id, call.name, call.arguments) for call in said.calls]
    return {"content": said.content, "reasoning": said.reasoning, "calls": calls}


def captured_message(answer: bytes) -> Json:
    """The same of a captured answer."""
    found = json.loads(answer)
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in found.get("tool_calls") or ()
    ]
    reasoning = found.get("reasoning") or found.get("reasoning_content") or ""
    return {"content": found.get("content") or "", "reasoning": reasoning, "calls": calls}
