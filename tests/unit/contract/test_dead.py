"""Messages that were set aside: seen, sent again with their drop taken back, or forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hintloop_contract.broker import Entry
from hintloop_contract.errors import MessageError
from hintloop_contract.messages import Capture, Message
from hintloop_contract.streams import CAPTURES, DEAD, Stream
from hintloop_contract.testing.memory import MemoryBroker


def capture(turn_id: str) -> Capture:
    return Capture(turn_id=turn_id, engine="vllm", engine_url="e", request=b"{}", start_ms=1, end_ms=2)


CAPTURE = capture("t1")


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    made = MemoryBroker()
    await made.ensure_groups()
    yield made
    await made.close()


async def died(broker: MemoryBroker, stream: Stream, message: Message, error: str = "boom") -> Entry[Message]:
    await broker.append(stream, message, tenant="acme")
    (entry,) = await broker.read(stream, "c", 1, 1)
    assert await broker.fail(entry, stage="link", error=error, traceback="Traceback …", max_attempts=1)
    return entry


async def test_what_died_is_listed_and_comes_again_as_it_was(broker: MemoryBroker) -> None:
    await died(broker, CAPTURES, CAPTURE)
    (dead,) = await broker.dead_letters(10)
    assert (dead.letter.error, dead.letter.stage, dead.letter.stream, dead.tenant) == (
        "boom",
        "link",
        "captures",
        "acme",
    )
    assert abs(dead.died_ms - await broker.time_ms()) < 60_000
    assert (await broker.funnel()).drops["link", "dead"] == 1

    assert await broker.requeue_dead(dead)
    assert (await broker.counts(DEAD)).length == 0
    assert (await broker.funnel()).drops["link", "dead"] == 0
    (again,) = await broker.read(CAPTURES, "c", 1, 1)
    assert (again.message, again.turn_id, again.tenant) == (CAPTURE, "t1", "acme")
    # Somebody else was quicker: nothing is sent twice, and no drop is taken back twice.
    assert not await broker.requeue_dead(dead)
    assert (await broker.funnel()).drops["link", "dead"] == 0


async def test_a_turn_whose_record_is_gone_is_not_sent_again(broker: MemoryBroker) -> None:
    await died(broker, CAPTURES, CAPTURE)
    (dead,) = await broker.dead_letters(10)
    later = type(dead)(dead.entry_id, type(dead.letter)(**{**_fields(dead.letter), "stream": "turns"}), dead.tenant)
    with pytest.raises(MessageError, match=r"turn t1.*no longer kept.*purge"):
        await broker.requeue_dead(later)
    assert (await broker.counts(DEAD)).length == 1
    await broker.client.set(broker.keys.turn("t1"), b"record", ex=5)
    assert await broker.requeue_dead(later)
    assert await broker.client.ttl(broker.keys.turn("t1")) == -1


def _fields(letter: object) -> dict[str, object]:
    return {name: getattr(letter, name) for name in letter.__struct_fields__}  # type: ignore[attr-defined]


async def test_pages_and_purging(broker: MemoryBroker) -> None:
    for number in range(3):
        await died(broker, CAPTURES, capture(f"t{number}"), f"error {number}")
    first = await broker.dead_letters(2)
    rest = await broker.dead_letters(2, first[-1].entry_id)
    assert [entry.letter.turn_id for entry in first + rest] == ["t0", "t1", "t2"]
    assert await broker.dead_letter(rest[0].entry_id) == rest[0]
    assert await broker.purge_dead([first[0].entry_id, "1-1"]) == 1
    assert await broker.dead_letter(first[0].entry_id) is None
    assert await broker.purge_dead([]) == 0
