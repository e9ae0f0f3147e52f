"""Events: what pages that listen are told, and how they go on."""

import asyncio
import json
import time
from contextlib import aclosing

import itsdangerous.timed
import pytest
from hintloop_console import events as module
from hintloop_console.events import Listener
from hintloop_contract.diagnosis.alarms import Alarm
from hintloop_contract.errors import DependencyError

from tests.unit.console.story import Story, drop


class Ear:
    """Listens as a browser does."""

    def __init__(self, site, since=None):
        self.stream = Listener(site.deps, since).events(site.stop)
        self.last = None

    async def hear(self, *kinds, number=1):
        """The next events of these kinds."""
        found = []
        async with asyncio.timeout(60):
            async for chunk in self.stream:
                fields = dict(line.split(": ", 1) for line in chunk.decode().splitlines() if line)
                self.last = fields.get("id", self.last)
                if fields.get("event") in kinds:
                    found.append((fields["event"], json.loads(fields["data"])))
                if len(found) == number:
                    break
        return found


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_S", 0.01)


async def test_a_page_hears_the_loop_at_once_and_then_what_changes(site):
    story = Story()
    site.tell(*story.whole("old"))
    await site.deps.view.take()
    ear = Ear(site)
    async with aclosing(ear.stream):
        [(_, loop)] = await ear.hear("loop")
        assert loop["funnel"]["captured"] == 0 and loop["away"] is None
        site.tell(*story.whole("a"), story.step(1))
        (_, turn), (_, step) = await ear.hear("turn", "step", number=2)
        assert (turn["turn_id"], turn["stage"], step["step"]) == ("a", "trained", 1)
        site.tell(story.entry("drop", drop("a", "gate_rejected", "train")))
        [(_, turn)] = await ear.hear("turn")
        assert turn["reason"] == "gate_rejected"
    assert site.deps.view.watchers == 0


async def test_a_page_that_comes_back_misses_nothing_and_hears_nothing_twice(site):
    story = Story()
    await site.deps.view.take()
    ear = Ear(site)
    async with aclosing(ear.stream):
        site.tell(*story.whole("before"))
        await ear.hear("loop")
        site.tell(*story.whole("a"))
        assert [row["turn_id"] for _, row in await ear.hear("turn")] == ["a"]
    site.tell(*story.whole("b"), story.step(1))
    again = Ear(site, int(ear.last))
    async with aclosing(again.stream):
        assert [kind for kind, _ in await again.hear("turn", "step", number=2)] == ["turn", "step"]
        site.tell(*story.whole("c"))
        assert [row["turn_id"] for _, row in await again.hear("turn")] == ["c"]


async def test_a_page_hears_nothing_more_when_its_sign_in_ends(make_site, monkeypatch):
    async with make_site(read_requires_password=True, session_hours=1) as site:
        cookie = site.deps.access.sign_in("a", "correct horse")
        sent = []

        async def receive():
            await asyncio.sleep(600)

        async def send(message):
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"cookie", f"hintloop_console={cookie}".encode())]
        scope = {"type": "http", "method": "GET", "path": "/api/v1/events", "query_string": b"", "headers": headers}
        listening = asyncio.create_task(site.client._transport.app(scope, receive, send))
        async with asyncio.timeout(60):
            while not site.deps.view.watchers:
                await asyncio.sleep(0.01)
        now = time.time()
        monkeypatch.setattr(itsdangerous.timed.time, "time", lambda: now + 3700)
        async with asyncio.timeout(60):
            await listening
        assert sent[0]["status"] == 200 and site.deps.view.watchers == 0


async def test_a_page_of_another_database_begins_with_this_one(site):
    ear = Ear(site, since=10**9)
    async with aclosing(ear.stream):
        await ear.hear("loop")
        site.tell(*Story().whole("a"))
        assert [row["turn_id"] for _, row in await ear.hear("turn")] == ["a"]


async def test_alarms_are_told_when_they_rise_and_when_they_end(site):
    alarm = Alarm(cause="no_hints", since_ms=1, seen="40 of 52", evidence={"n": 40})
    await site.broker.set_alarms("w", 5, [alarm], [], lease_ms=60_000)
    await site.deps.view.take()
    ear = Ear(site)
    async with aclosing(ear.stream):
        [(_, row)] = await ear.hear("alarm")
        assert row["cause"] == "no_hints" and row["until_ms"] is None and row["explanation"]["fix"]
        ended = Alarm(cause="no_hints", since_ms=1, seen="40 of 52", until_ms=9)
        await site.broker.set_alarms("w", 9, [], [ended], lease_ms=60_000)
        await site.deps.view.take()
        [(_, row)] = await ear.hear("alarm")
        assert row["until_ms"] == 9


async def test_a_redis_that_is_away_is_told(site, monkeypatch):
    async def away(*_, **__):
        raise DependencyError("redis", "gone")

    await site.deps.view.take()
    ear = Ear(site)
    async with aclosing(ear.stream):
        await ear.hear("loop")
        monkeypatch.setattr(site.broker, "time_ms", away)
        await site.deps.view.take()
        [(_, loop)] = await ear.hear("loop")
        assert loop["away"] == "gone"


async def test_a_quiet_loop_is_told_again_after_a_while(site, monkeypatch):
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    await site.deps.view.take()
    ear = Ear(site)
    async with aclosing(ear.stream):
        assert len(await ear.hear("loop", number=3)) == 3


async def test_the_end_of_the_console_ends_them(site):
    ear = Ear(site)
    async with aclosing(ear.stream):
        await ear.hear("loop")
        site.stop.set()
        async with asyncio.timeout(60):
            assert [chunk async for chunk in ear.stream] == []


async def test_more_pages_than_it_can_serve_are_refused(site, monkeypatch):
    monkeypatch.setattr(module, "MAX_LISTENERS", 0)
    answer = await site.get("/events")
    assert answer.status_code == 503 and "listen already" in answer.json()["error"]["message"]
