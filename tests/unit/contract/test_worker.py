import asyncio
import contextlib

import fakeredis.commands_mixins.streams_mixin
import fakeredis.model._stream
import pytest
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Capture, LinkedTurn, Sampling
from hintloop_contract.streams import CAPTURES, DEAD, TURNS
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_contract.worker import Discard, Forward, StreamWorker, WorkerOptions


def turn(turn_id: str) -> LinkedTurn:
    return LinkedTurn(
        turn_id=turn_id,
        session_id="s",
        turn_index=0,
        engine="vllm",
        engine_url="http://e",
        behaviour_space="raw",
        sampling=Sampling(),
        version_oldest=1,
        version_newest=1,
        num_prompt_tokens=1,
        num_response_tokens=1,
        captured_ms=1,
        linked_ms=1,
    )


@pytest.fixture
async def broker():
    made = MemoryBroker()
    await made.ensure_groups()
    yield made
    await made.close()


async def feed(broker, *turn_ids: str) -> None:
    for turn_id in turn_ids:
        capture = Capture(turn_id=turn_id, engine="vllm", engine_url="e", request=b"{}", start_ms=1, end_ms=2)
        await broker.append(CAPTURES, capture)


def options(**more) -> WorkerOptions:
    return WorkerOptions(
        **{"service": "w", "stage": "link", "source": CAPTURES, "sink": TURNS, "block_ms": 20, "claim_idle_ms": 1000}
        | more
    )


@contextlib.asynccontextmanager
async def running(broker, handler, ready=None, **more):
    async def always() -> bool:
        return True

    stop = asyncio.Event()
    worker = StreamWorker(broker, options(**more), handler, ready or always)
    task = asyncio.create_task(worker.run(stop))
    try:
        yield worker
    finally:
        stop.set()
        # Far below the minute for which handlers here sleep.
        await asyncio.wait_for(task, 30)


async def until(condition, timeout_s: float = 30.0) -> None:
    async def poll():
        while not await condition():
            await asyncio.sleep(0.02)

    await asyncio.wait_for(poll(), timeout_s)


async def test_forwards_and_drops(broker):
    await feed(broker, "keep", "discard")

    async def handler(entry):
        return Forward(turn("keep"), ("hinted",)) if entry.turn_id == "keep" else Discard("no_hint", "none given")

    async def done():
        return (await broker.counts(CAPTURES)).length == 0

    async with running(broker, handler):
        await until(done)
    funnel = await broker.funnel()
    assert funnel.steps == {"captured": 2, "linked": 1, "hinted": 1}
    assert funnel.drops == {("link", "no_hint"): 1}


async def test_a_failing_message_dies_after_its_attempts_and_others_pass(broker):
    await feed(broker, "bad", "good")
    attempts = []

    async def handler(entry):
        if entry.turn_id == "bad":
            attempts.append(1)
            raise ValueError("cannot")
        return Forward(turn(entry.turn_id))

    async def dead():
        return (await broker.counts(DEAD)).length == 1

    async with running(broker, handler, claim_idle_ms=200, max_attempts=3):
        await until(dead)
    assert len(attempts) == 3
    funnel = await broker.funnel()
    assert funnel.steps["linked"] == 1
    assert funnel.drops == {("link", "dead"): 1}


async def test_an_absent_dependency_stops_reading_and_counts_nothing(broker):
    await feed(broker, "a", "b")
    back = False
    calls = 0

    async def handler(entry):
        nonlocal calls
        calls += 1
        if not back:
            raise DependencyError("prm-engine", "503")
        return Forward(turn(entry.turn_id))

    async def ready():
        return back

    async def paused():
        return worker.paused == "prm-engine"

    async def done():
        return (await broker.counts(TURNS)).length == 3

    async with running(broker, handler, ready, claim_idle_ms=200, max_attempts=1) as worker:
        await until(paused)
        await feed(broker, "c")
        await asyncio.sleep(0.5)
        assert calls <= 2
        back = True
        await until(done)
    assert (await broker.counts(DEAD)).length == 0
    assert (await broker.funnel()).drops == {}


async def test_slots_bound_what_is_worked_on(broker):
    await feed(broker, *(str(i) for i in range(9)))
    running_now, most = 0, 0

    async def handler(entry):
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await asyncio.sleep(0.01)
        running_now -= 1
        return Forward(turn(entry.turn_id))

    async def done():
        return (await broker.counts(TURNS)).length == 9

    async with running(broker, handler, slots=3):
        await until(done)
    assert most == 3


async def test_a_full_sink_stops_reading(broker):
    await feed(broker, "a", "b", "c")

    async def handler(entry):
        return Forward(turn(entry.turn_id))

    async def full():
        return (await broker.counts(TURNS)).length == 2

    async with running(broker, handler, slots=1, sink_bound=2):
        await until(full)
        await asyncio.sleep(0.3)
        assert await full()


async def test_long_work_is_renewed_so_nobody_else_takes_it(broker, monkeypatch):
    """Redis' own clock stands still unless it is moved on, so that a busy machine ages nothing."""
    now_ms, seen, renewals, may_end = [1_000_000], [], [], asyncio.Event()
    for module in (fakeredis.model._stream, fakeredis.commands_mixins.streams_mixin):
        monkeypatch.setattr(module, "current_time", lambda: now_ms[0])
    renew = broker.renew

    async def counted(stream, consumer, entry_ids):
        await renew(stream, consumer, entry_ids)
        renewals.extend(entry_ids)

    monkeypatch.setattr(broker, "renew", counted)
    await feed(broker, "a")

    async def handler(entry):
        seen.append(entry.turn_id)
        await may_end.wait()
        return Forward(turn(entry.turn_id))

    async def done():
        return (await broker.counts(TURNS)).length == 1

    async with running(broker, handler, claim_idle_ms=150):
        for _ in range(5):
            # One may have been under way when the clock was moved.
            renewed = len(renewals) + 2

            async def again(number=renewed):
                return len(renewals) >= number

            await until(again)
            assert await broker.claim(CAPTURES, "another", 5, 150) == []
            now_ms[0] += 100
            assert await broker.claim(CAPTURES, "another", 5, 150) == []
        may_end.set()
        await until(done)
    assert seen == ["a"]


async def test_shutdown_releases_what_is_not_done(broker):
    await feed(broker, "a")
    started = asyncio.Event()

    async def handler(entry):
        started.set()
        await asyncio.sleep(60)
        return Forward(turn(entry.turn_id))

    async with running(broker, handler, grace_s=0.05):
        await asyncio.wait_for(started.wait(), 30)
    assert [e.turn_id for e in await broker.claim(CAPTURES, "next", 5, 60_000)] == ["a"]


async def test_stop_is_heard_while_every_slot_is_busy(broker):
    await feed(broker, "a")
    started = asyncio.Event()

    async def handler(entry):
        started.set()
        await asyncio.sleep(60)
        return Forward(turn(entry.turn_id))

    async with running(broker, handler, slots=1, grace_s=0.05):
        await asyncio.wait_for(started.wait(), 30)
        await asyncio.sleep(0.1)
    assert [e.turn_id for e in await broker.claim(CAPTURES, "next", 5, 60_000)] == ["a"]
