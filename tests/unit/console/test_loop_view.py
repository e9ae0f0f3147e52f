"""The loop at one look: holders, rates, and who is asked how often."""

import asyncio

from hintloop_console import loop_view
from hintloop_console.loop_view import LoopView, alarm_row
from hintloop_contract.diagnosis.alarms import Alarm
from hintloop_contract.messages import Capture, Drop
from hintloop_contract.streams import CAPTURES
from hintloop_contract.testing.memory import MemoryBroker


def capture(turn_id):
    return Capture(turn_id=turn_id, engine="vllm", engine_url="http://e", request=b"{}", start_ms=1, end_ms=2)


async def test_streams_say_who_holds_what():
    broker = MemoryBroker()
    await broker.ensure_groups()
    for turn_id in "abc":
        await broker.append(CAPTURES, capture(turn_id))
    await broker.read(CAPTURES, "linker-1", 2, 1)
    await broker.drop_many([Drop(turn_id="x", stage="link", reason="side")])
    look = await LoopView(broker).take()
    stream = look.loop["streams"]["captures"]
    assert (stream["length"], stream["pending"]) == (3, 2)
    assert [(holder["name"], holder["pending"]) for holder in stream["holders"]] == [("linker-1", 2)]
    assert look.loop["funnel"]["captured"] == 3 and look.loop["dropped"] == {"link:side": 1}
    assert look.loop["streams"]["drops"]["holders"] == []


async def test_rates_are_over_the_last_minute(monkeypatch):
    broker = MemoryBroker()
    view, now = LoopView(broker), [1_000_000]

    async def time_ms():
        return now[0]

    monkeypatch.setattr(broker, "time_ms", time_ms)
    rates = []
    for amount in (0, 10, 10, 0, 0, 0, 0):
        await broker.count("captured", amount)
        rates.append((await view.take()).loop["rates_per_minute"]["captured"])
        now[0] += 20_000
    assert rates == [0, 30, 30, 20, 10, 0, 0]


async def test_counts_that_begin_anew_are_no_negative_rate(monkeypatch):
    broker = MemoryBroker()
    view = LoopView(broker)
    await broker.count("captured", 10)
    await view.take()
    await broker.client.flushall()
    assert (await view.take()).loop["rates_per_minute"]["captured"] == 0


async def test_it_looks_often_only_while_somebody_listens(monkeypatch):
    monkeypatch.setattr(loop_view, "WATCHED_S", 0.01)
    monkeypatch.setattr(loop_view, "UNWATCHED_S", 60.0)
    view, stop, looks = LoopView(MemoryBroker()), asyncio.Event(), []

    async def take():
        looks.append(view.watchers)
        return view.look

    monkeypatch.setattr(view, "take", take)
    running = asyncio.create_task(view.run(stop))
    await asyncio.sleep(0.1)
    assert looks == [0]
    with view.watching():
        async with asyncio.timeout(60):
            while len(looks) <= 5:
                await asyncio.sleep(0.01)
    # One look may have been due already.
    await asyncio.sleep(0.2)
    before = len(looks)
    await asyncio.sleep(0.2)
    assert len(looks) <= before + 1
    stop.set()
    await asyncio.wait_for(running, 60)


def test_an_alarm_of_a_cause_that_is_not_known_here_has_no_explanation():
    assert alarm_row(Alarm(cause="from_the_future", since_ms=1, seen="it"))["explanation"] is None
