"""Hundreds of turns by every API on the real engines: what is captured is, exactly, what the engine wrote.

Between proxy and engine stands a pass-through that keeps the engine's bytes; they are read here in a plain way.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from hintloop_contract.messages import Capture, DropReason
from hintloop_contract.tensors import unpack

from .series import SeeingBroker, all_captures, linking, outcomes

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

EXCHANGE = "x-exchange"
CONCURRENT = 8
NUM_CONVERSATIONS = 56
NUM_TURNS = 5
MAX_TOKENS = 6
WORDS = ("Shorter, please.", "In French: été, naïve 🙂", "Why?", "And of Spain?", "Count to three.")
Json = dict[str, Any]


class Recorder:
    """Passes everything on to an engine and keeps its answers by the exchange that a request names."""

    def __init__(self, engine_url: str) -> None:
        """Before the engine at ``engine_url``."""
        self.engine_url = engine_url
        self.url = ""
        self.answers: dict[str, list[bytes]] = {}
        self._session: aiohttp.ClientSession | None = None

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        kept = {
            name: value for name, value in request.headers.items() if name.lower() not in ("host", "content-length")
        }
        asked = self._session.request(
            request.method, self.engine_url + request.path_qs, headers=kept, data=await request.read()
        )
        async with asked as answer:
            headers = {name: value for name, value in answer.headers.items() if name.lower() == "content-type"}
            response = web.StreamResponse(status=answer.status, headers=headers)
            await response.prepare(request)
            data = b""
            async for block in answer.content.iter_any():
                data += block
                await response.write(block)
            if request.headers.get(EXCHANGE):
                self.answers.setdefault(request.headers[EXCHANGE], []).append(data)
            await response.write_eof()
            return response

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Recorder]:
        """On a free port."""
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_route("*", "/{path:.*}", self.pass_on)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as self._session:
            yield self
        await runner.cleanup()


@dataclass
class Written:
    """What an engine wrote of one choice."""

    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


def documents(data: bytes) -> list[Any]:
    """The JSON of a body, or of each event of a stream."""
    if not data.startswith(b"data: "):
        return [json.loads(data)]
    events = [event[6:] for event in data.decode().split("\n\n") if event.startswith("data: ")]
    return [json.loads(event) for event in events if event != "[DONE]"]


def written_in(data: bytes) -> Written:
    """The first choice's tokens, in whichever of the recorded shapes."""
    found = Written()
    for document in documents(data):
        if "meta_info" in document:
            outputs = document["meta_info"]["output_token_logprobs"]
            found = Written(document["prompt_token_ids"], document["output_ids"], [entry[0] for entry in outputs])
            continue
        found.prompt_ids = found.prompt_ids or document.get("prompt_token_ids") or []
        late = document.get("sglext") or {}
        found.prompt_ids = late.get("input_ids", found.prompt_ids)
        found.ids = late.get("output_ids", [found.ids])[0]
        for choice in document["choices"]:
            found.prompt_ids = found.prompt_ids or choice.get("prompt_token_ids") or []
            found.ids += choice.get("token_ids") or choice.get("response_token_ids") or []
            logprobs = choice.get("logprobs") or {}
            found.logprobs += [entry["logprob"] for entry in logprobs.get("content") or []]
            found.logprobs += logprobs.get("token_logprobs") or []
    return found


# How an agent talks by each API: the request, and the conversation after its answer.


def ask_chat(history: list[Any]) -> Json:
    return {"model": "policy", "messages": history, "max_tokens": MAX_TOKENS}


def hear_chat(history: list[Any], found: list[Any], words: str) -> list[Any]:
    if "message" in found[0]["choices"][0]:
        text = found[0]["choices"][0]["message"]["content"]
    else:
        text = "".join(c["delta"].get("content") or "" for one in found for c in one["choices"])
    return [*history, {"role": "assistant", "content": text}, {"role": "user", "content": words}]


def ask_responses(history: list[Any]) -> Json:
    return {"model": "policy", "input": history, "max_output_tokens": MAX_TOKENS}


def hear_responses(history: list[Any], found: list[Any], words: str) -> list[Any]:
    answer = found[-1].get("response", found[-1])
    return [*history, *answer["output"], {"role": "user", "content": words}]


def ask_messages(history: list[Any]) -> Json:
    return {"model": "policy", "messages": history, "max_tokens": MAX_TOKENS}


def hear_messages(history: list[Any], found: list[Any], words: str) -> list[Any]:
    if "content" in found[0]:
        blocks = found[0]["content"]
    else:
        texts = [one["delta"]["text"] for one in found if one["type"] == "content_block_delta"]
        blocks = [{"type": "text", "text": "".join(texts)}]
    said = [{"role": "assistant", "content": blocks}] if blocks else []
    return [*history, *said, {"role": "user", "content": words}]


def ask_completion(history: list[Any]) -> Json:
    return {"model": "policy", "prompt": text_of(history), "max_tokens": MAX_TOKENS}


def hear_completion(history: list[Any], found: list[Any], words: str) -> list[Any]:
    text = "".join(choice["text"] for one in found for choice in one["choices"])
    return [*history, {"role": "assistant", "content": text}, {"role": "user", "content": f"\n{words}\n"}]


def ask_generate(history: list[Any]) -> Json:
    return {"text": text_of(history), "sampling_params": {"max_new_tokens": MAX_TOKENS, "temperature": 0.8}}


def hear_generate(history: list[Any], found: list[Any], words: str) -> list[Any]:
    text = found[-1]["text"]
    return [*history, {"role": "assistant", "content": text}, {"role": "user", "content": f"\n{words}\n"}]


def text_of(history: list[Any]) -> str:
    return "".join(message["content"] for message in history)


Ask = Callable[[list[Any]], Json]
Hear = Callable[[list[Any], list[Any], str], list[Any]]
APIS: dict[str, tuple[Ask, Hear]] = {
    "/v1/chat/completions": (ask_chat, hear_chat),
    "/v1/responses": (ask_responses, hear_responses),
    "/v1/messages": (ask_messages, hear_messages),
    "/v1/completions": (ask_completion, hear_completion),
    "/generate": (ask_generate, hear_generate),
}


@dataclass(frozen=True)
class Turn:
    """One exchange of a conversation; ``followed`` unless it was the last."""

    name: str
    path: str
    stream: bool
    response_id: str
    followed: bool


def response_id_of(found: list[Any]) -> str:
    """The id that the agent saw."""
    first = found[0]
    holder = first.get("meta_info") or first.get("response") or first.get("message") or first
    return str(holder["id"])


def seen_documents(data: bytes) -> list[Any]:
    """Like :func:`documents`, of any API."""
    text = data.decode()
    if text.startswith("{"):
        return [json.loads(text)]
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def converse(url: str, session: aiohttp.ClientSession, path: str, number: int) -> list[Turn]:
    """A conversation of ``NUM_TURNS`` exchanges, every other as a stream."""
    ask, hear = APIS[path]
    history: list[Any] = [{"role": "user", "content": f"({number}) What is the capital of France?"}]
    turns = []
    for place in range(NUM_TURNS):
        stream, name = (number + place) % 2 == 0, f"{number}-{place}"
        body = ask(history) | ({"stream": True} if stream else {})
        if path != "/generate":
            body |= {"temperature": (0.0, 0.7, 1.0)[number % 3]}
        async with session.post(url + path, json=body, headers={EXCHANGE: name}) as response:
            data = await response.read()
            assert response.status == 200, (path, data[:500])
        found = seen_documents(data)
        turns.append(Turn(name, path, stream, response_id_of(found), place < NUM_TURNS - 1))
        history = hear(history, found, WORDS[place])
    return turns


@pytest.fixture(params=["vllm", "sglang"])
def policy(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"{request.param}_policy")


async def test_ids_are_the_engines(policy: Any, redis_server: Any, start_proxy: Any) -> None:
    kind = policy.kind
    paths = [path for path in APIS if kind == "sglang" or path != "/generate"]
    broker = SeeingBroker(redis_server.url, "test")
    await broker.ensure_groups()
    begun = time.monotonic()
    async with Recorder(policy.base_url).serving() as recorder, linking(broker):
        proxy = await asyncio.to_thread(start_proxy, kind, recorder.url, redis_server.url, "--no-linker")
        await asyncio.to_thread(proxy.wait, "/hintloop/ready")
        turns = await converse_all(proxy.url, paths)
        made = await all_captures(broker, proxy.url)
    linked, dropped = await outcomes(broker)
    problems = [p for turn in turns for p in check(turn, recorder, broker.captures, linked, dropped)]
    print(f"{kind}: {len(turns)} turns, {len(linked)} linked, {time.monotonic() - begun:.0f} s")
    assert not problems, problems[:5]
    assert made == len(turns) == len(linked) + len(dropped) == NUM_CONVERSATIONS * NUM_TURNS
    assert len(linked) >= 0.75 * NUM_CONVERSATIONS * (NUM_TURNS - 1)
    await broker.close()


async def converse_all(url: str, paths: list[str]) -> list[Turn]:
    """All conversations, so many at once."""
    left = [(number, path) for number, path in zip(range(NUM_CONVERSATIONS), itertools.cycle(paths), strict=False)]
    turns: list[Turn] = []

    async def work(session: aiohttp.ClientSession) -> None:
        while left:
            number, path = left.pop()
            turns.extend(await converse(url, session, path, number))

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
        async with asyncio.TaskGroup() as workers:
            for _ in range(CONCURRENT):
                workers.create_task(work(session))
    return turns


def check(
    turn: Turn, recorder: Recorder, captures: dict[str, Capture], linked: dict[str, Any], dropped: dict[str, Any]
) -> list[str]:
    """What is wrong with the account of one exchange."""
    of_turn = [capture for capture in captures.values() if capture.response_id == turn.response_id]
    if len(of_turn) != 1 or len(recorder.answers.get(turn.name, ())) != 1:
        return [f"{turn}: {len(of_turn)} captures, {len(recorder.answers.get(turn.name, ()))} answers"]
    (capture,), (data,) = of_turn, recorder.answers[turn.name]
    written = written_in(data)
    for name, values in (("prompt_ids", written.prompt_ids), ("response_ids", written.ids)):
        packed = getattr(capture, name)
        if packed is None or unpack(packed).tolist() != values:
            return [f"{turn}: other {name}; {capture.problem} {capture.problem_detail}\n{data[-2000:]!r}"]
    if capture.logprobs is None or not np.array_equal(unpack(capture.logprobs), np.array(written.logprobs, np.float32)):
        return [f"{turn}: other log-probabilities"]
    empty = len(written.ids) == 1 and capture.problem == DropReason.EMPTY
    if capture.problem is not None and not empty:
        return [f"{turn}: {capture.problem} {capture.problem_detail}"]
    if turn.followed and not empty and capture.turn_id not in linked:
        return [f"{turn}: not linked: {dropped.get(capture.turn_id)}"]
    return []
