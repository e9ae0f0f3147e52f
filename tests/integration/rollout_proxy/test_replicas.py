"""Two proxies behind a round-robin balancer on one Redis: the same sessions as with one, every turn once; and one of
them killed in the middle."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import ClientError, ClientSession, web
from hintloop_contract.streams import CAPTURES, TURNS

NUM_SESSIONS, NUM_TURNS = 6, 4
#: Another proxy takes the linking over after so long. A machine that stands still for that long makes it so, too.
QUICK_LEASE = ("--set", "linker.lease_ms=1000")
PATH = "/v1/chat/completions"


def answer_to(question: str) -> dict[str, Any]:
    """An answer of three tokens in vLLM's shape."""
    entry = {"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": f"answer to {question}"},
        "logprobs": {"content": [entry] * 3},
        "finish_reason": "stop",
        "token_ids": [7, 8, 2],
    }
    return {
        "id": f"chatcmpl-{question.replace(' ', '-')}",
        "object": "chat.completion",
        "model": "policy",
        "choices": [choice],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
        "prompt_token_ids": [1, 5],
    }


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
async def scripted_engine() -> AsyncIterator[str]:
    """An engine whose every answer names its question."""

    async def chat(request: web.Request) -> web.Response:
        return web.json_response(answer_to((await request.json())["messages"][-1]["content"]))

    async def score(request: web.Request) -> web.Response:
        asked = await request.json()
        if "prompt_logprobs" in asked:
            scores = [None, *({str(token): {"logprob": -2.0}} for token in asked["prompt"][1:])]
            return web.json_response({"choices": [{"prompt_logprobs": scores}]})
        sampled = {"prompt_token_ids": [5], "token_ids": [7, 8], "logprobs": {"token_logprobs": [-1.0, -1.0]}}
        return web.json_response({"choices": [sampled]})

    async def plain(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy"}]})

    app = web.Application()
    app.router.add_post(PATH, chat)
    app.router.add_post("/v1/completions", score)
    app.router.add_get("/{rest:.*}", plain)
    async with serving(app) as url:
        yield url


@asynccontextmanager
async def balancing(*urls: str) -> AsyncIterator[str]:
    """A round-robin balancer; a backend that cannot be reached is passed over."""
    turn = itertools.count()
    async with ClientSession() as session:

        async def forward(request: web.Request) -> web.Response:
            body = await request.read()
            first = next(turn)
            for offset in range(len(urls)):
                url = urls[(first + offset) % len(urls)]
                try:
                    async with session.post(url + request.path, data=body) as reply:
                        return web.Response(body=await reply.read(), status=reply.status)
                except ClientError:
                    continue
            return web.Response(status=502)

        app = web.Application()
        app.router.add_post("/{rest:.*}", forward)
        async with serving(app) as url:
            yield url


class Agent:
    """One conversation, in which each request carries all that was said."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[dict[str, str]] = []

    async def ask(self, client: httpx.AsyncClient, url: str) -> None:
        question = f"{self.name} {len(self.messages) // 2}"
        self.messages.append({"role": "user", "content": question})
        response = await client.post(url + PATH, json={"model": "policy", "messages": self.messages})
        assert response.status_code == 200, response.text
        message = response.json()["choices"][0]["message"]
        assert message["content"] == f"answer to {question}"
        self.messages.append({"role": "assistant", "content": message["content"]})


def make_agents() -> list[Agent]:
    """One for each session."""
    return [Agent(f"agent-{number}") for number in range(NUM_SESSIONS)]


async def ask_rounds(agents: list[Agent], client: httpx.AsyncClient, url: str, count: int) -> None:
    """All agents ask at once, ``count`` times."""
    for _ in range(count):
        await asyncio.gather(*(agent.ask(client, url) for agent in agents))


async def turns_of(broker: Any, count: int) -> list[Any]:
    """Linked turns, at least ``count``, and whatever else comes soon after."""
    entries: list[Any] = []
    async with asyncio.timeout(60):
        while len(entries) < count:
            entries += await broker.read(TURNS, "test", 100, 200)
    return entries + await broker.read(TURNS, "test", 100, 500)


async def check_turns(broker: Any) -> None:
    """Every answer was captured once, and all but a conversation's last are turns with their next state; a conversation
    is one session."""
    entries = await turns_of(broker, NUM_SESSIONS * (NUM_TURNS - 1))
    sessions: dict[str, list[str]] = {}
    for entry in sorted(entries, key=lambda entry: entry.message.turn_index):
        record = await broker.get_turn(entry.turn_id)
        question = json.loads(record.messages)[-1]["content"]
        name, number = question.rsplit(" ", 1)
        assert json.loads(record.next_state) == [{"role": "user", "content": f"{name} {int(number) + 1}"}]
        sessions.setdefault(entry.message.session_id, []).append(question)
    questions = sorted(sessions.values())
    assert questions == [[f"agent-{number} {turn}" for turn in range(NUM_TURNS - 1)] for number in range(NUM_SESSIONS)]
    assert await captured(broker) == NUM_SESSIONS * NUM_TURNS


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.05)


def left_in(folder: Path) -> list[Path]:
    """Segments that no proxy replayed."""
    return list(folder.glob("*/*.spool"))


async def captured(broker: Any) -> int:
    return int((await broker.funnel()).steps.get("captured", 0))


async def metric(client: httpx.AsyncClient, url: str, name: str) -> float:
    text = (await client.get(url + "/metrics")).text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name + " "))


async def start_two(start_proxy: Any, engine: str, redis_url: str, folder: Path) -> list[Any]:
    """Two proxies, ready, each with a spool of its own."""
    proxies = []
    for name in ("one", "two"):
        words = (*QUICK_LEASE, "--set", f"proxy.spool_dir={folder / name}")
        proxies.append(await asyncio.to_thread(start_proxy, "vllm", engine, redis_url, *words))
    for proxy in proxies:
        await asyncio.to_thread(proxy.wait, "/hintloop/ready")
    return proxies


async def test_sessions_and_turns_do_not_depend_on_which_replica_served(
    scripted_engine: str, redis_server: Any, start_proxy: Any, make_broker: Any, tmp_path: Path
) -> None:
    broker = make_broker(redis_server.url)
    proxies = await start_two(start_proxy, scripted_engine, redis_server.url, tmp_path)
    agents = make_agents()
    async with httpx.AsyncClient(timeout=60) as client, balancing(*(proxy.url for proxy in proxies)) as url:
        await ask_rounds(agents, client, url, NUM_TURNS)
        served = [
            await metric(client, proxy.url, 'hintloop_proxy_captured_total{status="complete"}') for proxy in proxies
        ]
    assert served == [NUM_SESSIONS * NUM_TURNS / 2] * 2
    await check_turns(broker)
    assert (await broker.funnel()).drops == {}
    for proxy in proxies:
        assert await asyncio.to_thread(proxy.stop) == 0


async def linking_one(client: httpx.AsyncClient, proxies: list[Any]) -> int:
    """Which of the proxies links."""
    linking: list[float] = []

    async def one_links() -> bool:
        linking[:] = [await metric(client, proxy.url, "hintloop_linker_active") for proxy in proxies]
        return sum(linking) == 1

    await until(one_links)
    return linking.index(1)


async def test_sessions_go_on_when_the_replica_that_links_stands_still(
    scripted_engine: str, redis_server: Any, start_proxy: Any, make_broker: Any, tmp_path: Path
) -> None:
    """The other one takes over in the middle of every conversation, and the first goes on where it stood."""
    broker = make_broker(redis_server.url)
    proxies = await start_two(start_proxy, scripted_engine, redis_server.url, tmp_path)
    agents = make_agents()
    async with httpx.AsyncClient(timeout=60) as client:
        first = await linking_one(client, proxies)
        await ask_rounds(agents, client, proxies[first].url, 2)

        async def all_linked() -> bool:
            return await metric(client, proxies[first].url, "hintloop_linker_linked_total") == NUM_SESSIONS

        await until(all_linked)
        proxies[first].process.send_signal(signal.SIGSTOP)
        try:
            other = proxies[1 - first]
            await ask_rounds(agents, client, other.url, 1)

            async def other_links() -> bool:
                return await metric(client, other.url, "hintloop_linker_active") == 1

            await until(other_links)
        finally:
            proxies[first].process.send_signal(signal.SIGCONT)
        await ask_rounds(agents, client, proxies[first].url, NUM_TURNS - 3)
    await check_turns(broker)
    assert (await broker.funnel()).drops == {}
    for proxy in proxies:
        assert await asyncio.to_thread(proxy.stop) == 0


async def test_a_killed_replica_loses_nothing_that_redis_has(
    scripted_engine: str, redis_server: Any, start_proxy: Any, make_broker: Any, tmp_path: Path
) -> None:
    """Whichever links is killed; the other serves on and takes the linking over."""
    broker = make_broker(redis_server.url)
    proxies = await start_two(start_proxy, scripted_engine, redis_server.url, tmp_path)
    agents = make_agents()
    async with httpx.AsyncClient(timeout=60) as client, balancing(*(proxy.url for proxy in proxies)) as url:
        await ask_rounds(agents, client, url, 2)

        async def all_captured() -> bool:
            return await captured(broker) == NUM_SESSIONS * 2

        await until(all_captured)
        linking = await linking_one(client, proxies)
        killed = proxies[linking].process
        killed.kill()
        killed.wait()
        await ask_rounds(agents, client, url, NUM_TURNS - 2)
    await check_turns(broker)
    assert await asyncio.to_thread(proxies[1 - linking].stop) == 0


async def test_a_killed_replica_loses_nothing_that_its_disk_has(
    scripted_engine: str, redis_server: Any, start_proxy: Any, make_broker: Any, tmp_path: Path
) -> None:
    """Redis dies, then a replica; both come back: every answer is captured once."""
    broker = make_broker(redis_server.url)
    proxies = await start_two(start_proxy, scripted_engine, redis_server.url, tmp_path)
    agents = make_agents()
    async with httpx.AsyncClient(timeout=60) as client, balancing(*(proxy.url for proxy in proxies)) as url:
        await ask_rounds(agents, client, url, 1)

        async def all_captured() -> bool:
            return await captured(broker) == NUM_SESSIONS

        await until(all_captured)
        redis_server.kill()
        await ask_rounds(agents, client, url, NUM_TURNS - 2)
        spooled: list[float] = []

        async def all_spooled() -> bool:
            spooled[:] = [await metric(client, proxy.url, "hintloop_proxy_spooled_total") for proxy in proxies]
            return sum(spooled) == NUM_SESSIONS * (NUM_TURNS - 2)

        await until(all_spooled)
        assert all(spooled)
        proxies[0].process.kill()
        proxies[0].process.wait()
        await ask_rounds(agents, client, url, 1)
        words = (*QUICK_LEASE, "--set", f"proxy.spool_dir={tmp_path / 'one'}")
        again = await asyncio.to_thread(start_proxy, "vllm", scripted_engine, redis_server.url, *words)
        redis_server.start()

    async def everything_captured() -> bool:
        return await captured(broker) == NUM_SESSIONS * NUM_TURNS

    await until(everything_captured)
    fields = [fields for _, fields in await broker.client.xrange(broker.keys.stream(CAPTURES))]
    assert max(Counter(entry[b"turn_id"] for entry in fields).values(), default=1) == 1
    await check_turns(broker)
    for proxy in (proxies[1], again):
        assert await asyncio.to_thread(proxy.stop) == 0
    assert not left_in(tmp_path)
