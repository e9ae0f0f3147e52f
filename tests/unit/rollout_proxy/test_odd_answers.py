"""Answers that are odd or broken: the agent gets them, without what is ours, and no sample is made of them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from aiohttp import web

from .test_serving import OURS, QUESTION, assert_nothing_of_ours, events_of


def says_ours(data: bytes) -> bool:
    """Whether any of our members has a value other than null."""
    return re.search(rf'"({"|".join(OURS)})": ?(?!null)', data.decode()) is not None


def whole_of(answer: Any) -> Any:
    async def reply(request: web.Request) -> web.StreamResponse:
        text = answer if isinstance(answer, str) else json.dumps(answer, separators=(",", ":"))
        return web.Response(text=text, content_type="application/json")

    return reply


def stream_of(*events: str, end: str = "\n\n") -> Any:
    async def reply(request: web.Request) -> web.StreamResponse:
        return web.Response(text="".join(event + end for event in events), content_type="text/event-stream")

    return reply


async def test_additions_that_the_engine_rejects_cost_no_answer(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_bad_temperature", "chat_plain")
    async with proxy() as running:
        status, _ = await running.ask(QUESTION)
        (capture,) = await running.captures()
    assert status == 200
    assert "return_token_ids" not in fake_engine.seen[1][1]
    assert capture.problem == "ids_missing"


async def test_stream_that_the_engine_cuts(fake_engine: Any, proxy: Any, wire: Any) -> None:
    events = wire("vllm", "chat_stream_stop")["body"].split("\n\n")[:4]

    async def cut(request: web.Request) -> web.StreamResponse:
        return web.Response(text="\n\n".join(events) + "\n\n", content_type="text/event-stream")

    fake_engine.reply = cut
    async with proxy() as running:
        await running.ask(QUESTION | {"stream": True})
        (capture,) = await running.captures()
    assert (capture.status, capture.problem) == ("aborted", "aborted")


async def test_missing_logprob_and_nan_reach_no_sample(fake_engine: Any, proxy: Any, wire: Any) -> None:
    recorded = json.dumps(wire("vllm", "chat_stop")["body"], separators=(",", ":"))
    first = json.dumps(wire("vllm", "chat_stop")["body"]["choices"][0]["logprobs"]["content"][0]["logprob"])
    bodies = [recorded.replace(first, bad) for bad in ("NaN", "-9999.0", "null", "0.25", "-Infinity")]

    async def reply(request: web.Request) -> web.StreamResponse:
        return web.Response(text=bodies.pop(0), content_type="application/json")

    fake_engine.reply = reply
    async with proxy() as running:
        for _ in range(5):
            status, data = await running.ask(QUESTION)
            assert status == 200
            assert_nothing_of_ours(json.loads(data))
        captures = await running.captures(5)
    assert [capture.problem for capture in captures] == ["logprob_missing"] * 5


async def test_count_mismatch(fake_engine: Any, proxy: Any, wire: Any) -> None:
    body = wire("vllm", "chat_stop")["body"]
    body["choices"][0]["token_ids"].pop()

    async def reply(request: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    fake_engine.reply = reply
    async with proxy() as running:
        await running.ask(QUESTION)
        (capture,) = await running.captures()
    assert capture.problem == "count_mismatch"
    assert capture.problem_detail == "7 ids, 8 log-probabilities, usage.completion_tokens 8"


async def test_message_null_is_a_problem_not_a_failure(fake_engine: Any, proxy: Any, wire: Any) -> None:
    body = wire("vllm", "chat_stop")["body"]
    body["choices"][0]["message"] = None
    fake_engine.reply = whole_of(body)
    async with proxy() as running:
        status, data = await running.ask(QUESTION)
        (capture,) = await running.captures()
        assert len(running.deps.flight) == 0
    assert (status, json.loads(data)["choices"][0]["message"]) == (200, None)
    assert_nothing_of_ours(json.loads(data))
    assert (capture.problem, capture.problem_detail) == ("not_trainable", "the answer's message is b'null', no object")


@pytest.mark.parametrize("ids", [[2**31], [-1], [10**30], ["5"], [[1]], {}, [1.5]])
@pytest.mark.parametrize("stream", [False, True])
async def test_ids_that_are_none_are_missing(ids: Any, stream: bool, fake_engine: Any, proxy: Any, wire: Any) -> None:
    if stream:
        events = wire("vllm", "chat_stream_stop")["body"].split("\n\n")[:-1]
        documents = [json.loads(event[6:]) for event in events[:-1]]
        for document in documents:
            for choice in document["choices"]:
                if choice.get("token_ids"):
                    choice["token_ids"] = ids
        fake_engine.reply = stream_of(
            *("data: " + json.dumps(document, separators=(",", ":")) for document in documents), "data: [DONE]"
        )
    else:
        body = wire("vllm", "chat_stop")["body"]
        body["choices"][0]["token_ids"] = ids
        fake_engine.reply = whole_of(body)
    async with proxy() as running:
        status, data = await running.ask(QUESTION | {"stream": stream})
        (capture,) = await running.captures()
        assert len(running.deps.flight) == 0
    assert status == 200
    for document in events_of(data) if stream else [json.loads(data)]:
        assert_nothing_of_ours(document)
    assert (capture.status, capture.problem) == ("complete", "ids_missing")


async def test_mixed_prompt_ids_are_missing_not_filtered(fake_engine: Any, proxy: Any, wire: Any) -> None:
    fake_engine.kind = "sglang"
    events = wire("sglang", "chat_stream_stop")["body"].split("\n\n")[:-1]
    mixed = []
    for event in events:
        if "sglext" in event:
            document = json.loads(event[6:])
            first = document["sglext"]["input_ids"][0]
            document["sglext"]["input_ids"] = [7, first if isinstance(first, list) else [first], 9]
            event = "data: " + json.dumps(document, separators=(",", ":"))
        mixed.append(event)
    assert mixed != events
    fake_engine.reply = stream_of(*mixed)
    async with proxy() as running:
        await running.ask(QUESTION | {"stream": True})
        (capture,) = await running.captures()
    assert (capture.status, capture.problem) == ("complete", "ids_missing")
    assert "mixes 1 lists among 3" in capture.problem_detail


@pytest.mark.parametrize(
    "delta",
    ["5", '"text"', "[]", '{"tool_calls":5}', '{"tool_calls":[5]}', '{"tool_calls":[{"function":{"arguments":{}}}]}'],
)
async def test_odd_delta_does_not_cut_the_stream(delta: str, fake_engine: Any, proxy: Any, wire: Any) -> None:
    events = wire("vllm", "chat_stream_stop")["body"].split("\n\n")[:-1]
    twice = '{"id":"x","model":"m","choices":[{"index":0,"delta":%s,"token_ids":[1]}]}' % delta  # noqa: UP031
    first = '{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}'
    fake_engine.reply = stream_of(events[0], "data: " + first, "data: " + twice, *events[1:])
    async with proxy() as running:
        _, data = await running.ask(QUESTION | {"stream": True})
        (capture,) = await running.captures()
        assert len(running.deps.flight) == 0
    seen = events_of(data)
    assert json.dumps(json.loads(delta)) in [json.dumps(event["choices"][0]["delta"]) for event in seen]
    assert not says_ours(data)
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in seen[3:]).endswith("Paris.")
    assert (capture.status, capture.problem) == ("complete", "not_trainable")


@pytest.mark.parametrize(
    "event", ['{"choices":5,"token_ids":[1]}', '{"choices":[{"index":"a","token_ids":[1]}]}', "[1]", "not JSON"]
)
async def test_unreadable_event_passes_without_what_is_ours(
    event: str, fake_engine: Any, proxy: Any, wire: Any
) -> None:
    events = wire("vllm", "chat_stream_stop")["body"].split("\n\n")[:-1]
    fake_engine.reply = stream_of(events[0], "data: " + event, 'data: {"token_ids":[1', *events[1:])
    async with proxy() as running:
        _, data = await running.ask(QUESTION | {"stream": True})
        (capture,) = await running.captures()
    assert data.endswith(b"data: [DONE]\n\n") and not says_ours(data) and b"Paris" in data
    assert capture.problem == "aborted"


@pytest.mark.parametrize("answer", ['{"choices":5,"token_ids":[1]}', '{"choices":[{"index":"a","token_ids":[1]}]}'])
async def test_unreadable_body_passes_without_what_is_ours(answer: str, fake_engine: Any, proxy: Any) -> None:
    fake_engine.reply = whole_of(answer)
    async with proxy() as running:
        status, data = await running.ask(QUESTION)
        (capture,) = await running.captures()
    assert status == 200 and "choices" in json.loads(data) and not says_ours(data)
    assert capture.problem == "aborted"


async def test_half_a_body_is_no_answer(fake_engine: Any, proxy: Any) -> None:
    fake_engine.reply = whole_of('{"choices":[{"index":0,"token_ids":[1')
    async with proxy() as running:
        status, data = await running.ask(QUESTION)
        (capture,) = await running.captures()
    assert (status, json.loads(data)["error"]["code"]) == (502, "engine_unreachable")
    assert capture.problem == "aborted"


@pytest.mark.parametrize("split", [1, 7, 1000])
async def test_stream_with_crlf(split: int, fake_engine: Any, proxy: Any, wire: Any) -> None:
    recorded = wire("vllm", "chat_stream_stop")["body"].replace("\n", "\r\n").encode()

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for start in range(0, len(recorded), split):
            await response.write(recorded[start : start + split])
        await response.write_eof()
        return response

    fake_engine.reply = reply
    async with proxy() as running:
        _, data = await running.ask(QUESTION | {"stream": True})
        (capture,) = await running.captures()
    assert data.endswith(b"data: [DONE]\r\n\r\n")
    for event in events_of(data.replace(b"\r\n", b"\n")):
        assert_nothing_of_ours(event)
    assert (capture.status, capture.problem) == ("complete", None)
