"""Requests that go on from an answer which the linker no longer knows: no other answer that reads alike is taken."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hintloop_contract.messages import Capture
from hintloop_contract.streams import CAPTURES, TURNS
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_rollout_proxy.linker_task import LinkerTask
from hintloop_rollout_proxy.linking import Decision, Drop, Link, Linker, LinkerOptions
from hintloop_rollout_proxy.metrics import ProxyMetrics

from tests.unit.rollout_proxy.test_linker import make_capture, make_linker, of_kind, said
from tests.unit.rollout_proxy.test_linker_task import make_capture as make_whole_capture
from tests.unit.rollout_proxy.test_linker_task import make_config

SHORT, LONG = "OK.", "The harbour of Lisbon was rebuilt after the great earthquake of 1755, stone by stone."
#: What stands before the common answer: nothing in common, and a common opening.
HISTORIES = [(["paint it"], ["sum it up"]), (["hi", "Hello!", "paint it"], ["hi", "Hello!", "sum it up"])]


def conversations(answer: str, first: list[str], second: list[str]) -> tuple[Capture, Capture]:
    """The second turn of a conversation, and a turn of another one with the same answer that it does not go on from."""
    other = make_capture("other", said(*second), answer, start_ms=2000)
    return other, make_capture("after", said(*first, answer, "No, in red."), start_ms=3000)


def decided_on(linker: Linker, *captures: Capture) -> list[Decision]:
    """Everything that is decided while these come in, and at the end of all deadlines."""
    return [*(decision for capture in captures for decision in linker.feed(capture)), *linker.flush()]


@pytest.mark.parametrize("answer", [SHORT, LONG])
@pytest.mark.parametrize(("first", "second"), HISTORIES)
def test_after_a_restart_nothing_is_linked_by_its_words_alone(answer: str, first: list[str], second: list[str]) -> None:
    linker = make_linker()
    linker.knows_nothing_before(2500)
    other, after = conversations(answer, first, second)
    decided = decided_on(linker, other, after)
    assert not of_kind(decided, Link)
    assert of_kind(decided, Drop)["other"].reason == "no_next_state"


@pytest.mark.parametrize("answer", [SHORT, LONG])
@pytest.mark.parametrize(("first", "second"), HISTORIES)
def test_nor_is_a_request_that_came_before_the_answer_was_read(
    answer: str, first: list[str], second: list[str]
) -> None:
    linker = make_linker()
    linker.knows_nothing_before(2500)
    other, after = conversations(answer, first, second)
    assert not of_kind(decided_on(linker, after, other), Link)


@pytest.mark.parametrize("answer", [SHORT, LONG])
@pytest.mark.parametrize(("first", "second"), HISTORIES)
def test_what_timed_out_is_not_mistaken_for_another(answer: str, first: list[str], second: list[str]) -> None:
    linker = make_linker(session_timeout_ms=5000, grace_ms=0)
    linker.feed(make_capture("gone", said(*first), answer, start_ms=1000))
    assert of_kind(linker.tick(6200), Drop)["gone"].reason == "no_next_state"
    linker.feed(make_capture("other", said(*second), answer, start_ms=6300))
    for name, start_ms in (("after", 7000), ("repeated", 7500)):
        decided = linker.feed(make_capture(name, said(*first, answer, "No, in red."), name, start_ms=start_ms))
        assert not of_kind(decided, Link)
        assert (linker.late_ms is not None) is (name == "after"), "told once"
    assert not of_kind(linker.flush(), Link)


def test_what_is_known_is_linked_after_a_restart() -> None:
    linker = make_linker()
    linker.knows_nothing_before(2500)
    decided = decided_on(
        linker,
        make_capture("a", said("paint it"), SHORT, start_ms=2000),
        make_capture("b", said("paint it", SHORT, "in red"), "done", start_ms=3000),
        make_capture("c", said("paint it", SHORT, "in red", "done", "thanks"), start_ms=4000),
    )
    links = of_kind(decided, Link)
    assert {name: json.loads(link.next_state)[0]["content"] for name, link in links.items()} == {
        "a": "in red",
        "b": "thanks",
    }


def test_words_are_trusted_again_when_nothing_forgotten_can_be_gone_on_from() -> None:
    timeout = LinkerOptions().session_timeout_ms
    linker: Linker = make_linker()
    linker.knows_nothing_before(2500)
    start_ms = 2500 + timeout
    whole = make_capture("a", said("hi", "Hello!", "paint it"), LONG, start_ms=start_ms)
    shortened = make_capture("b", said("paint it", LONG, "in red"), start_ms=start_ms + 1000)
    assert "a" in of_kind(decided_on(linker, whole, shortened), Link)


async def run_until_read(broker: MemoryBroker, config: Any) -> None:
    """A linker that works until it has taken everything, then goes away without a word."""
    task, stop = LinkerTask(broker, config, ProxyMetrics()), asyncio.Event()
    running = asyncio.create_task(task.run(stop))
    async with asyncio.timeout(60):
        while (await broker.counts(CAPTURES)).pending < (await broker.counts(CAPTURES)).length:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
    stop.set()
    await running


async def test_a_restarted_linker_gives_no_turn_the_words_of_another_conversation() -> None:
    broker, config = MemoryBroker(), make_config(training={"max_staleness_steps": 10})
    await broker.ensure_groups()
    now_ms = await broker.time_ms()

    async def came(turn_id: str, *texts: str, after_ms: int) -> None:
        start_ms = now_ms + after_ms
        await broker.append(CAPTURES, make_whole_capture(turn_id, *texts, start_ms=start_ms, end_ms=start_ms + 1))

    await came("a1", "hi", "Hello!", "paint it", after_ms=-3000)
    await came("a2", "hi", "Hello!", "paint it", "fine", "No, in red.", after_ms=-2000)
    await run_until_read(broker, config)
    (a1,) = await broker.read(TURNS, "test", 10, None)
    assert a1.turn_id == "a1", "it is settled, and gone from the captures"
    await came("b1", "hi", "Hello!", "sum it up", after_ms=-2500)
    await asyncio.sleep(config.linker.lease_ms / 1000)
    await run_until_read(broker, config)
    assert await broker.read(TURNS, "test", 10, None) == [], "a2 goes on from a1, which the linker no longer knows"
    await came("b2", "hi", "Hello!", "sum it up", "fine", "Shorter.", after_ms=0)
    await run_until_read(broker, config)
    (b1,) = await broker.read(TURNS, "test", 10, None)
    record = await broker.get_turn(b1.turn_id)
    assert record is not None and json.loads(record.next_state) == [{"role": "user", "content": "Shorter."}]
    await broker.close()
