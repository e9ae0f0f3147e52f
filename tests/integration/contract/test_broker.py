"""Every rule of the streams, on a real Redis and on the in-memory one that unit tests use."""

import asyncio

import pytest
from hintloop_contract import redis_connection
from hintloop_contract.broker import Appended, Entry, WeightsState
from hintloop_contract.codec import decode_fields, pack_message
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Capture, DeadLetter, Drop, LinkedTurn, Sampling, TurnNote, TurnRecord
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import CAPTURES, DEAD, DROPS, TURNS
from hintloop_contract.tensors import pack
from hintloop_contract.testing.memory import MemoryBroker


@pytest.fixture(params=["memory", "redis"])
async def broker(request):
    if request.param == "memory":
        made = MemoryBroker()
    else:
        server = request.getfixturevalue("redis_server")
        made = RedisBroker(connect(server.url), "test")
    await made.ensure_groups()
    yield made
    await made.close()


def capture(turn_id: str = "a", **more) -> Capture:
    return Capture(turn_id=turn_id, engine="vllm", engine_url="http://e", request=b"{}", start_ms=1, end_ms=2, **more)


def turn(turn_id: str = "a") -> LinkedTurn:
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


def record(turn_id: str = "a") -> TurnRecord:
    ids, logprobs = pack([1], "int32"), pack([-1.0], "float32")
    return TurnRecord(
        turn_id=turn_id, messages=b"[]", answer=b"{}", prompt_ids=ids, response_ids=ids, logprobs=logprobs
    )


def drop(turn_id: str = "a", reason: str = "aborted") -> Drop:
    return Drop(turn_id=turn_id, stage="link", reason=reason)


async def held(broker, turn_id: str = "a", consumer: str = "c1") -> Entry:
    assert await broker.append(CAPTURES, capture(turn_id))
    (entry,) = await broker.read(CAPTURES, consumer, 1, 50)
    return entry


async def test_append_is_guarded_by_turn_id(broker):
    assert await broker.append(CAPTURES, capture())
    assert not await broker.append(CAPTURES, capture())
    assert (await broker.counts(CAPTURES)).length == 1
    assert (await broker.funnel()).steps == {"captured": 1}


async def test_a_consumer_is_counted_before_its_first_message(broker):
    assert await broker.read(CAPTURES, "early", 10, 1) == []
    assert list(await broker.holders(CAPTURES)) == ["early"]
    await broker.client.delete(broker.keys.stream(CAPTURES))
    # A Redis that lost everything is no reason to fail, for those who were counted and for others.
    for name in ("early", "late"):
        assert await broker.read(CAPTURES, name, 10, 1) == []
    await broker.append(CAPTURES, capture())
    assert [entry.turn_id for entry in await broker.read(CAPTURES, "late", 10, 50)] == ["a"]


async def test_a_batch_is_appended_in_order_and_each_once(broker):
    batch = [pack_message(capture(name), tenant="t", traceparent="trace") for name in ("a", "b", "a", "c")]
    done, seen = Appended.DONE, Appended.SEEN
    assert await broker.append_many(CAPTURES, batch) == [done, done, seen, done]
    assert await broker.append_many(CAPTURES, batch) == [seen] * 4
    assert not await broker.append(CAPTURES, capture("b"))
    assert await broker.append_many(CAPTURES, []) == []
    entries = await broker.read(CAPTURES, "c", 10, 50)
    assert [entry.turn_id for entry in entries] == ["a", "b", "c"]
    assert {(entry.tenant, entry.traceparent) for entry in entries} == {("t", "trace")}
    assert entries[1].message == capture("b")
    assert (await broker.funnel()).steps == {"captured": 3}


async def test_a_batch_and_a_single_append_write_the_same_entry(broker):
    await broker.append(CAPTURES, capture("a"), tenant="t", traceparent="trace")
    await broker.append_many(CAPTURES, [pack_message(capture("a2"), tenant="t", traceparent="trace")])
    first, second = [fields for _, fields in await broker.client.xrange(broker.keys.stream(CAPTURES))]
    assert list(first) == list(second)
    differing = {name for name in first if first[name] != second[name]}
    assert differing == {b"turn_id", b"data"}


async def test_a_batch_stops_at_the_bound_and_what_was_appended_is_not_full(broker):
    await broker.append(CAPTURES, capture("first"))
    batch = [pack_message(capture(name)) for name in "abc"]
    assert await broker.append_many(CAPTURES, batch, bound=3) == [Appended.DONE, Appended.DONE, Appended.FULL]
    assert await broker.append_many(CAPTURES, batch, bound=3) == [Appended.SEEN, Appended.SEEN, Appended.FULL]
    assert (await broker.funnel()).steps == {"captured": 3}
    assert await broker.append_many(CAPTURES, batch, bound=4) == [Appended.SEEN, Appended.SEEN, Appended.DONE]


async def test_a_batch_is_appended_under_the_weights_it_names_or_not_at_all(broker):
    batch = [pack_message(capture(name)) for name in "ab"]
    none, first, second = WeightsState(), WeightsState(3, None), WeightsState(3, 4)
    assert await broker.append_many(CAPTURES, batch[:1], under=none) == [Appended.DONE]
    await broker.set_weights(first)
    assert await broker.append_many(CAPTURES, batch, under=none) is None
    assert await broker.append_many(CAPTURES, batch, under=second) is None
    await broker.set_weights(second)
    assert await broker.append_many(CAPTURES, batch, under=first) is None
    assert (await broker.counts(CAPTURES)).length == 1
    assert await broker.append_many(CAPTURES, batch, under=second) == [Appended.SEEN, Appended.DONE]
    assert await broker.append_many(CAPTURES, [], under=none) == []


async def test_drops_of_a_batch_are_guarded_too(broker):
    await broker.drop_many([drop("a"), drop("b"), drop("a")])
    assert (await broker.funnel()).drops == {("link", "aborted"): 2}
    assert (await broker.counts(DROPS)).length == 2


async def test_what_was_appended_before_the_group_existed_is_read():
    broker = MemoryBroker()
    await broker.append(CAPTURES, capture())
    await broker.ensure_groups()
    assert [e.turn_id for e in await broker.read(CAPTURES, "c", 5, 10)] == ["a"]


async def test_a_hop_is_committed_by_the_first_only(broker):
    entry = await held(broker)
    results = await asyncio.gather(*(broker.commit(entry, TURNS, turn(), record=record()) for _ in range(5)))
    assert sorted(results) == [False] * 4 + [True]
    assert (await broker.counts(CAPTURES)).length == 0
    assert (await broker.counts(TURNS)).length == 1
    assert (await broker.funnel()).steps == {"captured": 1, "linked": 1}
    assert await broker.get_turn("a") == record()


async def test_a_drop_after_a_commit_does_nothing(broker):
    entry = await held(broker)
    assert await broker.commit(entry, TURNS, turn(), record=record())
    assert not await broker.drop(entry, drop())
    assert (await broker.funnel()).drops == {}
    assert await broker.get_turn("a") is not None


async def test_a_drop_counts_under_its_stage_and_reason_and_frees_the_record(broker):
    entry = await held(broker)
    await broker.commit(entry, TURNS, turn(), record=record())
    (linked,) = await broker.read(TURNS, "j", 1, 50)
    assert await broker.drop(linked, Drop(turn_id="a", stage="judge", reason="no_hint", detail="why"))
    assert (await broker.funnel()).drops == {("judge", "no_hint"): 1}
    ((_, fields),) = await broker.client.xrange(broker.keys.stream(DROPS))
    assert decode_fields(fields, Drop).detail == "why"
    assert 0 < await broker.client.ttl(broker.keys.turn("a")) <= 3600


async def test_a_drop_without_input_is_guarded(broker):
    assert await broker.drop(None, drop("never-captured"))
    assert not await broker.drop(None, drop("never-captured"))
    assert (await broker.funnel()).drops == {("link", "aborted"): 1}


async def test_extra_counters_are_part_of_the_hop(broker):
    entry = await held(broker)
    await broker.commit(entry, TURNS, turn(), counters=("hinted",))
    assert (await broker.funnel()).steps["hinted"] == 1


async def test_an_old_fence_is_refused(broker):
    entry = await held(broker)
    first = await broker.acquire_lease("one", 600_000)
    assert await broker.acquire_lease("two", 600_000) is None
    assert await broker.acquire_lease("one", 600_000) == first
    await broker.client.delete(broker.keys.linker_lease)
    second = await broker.acquire_lease("two", 600_000)
    assert second > first
    assert not await broker.commit(entry, TURNS, turn(), fence=first)
    assert not await broker.drop(entry, drop(), fence=first)
    assert await broker.commit(entry, TURNS, turn(), fence=second)


def note(turn_id, **fields):
    values = {"tenant": "t", "credential": "c", "api": "chat_completions", "session_id": "s", "turn_index": 0}
    digests = {"frame": b"\x00", "request": b"\xff", "answer": b"", "tools": False}
    return TurnNote(turn_id=turn_id, segment=0, num_turns=1, end_ms=5, **(values | digests | fields))


async def test_notes_of_turns_are_kept_for_a_while(broker):
    assert await broker.turn_notes(since_ms=0, most=10) == []
    old = [note("a", ends=((3, 0, b"k", b"d"),), session=b"x", next="b"), note("b", after="a")]
    assert await broker.note_turns(old, keep_ms=60_000, most=10)
    assert await broker.turn_notes(since_ms=-5, most=10) == old
    await asyncio.sleep(0.01)
    now_ms = await broker.time_ms()
    assert await broker.note_turns([note("c")], keep_ms=60_000, most=10)
    assert await broker.turn_notes(since_ms=now_ms, most=10) == [note("c")]
    assert await broker.turn_notes(since_ms=0, most=2) == [note("b", after="a"), note("c")]
    many = [note(str(number)) for number in range(2500)]
    assert await broker.note_turns(many, keep_ms=60_000, most=100)
    assert 100 <= await broker.client.xlen(broker.keys.turn_notes) <= 200
    assert await broker.turn_notes(since_ms=0, most=100) == many[-100:]
    assert 50_000 < await broker.client.pttl(broker.keys.turn_notes) <= 60_000
    assert await broker.note_turns(many, keep_ms=60_000, most=10_000)
    await asyncio.sleep(0.03)
    assert await broker.note_turns([note("z")], keep_ms=20, most=10_000)
    assert await broker.client.xlen(broker.keys.turn_notes) <= 200


async def test_who_lost_the_lease_notes_nothing(broker):
    first = await broker.acquire_lease("one", 600_000)
    assert await broker.note_turns([note("a")], keep_ms=60_000, most=10, fence=first)
    await broker.client.delete(broker.keys.linker_lease)
    second = await broker.acquire_lease("two", 600_000)
    assert not await broker.note_turns([note("b")], keep_ms=60_000, most=10, fence=first)
    assert await broker.note_turns([note("c")], keep_ms=60_000, most=10, fence=second)
    assert await broker.turn_notes(since_ms=0, most=10) == [note("a"), note("c")]


async def test_a_note_that_cannot_be_read_hides_no_other(broker):
    await broker.note_turns([note("a")], keep_ms=60_000, most=10)
    await broker.client.xadd(broker.keys.turn_notes, {"data": b"\xc1"})
    await broker.client.xadd(broker.keys.turn_notes, {"other": b""})
    await broker.note_turns([note("b")], keep_ms=60_000, most=10)
    assert await broker.turn_notes(since_ms=0, most=10) == [note("a"), note("b")]


async def test_the_dead_ones_messages_are_claimed_and_renewed_ones_are_not(broker):
    await held(broker, "a", "dead")
    await held(broker, "b", "alive")
    for name in ("dead", "alive"):
        (entry,) = await broker.reread(CAPTURES, name, 10)
        # Nobody spoke for it for an hour.
        await broker.client.xclaim(
            broker.keys.stream(CAPTURES), CAPTURES.group, name, 0, [entry.entry_id], idle=3_600_000, justid=True
        )
    await broker.renew(CAPTURES, "alive", [entry.entry_id])
    claimed = await broker.claim(CAPTURES, "other", 10, 1_800_000)
    assert [entry.turn_id for entry in claimed] == ["a"]


async def test_a_released_message_is_claimed_at_once(broker):
    entry = await held(broker)
    assert await broker.claim(CAPTURES, "other", 10, 60_000) == []
    await broker.release(entry)
    assert [e.turn_id for e in await broker.claim(CAPTURES, "other", 10, 60_000)] == ["a"]


async def test_reread_gives_what_is_held_in_order(broker):
    for turn_id in "abc":
        await held(broker, turn_id)
    first, second, third = await broker.reread(CAPTURES, "c1", 10)
    assert [first.turn_id, second.turn_id, third.turn_id] == list("abc")
    assert [e.turn_id for e in await broker.reread(CAPTURES, "c1", 10, after=second.entry_id)] == ["c"]


async def test_a_message_dies_at_its_last_attempt_and_the_funnel_closes(broker):
    entry = await held(broker)
    outcomes = [
        await broker.fail(entry, stage="link", error="ValueError: x", traceback="tb", max_attempts=3) for _ in range(3)
    ]
    assert outcomes == [False, False, True]
    assert (await broker.counts(CAPTURES)).length == 0
    assert (await broker.funnel()).drops == {("link", "dead"): 1}
    ((_, fields),) = await broker.client.xrange(broker.keys.stream(DEAD))
    letter = decode_fields(fields, DeadLetter)
    assert (letter.stream, letter.turn_id, letter.error, letter.traceback) == ("captures", "a", "ValueError: x", "tb")


async def test_an_undecodable_message_dies_at_once_and_holds_up_nobody(broker):
    await broker.append(CAPTURES, capture("bad"))
    ((entry_id, fields),) = await broker.client.xrange(broker.keys.stream(CAPTURES))
    await broker.client.xdel(broker.keys.stream(CAPTURES), entry_id)
    await broker.client.xadd(broker.keys.stream(CAPTURES), {**fields, b"data": b"\xc1"})
    await broker.append(CAPTURES, capture("good"))
    assert [e.turn_id for e in await broker.read(CAPTURES, "c", 10, 50)] == ["good"]
    assert (await broker.funnel()).drops == {("linker", "dead"): 1}


async def test_finish_counts_what_was_held_and_frees_records(broker):
    entries = [await held(broker, f"t{i}") for i in range(205)]
    assert await broker.finish(entries) == 205
    assert await broker.finish(entries) == 0
    assert (await broker.counts(CAPTURES)).length == 0


async def test_untrained_counts_what_waits_less_what_only_waits_for_a_checkpoint(broker):
    for turn_id in "abc":
        await broker.commit(await held(broker, turn_id), TURNS, turn(turn_id))
    assert await broker.untrained() == 3
    await broker.set_trained_pending(2)
    assert await broker.untrained() == 1


async def test_versions_rise_and_weights_are_remembered(broker):
    assert [await broker.next_version() for _ in range(3)] == [1, 2, 3]
    assert await broker.weights() == WeightsState()
    await broker.set_weights(WeightsState(current=2, updating=3))
    assert await broker.weights() == WeightsState(current=2, updating=3)
    await broker.set_weights(WeightsState(current=3))
    assert await broker.weights() == WeightsState(current=3)


async def test_requests_in_flight(broker):
    assert await broker.inflight_oldest(0) is None
    await broker.inflight_add("old", 1_000)
    await broker.inflight_add("new", 2_000)
    assert await broker.inflight_oldest(0) == 1_000
    assert await broker.inflight_oldest(1_500) == 2_000
    await broker.inflight_remove("new")
    assert await broker.inflight_oldest(1_500) is None
    await broker.inflight_update({"newer": 3_000, "newest": 4_000}, ["old"])
    assert await broker.inflight_oldest(0) == 3_000
    await broker.inflight_update({}, ["newer", "newest"])
    assert await broker.inflight_oldest(0) is None


async def test_only_idle_consumers_with_nothing_pending_are_removed(broker):
    await held(broker, "a", "holder")
    done = await held(broker, "b", "idler")
    await broker.commit(done, TURNS, turn("b"))
    await asyncio.sleep(0.05)
    assert await broker.remove_idle_consumers(CAPTURES, 10) == 1
    left = await broker.client.xinfo_consumers(broker.keys.stream(CAPTURES), CAPTURES.group)
    assert [consumer["name"] for consumer in left] == [b"holder"]


async def test_kept_values_are_bounded_and_end_by_themselves(broker):
    async def keep(name: str, ttl_s: int = 60) -> None:
        await broker.keep("votes", name, name.encode(), ttl_s=ttl_s, max_entries=2)

    for name in ("a", "b", "a", "c"):
        await keep(name)
    assert [await broker.kept("votes", name) for name in "abc"] == [b"a", None, b"c"]
    assert await broker.kept("other", "a") is None
    await keep("d", ttl_s=1)
    assert 0 < await broker.client.pttl(broker.keys.kept("votes", "d")) <= 1000
    assert await broker.client.zcard(broker.keys.kept_index("votes")) == 2


async def test_all_keys_share_one_slot(broker):
    await broker.commit(await held(broker), TURNS, turn(), record=record())
    assert all(key.startswith(b"hl:{test}:") for key in await broker.client.keys("*"))


async def test_an_absent_redis_is_a_dependency_error_and_nothing_is_lost(redis_server):
    broker = RedisBroker(connect(redis_server.url), "test")
    await broker.ensure_groups()
    assert await broker.append(CAPTURES, capture())
    redis_server.kill()
    with pytest.raises(DependencyError, match="redis"):
        await broker.append(CAPTURES, capture("b"))
    redis_server.start()
    assert await broker.append(CAPTURES, capture("b"))
    assert [e.turn_id for e in await broker.read(CAPTURES, "c", 10, 50)] == ["a", "b"]
    await broker.close()


async def test_settings_that_could_lose_messages_are_named(redis_server):
    broker = RedisBroker(connect(redis_server.url), "test")
    assert await broker.durability_problems() == []
    await broker.client.config_set("maxmemory-policy", "allkeys-lru")
    await broker.client.config_set("appendonly", "no")
    problems = await broker.durability_problems()
    assert len(problems) == 2
    assert "noeviction" in problems[0]
    assert "appendonly" in problems[1]
    await broker.close()


async def test_a_full_redis_is_away_not_broken(redis_server):
    broker = RedisBroker(connect(redis_server.url), "test")
    await broker.ensure_groups()
    await broker.client.config_set("maxmemory", "1")
    with pytest.raises(DependencyError, match="maxmemory|OOM"):
        await broker.append(CAPTURES, capture())
    with pytest.raises(DependencyError, match="maxmemory|OOM"):
        await broker.count("captured")
    await broker.client.config_set("maxmemory", "0")
    assert await broker.append(CAPTURES, capture())
    await broker.close()


async def test_a_redis_that_hangs_is_away(redis_server, monkeypatch):
    monkeypatch.setattr(redis_connection, "CALL_TIMEOUT_S", 0.3)
    broker = RedisBroker(connect(redis_server.url), "test")
    await broker.ensure_groups()
    redis_server.pause()
    with pytest.raises(DependencyError, match="no answer"):
        await broker.append(CAPTURES, capture("lost-or-not"))
    redis_server.go_on()
    assert await broker.append(CAPTURES, capture("after"))
    assert "after" in {entry.turn_id for entry in await broker.read(CAPTURES, "c", 10, 50)}
    await broker.close()


async def test_a_claim_takes_everything_however_much_is_pending(broker):
    for number in range(150):
        await broker.append(CAPTURES, capture(f"t{number}"))
    fresh, old = "alive", "dead"
    assert len(await broker.read(CAPTURES, fresh, 120, 50)) == 120
    assert len(await broker.read(CAPTURES, old, 30, 50)) == 30
    for entry in await broker.reread(CAPTURES, old, 30):
        await broker.release(entry)
    # The released ones stand behind more fresh entries than one scan of the pending list covers.
    claimed = await broker.claim(CAPTURES, "next", 5, 60_000)
    assert [entry.turn_id for entry in claimed] == [f"t{number}" for number in range(120, 125)]
    assert len(await broker.claim(CAPTURES, "next", 100, 60_000)) == 25
