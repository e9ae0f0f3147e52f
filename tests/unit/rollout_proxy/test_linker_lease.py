"""Who may link: one at a time, and nobody's turn is lost when that changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hintloop_contract.errors import DependencyError
from hintloop_contract.streams import CAPTURES, TURNS
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_rollout_proxy import linker_task
from hintloop_rollout_proxy.linker_task import LinkerTask
from hintloop_rollout_proxy.metrics import ProxyMetrics

from .test_linker_task import make_capture, make_config, released, turns_of


async def expire_lease(broker: MemoryBroker) -> None:
    """End the lease as its time would, whoever holds it."""
    assert await broker.client.delete(broker.keys.linker_lease) == 1


async def test_only_the_holder_of_the_lease_links(broker: Any) -> None:
    first = LinkerTask(broker, make_config(linker={"lease_ms": 600_000}), ProxyMetrics())
    second = LinkerTask(broker, make_config(), ProxyMetrics())
    assert await first._hold_lease()
    assert not await second._hold_lease()
    await broker.append(CAPTURES, make_capture("a", "q"))
    await broker.append(CAPTURES, make_capture("b", "q", "fine", "more", start_ms=2000, end_ms=2100))
    await expire_lease(broker)
    assert await second._hold_lease()
    # The first does not know yet that it lost the lease; its fence is old, so nothing that it writes counts.
    await first.step()
    assert (await broker.counts(TURNS)).length == 0
    assert await broker.turn_notes(since_ms=0, most=10) == []
    # What it read then is linked all the same, though the first never says that it gave it up.
    assert await turns_of(second, broker, 1) == ["a"]


async def test_who_lost_the_lease_hands_over_what_it_read(broker: Any) -> None:
    config = make_config(linker={"lease_ms": 600_000})
    first, second = (LinkerTask(broker, config, ProxyMetrics()) for _ in range(2))
    assert await first._hold_lease()
    await expire_lease(broker)
    assert await second._hold_lease()
    await broker.append(CAPTURES, make_capture("a", "q"))
    await first.step()
    await broker.append(CAPTURES, make_capture("b", "q", "fine", "more", start_ms=2000, end_ms=2100))
    await second.step()
    for task in (first, second):
        assert task._lease is not None
        task._lease.renew_at = 0.0
    assert not await first._hold_lease()
    assert await turns_of(second, broker, 1) == ["a"]


@pytest.mark.parametrize("noted_only", [False, True])
async def test_sessions_go_on_where_another_linker_takes_over(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, noted_only: bool
) -> None:
    """Also where the first one noted that a turn is settled, and died before it was."""
    config = make_config(linker={"lease_ms": 600_000}, training={"max_staleness_steps": 10})
    first, second = (LinkerTask(broker, config, ProxyMetrics()) for _ in range(2))
    now_ms = await broker.time_ms()
    told = ("q", "fine", "r", "fine", "s", "fine", "t")
    captures = [
        make_capture(f"t{i}", *told[: 2 * i + 1], start_ms=now_ms - 5000 + 1000 * i, end_ms=now_ms - 4900 + 1000 * i)
        for i in range(4)
    ]
    for capture in captures[:2]:
        await broker.append(CAPTURES, capture)
    turns = await released(first, broker, 1)
    commit = broker.commit

    async def die(*words: Any, **more: Any) -> bool:
        raise DependencyError("redis", "Connection closed by server.")

    if noted_only:
        monkeypatch.setattr(broker, "commit", die)
    await broker.append(CAPTURES, captures[2])
    if noted_only:
        with pytest.raises(DependencyError):
            await first.step()
        monkeypatch.setattr(broker, "commit", commit)
    else:
        await first.step()
        turns += await broker.read(TURNS, "test", 10, None)
    await expire_lease(broker)
    assert len(turns) == (1 if noted_only else 2)
    assert [turn.turn_id for turn in await broker.turn_notes(since_ms=0, most=10)] == ["t0", "t1"]
    await broker.append(CAPTURES, captures[3])
    turns += await released(second, broker, 3 - len(turns))
    assert [(turn.turn_id, turn.message.turn_index) for turn in turns] == [("t0", 0), ("t1", 1), ("t2", 2)]
    assert len({turn.message.session_id for turn in turns}) == 1


async def test_notes_of_settled_turns_are_bounded(broker: MemoryBroker) -> None:
    config = make_config(training={"max_staleness_steps": 10_000}, linker={"max_requests": 100})
    for number in range(300):
        await broker.append(CAPTURES, make_capture(f"a{number}", f"q{number}"))
        later = {"start_ms": 2000, "end_ms": 2100}
        await broker.append(CAPTURES, make_capture(f"b{number}", f"q{number}", "fine", "more", **later))
    task = LinkerTask(broker, config, ProxyMetrics())
    assert len(await turns_of(task, broker, 300)) == 300
    # Redis trims whole nodes of a stream: a hundred more may stay.
    assert 100 <= await broker.client.xlen(broker.keys.turn_notes) <= 200


async def test_what_was_given_out_and_never_arrived_is_linked_in_its_place(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis notes that it gave a capture out, and dies before the linker has it."""
    monkeypatch.setattr(linker_task, "CALM_S", 0.0)
    monkeypatch.setattr(linker_task, "RETRY_S", 0.0)
    # What is idle for half of the lease would be claimed; by then the captures behind it are turns.
    task = LinkerTask(broker, make_config(linker={"lease_ms": 600_000}), ProxyMetrics())
    captures = [
        make_capture("a", "q"),
        make_capture("b", "q", "fine", "more", start_ms=2000, end_ms=2100),
        make_capture("c", "q", "fine", "more", "fine", "most", start_ms=3000, end_ms=3100),
    ]
    read, stop = broker.read, asyncio.Event()

    async def read_and_lose_the_first(*words: Any) -> Any:
        entries = await read(*words)
        if captures:
            for capture in captures[1:]:
                await broker.append(CAPTURES, capture)
            captures.clear()
            raise DependencyError("redis", "Connection closed by server.")
        return entries

    await broker.append(CAPTURES, captures[0])
    monkeypatch.setattr(broker, "read", read_and_lose_the_first)
    running = asyncio.create_task(task.run(stop))
    turns: list[str] = []
    async with asyncio.timeout(30):
        while len(turns) < 2:
            turns += [entry.turn_id for entry in await read(TURNS, "test", 10, 50)]
    stop.set()
    await running
    assert turns == ["a", "b"]


async def test_a_lease_lasts_as_long_as_configured(broker: MemoryBroker) -> None:
    task = LinkerTask(broker, make_config(linker={"lease_ms": 600_000}), ProxyMetrics())
    assert await task._hold_lease()
    assert 500_000 < await broker.client.pttl(broker.keys.linker_lease) <= 600_000
