"""What hops leave behind for people, on a real Redis and on the in-memory one."""

import pytest
from hintloop_contract.broker import Entry
from hintloop_contract.history import GateDecision, HistoryBounds, StepFigures, Trained, VersionNote
from hintloop_contract.messages import Capture, Drop, JudgedTurn, Judgement, LinkedTurn, Sampling, TurnRecord
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import CAPTURES, JUDGED, TURNS
from hintloop_contract.tensors import pack, unpack
from hintloop_contract.testing.memory import MemoryBroker

ROOMY = HistoryBounds(max_entries=1000, max_bytes=1_000_000)


@pytest.fixture(params=["memory", "redis"])
async def make_broker(request):
    opened = []

    async def make(bounds: HistoryBounds | None) -> RedisBroker:
        if request.param == "memory":
            made: RedisBroker = MemoryBroker(history=bounds)
        else:
            made = RedisBroker(connect(request.getfixturevalue("redis_server").url), "test", history=bounds)
        await made.ensure_groups()
        opened.append(made)
        return made

    yield make
    for broker in opened:
        await broker.close()


def capture(turn_id: str) -> Capture:
    return Capture(turn_id=turn_id, engine="vllm", engine_url="http://e", request=b"{}", start_ms=1, end_ms=2)


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


def record(turn_id: str) -> TurnRecord:
    ids, logprobs = pack([1], "int32"), pack([-1.0], "float32")
    messages = b'[{"role":"user","content":"' + b"a" * 400 + b'"}]'
    return TurnRecord(
        turn_id=turn_id, messages=messages, answer=b"{}", prompt_ids=ids, response_ids=ids, logprobs=logprobs
    )


async def linked(broker: RedisBroker, turn_id: str) -> None:
    """One turn from capture to `turns`."""
    await broker.append(CAPTURES, capture(turn_id), tenant="acme")
    [entry] = await broker.read(CAPTURES, "linker-1", 1, 10)
    assert await broker.commit(entry, TURNS, turn(turn_id), record=record(turn_id))


async def of_turns(broker: RedisBroker) -> Entry:
    [entry] = await broker.read(TURNS, "judge-1", 1, 10)
    return entry


async def test_every_hop_is_noted_in_order_with_what_it_wrote(make_broker):
    broker = await make_broker(ROOMY)
    await linked(broker, "a")
    judged = JudgedTurn(turn=turn("a"), judgement=Judgement(score=-1, hint="Shorter, please.", backend="rules"))
    await broker.commit(await of_turns(broker), JUDGED, judged)
    await linked(broker, "b")
    dropped = Drop(turn_id="b", stage="judge", reason="no_hint", tenant="acme")
    await broker.drop(await of_turns(broker), dropped)

    entries = await broker.history()
    assert [(e.kind, e.turn_id, e.tenant) for e in entries] == [
        ("turn", "a", "acme"),
        ("judged", "a", "acme"),
        ("turn", "b", "acme"),
        ("drop", "b", "acme"),
    ]
    assert entries[0].message == turn("a") and entries[0].record == record("a")
    assert entries[1].message == judged and entries[1].record is None
    assert entries[3].message == dropped
    assert await broker.history(after=entries[2].entry_id) == entries[3:]
    assert abs(entries[0].time_ms - await broker.time_ms()) < 10_000


async def test_a_hop_that_another_finished_is_noted_once(make_broker):
    broker = await make_broker(ROOMY)
    await broker.append(CAPTURES, capture("a"))
    [entry] = await broker.read(CAPTURES, "linker-1", 1, 10)
    assert await broker.commit(entry, TURNS, turn("a"), record=record("a"))
    assert not await broker.commit(entry, TURNS, turn("a"), record=record("a"))
    assert not await broker.drop(entry, Drop(turn_id="a", stage="link", reason="aborted"))
    assert len(await broker.history()) == 1


async def test_captures_are_not_noted(make_broker):
    broker = await make_broker(ROOMY)
    await broker.append(CAPTURES, capture("a"))
    assert await broker.history() == []
    assert (await broker.history_state()).length == 0


async def test_a_message_that_died_is_noted_as_its_drop(make_broker):
    broker = await make_broker(ROOMY)
    await linked(broker, "a")
    assert await broker.fail(await of_turns(broker), stage="judge", error="broke", traceback="", max_attempts=1)
    last = (await broker.history())[-1]
    assert last.kind == "drop"
    assert (last.message.stage, last.message.reason, last.message.detail) == ("judge", "dead", "broke")


async def test_drops_without_a_message_are_noted(make_broker):
    broker = await make_broker(ROOMY)
    drop = Drop(turn_id="side", stage="capture", reason="side")
    await broker.drop_many([drop, drop])
    assert [entry.message for entry in await broker.history()] == [drop]


async def test_notes_of_the_trainer_come_back_as_they_were(make_broker):
    broker = await make_broker(ROOMY)
    notes = [
        Trained(turn_id="a", step=1, version=2, advantages=pack([0.5, -0.25], "float32")),
        StepFigures(step=1, version=2, figures={"loss": 0.5}),
        GateDecision(version=2, step=1, outcome="held", reasons=("answers are 3 times as long",)),
        VersionNote(version=2, step=1, parent=1),
    ]
    await broker.remember(notes * 20)
    entries = await broker.history(count=1000)
    assert [entry.message for entry in entries] == notes * 20
    assert [entry.kind for entry in entries[:4]] == ["trained", "step", "gate", "version"]
    assert entries[0].turn_id == "a" and unpack(entries[0].message.advantages).tolist() == [0.5, -0.25]


async def test_off_writes_nothing(make_broker):
    broker = await make_broker(None)
    await linked(broker, "a")
    await broker.drop(await of_turns(broker), Drop(turn_id="a", stage="judge", reason="no_hint"))
    await broker.remember([StepFigures(step=1, figures={})])
    assert await broker.client.exists(broker.keys.history, broker.keys.history_bytes) == 0


async def test_entries_are_bounded(make_broker):
    broker = await make_broker(HistoryBounds(max_entries=3, max_bytes=1_000_000))
    await broker.remember([StepFigures(step=step, figures={}) for step in range(10)])
    assert [entry.message.step for entry in await broker.history()] == [7, 8, 9]


async def test_bytes_are_bounded_and_counted(make_broker):
    broker = await make_broker(HistoryBounds(max_entries=1000, max_bytes=3000))
    for number in range(12):
        await linked(broker, f"t{number}")
    state = await broker.history_state()
    entries = await broker.client.xrange(broker.keys.history)
    weight = sum(len(value) for _, fields in entries for value in fields.values())
    assert state.held_bytes == weight <= 3000
    assert 2 <= state.length < 12
    assert (await broker.history())[-1].turn_id == "t11"


async def test_an_entry_above_the_whole_bound_is_left_out(make_broker):
    broker = await make_broker(HistoryBounds(max_entries=1000, max_bytes=300))
    await broker.remember([StepFigures(step=1, figures={})])
    await linked(broker, "large")
    assert [entry.kind for entry in await broker.history()] == ["step"]


async def test_bounds_that_were_lowered_take_effect_little_by_little(make_broker):
    broker = await make_broker(ROOMY)
    await broker.remember([StepFigures(step=step, figures={}) for step in range(100)])
    broker._bounds = HistoryBounds(max_entries=5, max_bytes=1_000_000)
    await broker.remember([StepFigures(step=100, figures={})])
    assert (await broker.history_state()).length == 85
    await broker.remember([StepFigures(step=step, figures={}) for step in range(101, 110)])
    assert [entry.message.step for entry in await broker.history()] == [105, 106, 107, 108, 109]


@pytest.mark.parametrize("rest", [0, 1])
async def test_what_an_operator_took_out_counts_no_more(make_broker, rest):
    broker = await make_broker(HistoryBounds(max_entries=1000, max_bytes=3000))
    for number in range(12):
        await linked(broker, f"t{number}")
    await broker.client.xtrim(broker.keys.history, maxlen=rest, approximate=False)
    broker._bounds = HistoryBounds(max_entries=1000, max_bytes=2500)
    for number in range(12, 16):
        await linked(broker, f"t{number}")
    entries = await broker.client.xrange(broker.keys.history)
    weight = sum(len(value) for _, fields in entries for value in fields.values())
    assert (await broker.history_state()).held_bytes == weight
    assert [entry.turn_id for entry in await broker.history()] == ["t14", "t15"]


async def test_what_cannot_be_read_is_told_and_hides_nothing(make_broker):
    broker = await make_broker(ROOMY)
    for kind, version in (("turn", b"1"), ("newer", b"1"), ("step", b"99")):
        fields = {"kind": kind, "v": version, "turn_id": "x", "tenant": "default", "data": b"\xff"}
        await broker.client.xadd(broker.keys.history, fields)
    await broker.remember([StepFigures(step=1, figures={})])
    entries = await broker.history()
    assert [entry.message is None for entry in entries] == [True, True, True, False]
    assert "payload" in entries[0].problem and "newer" in entries[1].problem and "99" in entries[2].problem


async def test_waits_for_the_next_entry(make_broker):
    broker = await make_broker(ROOMY)
    assert await broker.history(block_ms=20) == []
    await broker.remember([VersionNote(version=1, step=0)])
    [entry] = await broker.history(block_ms=20)
    state = await broker.history_state()
    assert state.newest_id == entry.entry_id and state.length == 1
