"""The linker on the streams: what it commits, what it drops and why."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Capture, Sampling
from hintloop_contract.streams import CAPTURES, DROPS, TURNS
from hintloop_contract.tensors import pack
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_rollout_proxy import linker_task
from hintloop_rollout_proxy.linker_task import LinkerTask
from hintloop_rollout_proxy.metrics import ProxyMetrics

ANSWER = {"role": "assistant", "content": "fine"}


def make_config(**sections: dict[str, Any]) -> Config:
    values: dict[str, dict[str, Any]] = {
        "training": {"train_batch_size": 2, "max_staleness_steps": 2},
        "rollout": {"rollout_batch_size": 2},
        "linker": {"lease_ms": 1000},
    }
    for section, change in sections.items():
        values.setdefault(section, {}).update(change)
    return Config.model_validate(values)


def make_capture(turn_id: str, *texts: str, **fields: Any) -> Capture:
    messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]
    tools = [{"type": "function", "function": {"name": "f"}}]
    request = {"messages": messages, "tools": tools, "chat_template_kwargs": {"a": 1}, "temperature": 0.5}
    values: dict[str, Any] = {
        "engine": "vllm",
        "engine_url": "http://engine",
        "request": json.dumps(request).encode(),
        "answer": b'{"role":"assistant","content":"fine"}',
        "prompt_ids": pack([1, 2, 3], "int32"),
        "response_ids": pack([4, 5], "int32"),
        "logprobs": pack([-0.5, -0.25], "float32"),
        "behaviour_space": "processed",
        "version_oldest": 3,
        "version_newest": 3,
        "start_ms": 1000,
        "end_ms": 1100,
    }
    return Capture(turn_id=turn_id, **(values | fields))


async def run_over(broker: Any, config: Config, *captures: Capture) -> None:
    for capture in captures:
        await broker.append(CAPTURES, capture)
    task, stop = LinkerTask(broker, config, ProxyMetrics()), asyncio.Event()
    running = asyncio.create_task(task.run(stop))
    async with asyncio.timeout(60):
        while (await broker.counts(CAPTURES)).pending < (await broker.counts(CAPTURES)).length or not stop.is_set():
            await asyncio.sleep(0.1)
            counts = await broker.counts(CAPTURES)
            if counts.pending == counts.length:
                await asyncio.sleep(0.3)
                stop.set()
    await running


async def test_turn_and_record(broker: Any) -> None:
    sampling = Sampling(temperature=0.5)
    a = make_capture("a", "q", sampling=sampling, finish_reason="length")
    await run_over(broker, make_config(), a, make_capture("b", "q", "fine", "more", start_ms=2000, end_ms=2100))
    (entry,) = await broker.read(TURNS, "test", 10, None)
    turn = entry.message
    assert (turn.turn_id, turn.turn_index, turn.finish_reason) == ("a", 0, "length")
    assert (turn.num_prompt_tokens, turn.num_response_tokens) == (3, 2)
    assert (turn.version_oldest, turn.version_newest, turn.sampling) == (3, 3, sampling)
    record = await broker.get_turn("a")
    assert json.loads(record.messages) == [{"role": "user", "content": "q"}]
    assert json.loads(record.tools)[0]["function"]["name"] == "f"
    assert json.loads(record.rendering) == {"chat_template_kwargs": {"a": 1}}
    assert json.loads(record.next_state) == [{"role": "user", "content": "more"}]
    assert record.logprobs == a.logprobs
    counts = await broker.counts(CAPTURES)
    assert (counts.length, counts.pending) == (1, 1), "b stays pending until its next state is settled"


@pytest.mark.parametrize(
    ("change", "training", "reason"),
    [
        ({"version_newest": 4}, {}, "mixed_version"),
        ({"version_newest": 4}, {"allow_mixed_version": True}, None),
        ({"sampling": Sampling(constrained=True)}, {"allow_constrained": False}, "constrained"),
        ({"sampling": Sampling(constrained=True)}, {}, None),
        ({"version_oldest": None}, {}, "not_trainable"),
        ({"problem": "count_mismatch"}, {}, "count_mismatch"),
    ],
)
async def test_obstacles(broker: Any, change: dict[str, Any], training: dict[str, Any], reason: str | None) -> None:
    config = make_config(training=training)
    after = make_capture("b", "q", "fine", "more", start_ms=2000, end_ms=2100)
    await run_over(broker, config, make_capture("a", "q", **change), after)
    turns = await broker.read(TURNS, "test", 10, None)
    assert [entry.turn_id for entry in turns] == ([] if reason else ["a"])
    stage = "capture" if reason == "count_mismatch" else "link"
    assert set((await broker.funnel()).drops) == ({(stage, reason)} if reason else set())
    assert (await broker.counts(DROPS)).length == (1 if reason else 0)
    switches = {"mixed_version": "training.allow_mixed_version", "constrained": "training.allow_constrained"}
    assert all(switches.get(drop.reason, "") in drop.detail for drop in await broker.newest_drops(2))


async def test_backpressure_past_the_limit(broker: Any) -> None:
    captures = []
    for number in range(7):
        captures.append(make_capture(f"{number}", f"q{number}"))
        captures.append(make_capture(f"{number}b", f"q{number}", "fine", "more", start_ms=2000, end_ms=2100))
    await run_over(broker, make_config(), *captures)
    assert (await broker.counts(TURNS)).length == 4
    assert (await broker.funnel()).drops == {("link", "backpressure"): 3}


async def released(task: LinkerTask, broker: Any, count: int) -> list[Any]:
    """Step ``task`` until it released ``count`` turns; their entries."""
    found: list[Any] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            if await task._hold_lease():
                await task.step()
            found += await broker.read(TURNS, "test", 10, None)
    return found


async def turns_of(task: LinkerTask, broker: Any, count: int) -> list[str]:
    """Step ``task`` until it released ``count`` turns; their ids."""
    return [entry.turn_id for entry in await released(task, broker, count)]


async def test_a_rebuild_that_fails_is_done_again(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.append(CAPTURES, make_capture("a", "q"))
    await broker.append(CAPTURES, make_capture("b", "q", "fine", "more", start_ms=2000, end_ms=2100))
    await broker.read(CAPTURES, "a linker that died", 10, None)
    await asyncio.sleep(0.6)
    task, claim, failures = LinkerTask(broker, make_config(), ProxyMetrics()), broker.claim, [1]

    async def claim_once_redis_is_back(*words: Any) -> Any:
        if failures:
            failures.pop()
            raise DependencyError("redis", "away")
        return await claim(*words)

    monkeypatch.setattr(broker, "claim", claim_once_redis_is_back)
    with pytest.raises(DependencyError):
        await task._hold_lease()
    assert await turns_of(task, broker, 1) == ["a"]


async def test_what_a_dead_linker_read_last_is_linked_before_what_came_after(broker: Any) -> None:
    """It is not idle for long when the lease is free."""
    await broker.append(CAPTURES, make_capture("a", "q"))
    await broker.acquire_lease("a linker that died", 100)
    await broker.read(CAPTURES, "a linker that died", 10, None)
    await broker.append(CAPTURES, make_capture("b", "q", "fine", "more", start_ms=2000, end_ms=2100))
    later = ("q", "fine", "more", "fine", "and more")
    await broker.append(CAPTURES, make_capture("c", *later, start_ms=3000, end_ms=3100))
    assert await turns_of(LinkerTask(broker, make_config(), ProxyMetrics()), broker, 2) == ["a", "b"]


@pytest.mark.parametrize(
    "change",
    [
        {"request": b'{"messages":[{"role":"user","content":"x"}],"tools":' + b"[" * 3000 + b"]" * 3000 + b"}"},
        {"request": b'{"messages":[{"role":"user","content":' + b"[" * 3000 + b"]" * 3000 + b"}]}"},
        {"answer": b'{"role":"assistant","content":' + b"[" * 3000 + b"]" * 3000 + b"}"},
    ],
)
async def test_a_capture_that_cannot_be_read_is_dead_alone(change: dict[str, bytes], broker: Any) -> None:
    await broker.append(CAPTURES, make_capture("a", "q"))
    await broker.append(CAPTURES, make_capture("bad", "q", **change))
    await broker.append(CAPTURES, make_capture("b", "q", "fine", "more", start_ms=2000, end_ms=2100))
    task = LinkerTask(broker, make_config(), ProxyMetrics())
    assert await turns_of(task, broker, 1) == ["a"]
    assert (await broker.funnel()).drops == {("link", "dead"): 1}
    assert (await broker.counts(CAPTURES)).length == 1, "b waits for its next state"
    assert task._pending.keys() == {"b"} and len(task._linker) == 2


async def test_a_turn_that_cannot_be_built_is_dead_alone(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    build = linker_task.turn_record

    def fail_on_one(capture: Capture, link: Any) -> Any:
        if capture.turn_id == "a":
            raise KeyError("messages")
        return build(capture, link)

    monkeypatch.setattr(linker_task, "turn_record", fail_on_one)
    for turn_id, text in (("a", "q"), ("c", "p")):
        await broker.append(CAPTURES, make_capture(turn_id, text))
        await broker.append(
            CAPTURES, make_capture(f"after {turn_id}", text, "fine", "more", start_ms=2000, end_ms=2100)
        )
    task = LinkerTask(broker, make_config(), ProxyMetrics())
    assert await turns_of(task, broker, 1) == ["c"]
    assert (await broker.funnel()).drops == {("link", "dead"): 1}
    assert "a" not in task._pending and not task._todo


async def test_gaps_near_the_timeout_are_counted(broker: Any) -> None:
    task = LinkerTask(broker, make_config(rollout={"session_timeout_sec": 10.0}), ProxyMetrics())
    await broker.append(CAPTURES, make_capture("a", "q"))
    await broker.append(CAPTURES, make_capture("b", "q", "fine", "x", start_ms=9099, end_ms=9200))
    await broker.append(CAPTURES, make_capture("c", "q", "fine", "x", "fine", "y", start_ms=17_200, end_ms=17_300))
    assert await turns_of(task, broker, 2) == ["a", "b"]
    assert task._metrics.gap_near_timeout._value.get() == 1, "8.0 s is, 7.999 s is not"
    assert task._metrics.gap._sum.get() == pytest.approx(15.999)


async def test_what_came_after_the_timeout_is_counted_and_told(broker: Any) -> None:
    task = LinkerTask(broker, make_config(rollout={"session_timeout_sec": 5.0}), ProxyMetrics())
    now_ms = await broker.time_ms()
    for turn_id, age_s, texts in (("a", 60, ["q"]), ("b", 50, ["other"])):
        times = {"start_ms": now_ms - age_s * 1000, "end_ms": now_ms - age_s * 1000 + 100}
        await broker.append(CAPTURES, make_capture(turn_id, *texts, **times))
    await task._hold_lease()
    task._calm_until = 0.0
    async with asyncio.timeout(60):
        while (await broker.funnel()).drops != {("link", "no_next_state"): 2}:
            await task.step()
    for turn_id, texts in (("c", ["q", "fine", "thanks"]), ("d", ["never asked", "fine", "thanks"])):
        times = {"start_ms": now_ms - 20_000, "end_ms": now_ms - 19_000}
        await broker.append(CAPTURES, make_capture(turn_id, *texts, **times))
    status: dict[str, str] = {}
    async with asyncio.timeout(60):
        while status.get("late", "0") == "0":
            await task.step()
            status = await broker.get_status("linker")
    assert (status["late"], status["late_longest_s"], status["session_timeout_s"]) == ("1", "39.900", "5")
    assert task._metrics.late._value.get() == 1


@pytest.mark.parametrize(("max_requests", "num_dropped"), [(100, 2), (101, 1)])
async def test_the_oldest_requests_are_settled_past_the_configured_number(
    broker: MemoryBroker, max_requests: int, num_dropped: int
) -> None:
    now_ms = await broker.time_ms()
    task = LinkerTask(broker, make_config(linker={"max_requests": max_requests, "reorder_ms": 0}), ProxyMetrics())
    for number in range(102):
        times = {"start_ms": now_ms - 900 + number, "end_ms": now_ms - 800 + number}
        await broker.append(CAPTURES, make_capture(f"{number:03}", f"opening {number}", **times))
    await task._hold_lease()
    while (await broker.counts(CAPTURES)).length > 102 - num_dropped:
        await task.step()
    assert (await broker.funnel()).drops == {("link", "no_next_state"): num_dropped}


@pytest.mark.parametrize(("doubt_ms", "linked"), [(60_000, []), (5_000, ["a"])])
async def test_what_may_be_a_side_call_is_doubted_for_the_configured_time(
    broker: MemoryBroker, doubt_ms: int, linked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linker_task, "CALM_S", 0.0)
    now_ms = await broker.time_ms()
    task = LinkerTask(broker, make_config(linker={"doubt_ms": doubt_ms, "reorder_ms": 0}), ProxyMetrics())
    tools = [{"type": "function", "function": {"name": name}} for name in "fg"]
    asked = [{"role": "user", "content": "q"}]
    told = [*asked, ANSWER, {"role": "user", "content": "Now with less."}]
    for turn_id, messages, num_tools, ago_ms in (("a", asked, 2, 20_000), ("b", told, 1, 18_000)):
        request = json.dumps({"messages": messages, "tools": tools[:num_tools]}).encode()
        times = {"start_ms": now_ms - ago_ms - 1000, "end_ms": now_ms - ago_ms}
        await broker.append(CAPTURES, make_capture(turn_id, request=request, **times))
    await task._hold_lease()
    for _ in range(4):
        await task.step()
    assert [entry.turn_id for entry in await broker.read(TURNS, "test", 10, 50)] == linked


async def test_captures_of_two_proxies_are_taken_in_the_order_in_which_they_ended() -> None:
    for reorder_ms, linked in ((60_000, ["a", "b"]), (0, ["a"])):
        own = MemoryBroker()
        await own.ensure_groups()
        now_ms = await own.time_ms()
        task = LinkerTask(own, make_config(linker={"reorder_ms": reorder_ms}), ProxyMetrics())
        texts, captures = ["q"], []
        for number, turn_id in enumerate("abc"):
            times = {"start_ms": now_ms + 10 * number - 50, "end_ms": now_ms + 10 * number - 45}
            captures.append(make_capture(turn_id, *texts, **times))
            texts += ["fine", f"more {number}"]
        for number in (0, 2, 1):
            await own.append(CAPTURES, captures[number])
            await task._hold_lease()
            await task.step()
        assert (len(task._held) == 3) is bool(reorder_ms)
        await task._feed(task._ready(None))
        await task._apply()
        turns = [entry.turn_id for entry in await own.read(TURNS, "test", 10, None)]
        assert turns == linked, "without patience c was taken before b, and could only follow a"


async def test_captures_are_logged_where_the_configuration_says(broker: Any, tmp_path: Path) -> None:
    path = tmp_path / "captures.jsonl"
    task = LinkerTask(broker, make_config(linker={"capture_log": str(path)}), ProxyMetrics())
    await broker.append(CAPTURES, make_capture("a", "q"))
    await broker.append(CAPTURES, make_capture("b", "q", "fine", "x", start_ms=2000, end_ms=2100))
    assert await turns_of(task, broker, 1) == ["a"]
    assert [json.loads(line)["turn_id"] for line in path.read_text().splitlines()] == ["a", "b"]


async def test_a_log_that_cannot_be_written_stops_nothing(broker: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    task = LinkerTask(broker, make_config(linker={"capture_log": str(tmp_path / "file" / "x")}), ProxyMetrics())
    await broker.append(CAPTURES, make_capture("a", "q"))
    await broker.append(CAPTURES, make_capture("b", "q", "fine", "x", start_ms=2000, end_ms=2100))
    assert await turns_of(task, broker, 1) == ["a"]


async def test_feedback_settles_a_turn_with_its_score(broker: Any) -> None:
    task = LinkerTask(broker, make_config(), ProxyMetrics())
    await broker.append(CAPTURES, make_capture("a", "q", response_id="chatcmpl-1"))
    said = {"response_id": "chatcmpl-1", "session_id": None, "turn_id": None, "score": -1, "text": "Too long."}
    await broker.append(CAPTURES, make_capture("f", api="feedback", request=json.dumps(said).encode(), answer=None))
    (entry,) = await released(task, broker, 1)
    assert (entry.turn_id, entry.message.feedback_score) == ("a", -1)
    record = await broker.get_turn("a")
    assert json.loads(record.next_state) == [{"role": "user", "content": "Too long."}]
    assert (await broker.funnel()).drops == {("link", "feedback"): 1}
    assert (await broker.counts(CAPTURES)).length == 0


async def test_completions_become_turns_with_the_prompt_as_the_users_text(broker: Any) -> None:
    task = LinkerTask(broker, make_config(), ProxyMetrics())
    first, second = ({"prompt": text} for text in ("Q: one?\nA:", "Q: one?\nA:fine\nQ: two?\nA:"))
    await broker.append(CAPTURES, make_capture("a", api="completions", request=json.dumps(first).encode()))
    later = {"start_ms": 2000, "end_ms": 2100}
    await broker.append(CAPTURES, make_capture("b", api="completions", request=json.dumps(second).encode(), **later))
    assert await turns_of(task, broker, 1) == ["a"]
    record = await broker.get_turn("a")
    assert json.loads(record.messages) == [{"role": "user", "content": "Q: one?\nA:"}]
    assert json.loads(record.next_state) == [{"role": "user", "content": "\nQ: two?\nA:"}]


async def test_what_is_only_repeated_has_no_next_state(broker: Any) -> None:
    task = LinkerTask(broker, make_config(), ProxyMetrics())
    for turn_id, prompt, start_ms in (("a", "Once", 1000), ("b", "Oncefine ", 2000)):
        request = json.dumps({"prompt": prompt}).encode()
        times = {"start_ms": start_ms, "end_ms": start_ms + 100}
        await broker.append(CAPTURES, make_capture(turn_id, api="completions", request=request, **times))
    await task._hold_lease()
    await task.step()
    assert (await broker.funnel()).drops == {("link", "no_next_state"): 1}


async def test_a_translated_turn_consists_of_the_chat_that_was_asked(broker: Any) -> None:
    chat = {
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}],
        "reasoning_effort": "low",
    }
    first = {"input": "q", "instructions": "S", "tools": [{"type": "web_search"}]}
    items = [
        {"role": "user", "content": "q"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "fine"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "more"}]},
    ]
    task = LinkerTask(broker, make_config(), ProxyMetrics())
    asked = {"api": "responses", "request": json.dumps(first).encode(), "chat_request": json.dumps(chat).encode()}
    await broker.append(CAPTURES, make_capture("a", **asked))
    then = {"request": json.dumps(first | {"input": items}).encode(), "start_ms": 2000, "end_ms": 2100}
    await broker.append(CAPTURES, make_capture("b", **(asked | then)))
    assert await turns_of(task, broker, 1) == ["a"]
    record = await broker.get_turn("a")
    assert json.loads(record.messages) == chat["messages"] and record.tools is None
    assert json.loads(record.rendering) == {"reasoning_effort": "low"}
    assert json.loads(record.next_state) == [{"role": "user", "content": "more"}]
