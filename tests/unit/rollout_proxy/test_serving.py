"""What agents see and what is captured, over recorded answers of both engines."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from hintloop_contract.tensors import unpack

QUESTION = {"model": "any-name", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
OURS = ("token_ids", "prompt_token_ids", "response_token_ids", "meta_info", "sglext")


def events_of(data: bytes) -> list[dict[str, Any]]:
    parts = [part[6:] for part in data.decode().split("\n\n") if part.startswith("data: ")]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]


def assert_nothing_of_ours(document: dict[str, Any]) -> None:
    """A member that is null is one that the engine writes unasked."""
    assert not [name for name in OURS if document.get(name) is not None]
    for choice in document["choices"]:
        assert not [name for name in OURS if choice.get(name) is not None]
        assert choice.get("logprobs") is None
    assert document["model"] == "policy"


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_whole_answer(kind: str, fake_engine: Any, proxy: Any, wire: Any) -> None:
    fake_engine.kind = kind
    fake_engine.replay("chat_stop")
    async with proxy() as running:
        status, data = await running.ask(QUESTION | {"temperature": 0.7, "max_tokens": 32})
        (capture,) = await running.captures()
    assert status == 200
    document = json.loads(data)
    assert_nothing_of_ours(document)
    recorded = wire(kind, "chat_stop")["body"]["choices"][0]
    assert document["choices"][0]["message"] == recorded["message"]
    assert json.loads(capture.answer) == recorded["message"]
    ids = recorded["token_ids"] if kind == "vllm" else recorded["response_token_ids"]
    assert unpack(capture.response_ids).tolist() == ids
    expected = np.array([entry["logprob"] for entry in recorded["logprobs"]["content"]], dtype=np.float32)
    np.testing.assert_array_equal(unpack(capture.logprobs), expected)
    assert capture.usage_completion_tokens == len(ids)
    assert (capture.problem, capture.status, capture.finish_reason) == (None, "complete", "stop")
    assert capture.behaviour_space == ("processed" if kind == "vllm" else "after_temperature")
    assert json.loads(capture.request) == QUESTION | {"temperature": 0.7, "max_tokens": 32}
    assert (capture.sampling.temperature, capture.sampling.max_tokens) == (0.7, 32)
    assert (capture.version_oldest, capture.version_newest) == (0, 0)
    assert 0 <= capture.end_ms - capture.start_ms < 10_000


@pytest.mark.parametrize("split", [None, 1, 7, 100, 1000])
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_stream(kind: str, split: int | None, fake_engine: Any, proxy: Any, wire: Any) -> None:
    fake_engine.kind = kind
    fake_engine.replay("chat_stream_stop", split=split)
    async with proxy() as running:
        status, data = await running.ask(QUESTION | {"stream": True})
        (capture,) = await running.captures()
    assert status == 200
    events = events_of(data)
    for event in events:
        assert_nothing_of_ours(event)
        assert event["choices"], "the usage chunk was not asked for"
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
    assert text == "The capital of France is Paris."
    assert json.loads(capture.answer)["content"] == text
    whole = wire(kind, "chat_stop")["body"]["choices"][0]
    ids = whole["token_ids"] if kind == "vllm" else whole["response_token_ids"]
    assert unpack(capture.response_ids).tolist() == ids
    prompt = wire(kind, "chat_stop")["body"] if kind == "vllm" else whole
    assert unpack(capture.prompt_ids).tolist() == prompt["prompt_token_ids"]
    assert (capture.problem, capture.status, capture.finish_reason) == (None, "complete", "stop")


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_chunks_keep_every_other_byte(kind: str, fake_engine: Any, proxy: Any, wire: Any) -> None:
    """Asking like the agent does, the engine's own recording is what the agent gets, bar the model's name."""
    fake_engine.kind = kind
    fake_engine.model = "policy"
    fake_engine.replay("chat_stream_plain", split=50)
    async with proxy() as running:
        _, data = await running.ask(QUESTION | {"stream": True, "stream_options": {"include_usage": True}})
    expected = wire(kind, "chat_stream_plain")["body"].replace('"model":"smollm2"', '"model":"policy"')
    assert data.decode() == expected


async def test_agent_gets_what_it_asked_for(fake_engine: Any, proxy: Any, wire: Any) -> None:
    fake_engine.model = "policy"
    fake_engine.replay("chat_stream_stop")
    asked = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "return_token_ids": True}
    async with proxy() as running:
        _, data = await running.ask(QUESTION | asked)
    expected = wire("vllm", "chat_stream_stop")["body"].replace('"model":"smollm2"', '"model":"policy"')
    assert data.decode() == expected


async def test_request_is_extended_and_nothing_is_lost(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stream_stop")
    extra = {"stream": True, "seed": 4, "my_field": {"a": [1]}, "top_logprobs": None}
    async with proxy() as running:
        await running.ask(QUESTION | extra, authorization="Bearer client-key", x_custom="yes")
        (capture,) = await running.captures()
    headers, body = fake_engine.seen[0]
    assert body == QUESTION | {
        "model": "engine-name",
        "stream": True,
        "seed": 4,
        "my_field": {"a": [1]},
        "logprobs": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    assert headers["authorization"] == "Bearer client-key"
    assert headers["x-custom"] == "yes"
    assert len(capture.credential) == 16 and "client" not in capture.credential


async def test_sglang_stream_is_asked_by_headers(fake_engine: Any, proxy: Any) -> None:
    fake_engine.kind = "sglang"
    fake_engine.replay("chat_stream_stop")
    async with proxy() as running:
        await running.ask(QUESTION | {"stream": True})
    headers, body = fake_engine.seen[0]
    assert headers["x-sglext-return-output-ids"] == headers["x-sglext-return-input-ids"] == "1"
    assert "return_token_ids" not in body


async def test_own_keys_end_at_the_proxy(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    keys = {"proxy": {"api_keys": ["sesame"]}, "policy": {"api_key": "engine-key"}}
    async with proxy(**keys) as running:
        status, data = await running.ask(QUESTION, authorization="Bearer wrong")
        assert (status, json.loads(data)["error"]["code"]) == (401, "invalid_api_key")
        status, _ = await running.ask(QUESTION)
        assert status == 401
        status, _ = await running.ask(QUESTION, x_api_key="sesame")
        assert status == 200
    (headers, _) = fake_engine.seen[0]
    assert len(fake_engine.seen) == 1
    assert headers["authorization"] == "Bearer engine-key"
    assert "x-api-key" not in headers


async def test_engine_error_passes_untouched(fake_engine: Any, proxy: Any, wire: Any) -> None:
    fake_engine.replay("chat_bad_temperature")
    async with proxy() as running:
        status, data = await running.ask(QUESTION | {"temperature": -1})
        (capture,) = await running.captures()
    assert (status, json.loads(data)) == (400, wire("vllm", "chat_bad_temperature")["body"])
    assert (capture.status, capture.http_status, capture.problem) == ("refused", 400, "upstream_error")
    assert capture.answer is None


async def test_engine_error_repeats_the_request_under_the_agents_name(fake_engine: Any, proxy: Any) -> None:
    fake_engine.model = "/srv/weights/7"

    async def refuse(request: web.Request) -> web.Response:
        asked = (await request.json())["model"]
        words = f"{{'input': {{'model': '{asked}'}}}} and {asked}/config.json"
        return web.json_response({"message": words, "model": asked}, status=400)

    fake_engine.reply = refuse
    async with proxy() as running:
        status, data = await running.ask(QUESTION)
    said = {"message": "{'input': {'model': 'policy'}} and /srv/weights/7/config.json", "model": "policy"}
    assert (status, json.loads(data)) == (400, said)


async def test_unreachable_engine(fake_engine: Any, proxy: Any) -> None:
    async with proxy(policy={"engines": ["http://127.0.0.1:9"]}) as running:
        status, data = await running.ask(QUESTION)
        (capture,) = await running.captures()
        async with running.session.get(running.url + "/hintloop/ready") as response:
            assert response.status == 503
    assert (status, json.loads(data)["error"]["code"]) == (502, "engine_unreachable")
    assert (capture.status, capture.problem) == ("refused", "upstream_error")


async def test_second_engine_takes_over(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    async with proxy(policy={"engines": ["http://127.0.0.1:9", fake_engine.url]}) as running:
        for _ in range(3):
            status, _ = await running.ask(QUESTION)
            assert status == 200
        captures = await running.captures(3)
    assert {capture.engine_url for capture in captures} == {fake_engine.url}


async def test_client_that_leaves_stops_the_engine(fake_engine: Any, proxy: Any, wire: Any) -> None:
    first_events = wire("vllm", "chat_stream_stop")["body"].split("\n\n")[:3]

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(("\n\n".join(first_events) + "\n\n").encode())
        await asyncio.sleep(60)
        return response

    fake_engine.reply = endless
    async with proxy() as running:
        body = QUESTION | {"stream": True}
        async with running.session.post(running.url + "/v1/chat/completions", json=body) as response:
            await response.content.readany()
            response.close()
        (capture,) = await running.captures()
        async with asyncio.timeout(60):
            await fake_engine.hung_up.wait()
    assert (capture.status, capture.problem) == ("aborted", "aborted")
    assert json.loads(capture.answer)["content"] == "The capital"


async def test_client_that_leaves_before_the_answer(fake_engine: Any, proxy: Any) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    fake_engine.reply = slow
    async with proxy() as running:
        asking = asyncio.create_task(running.ask(QUESTION))
        async with asyncio.timeout(60):
            while not fake_engine.seen:
                await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        (capture,) = await running.captures()
        async with asyncio.timeout(60):
            await fake_engine.hung_up.wait()
    assert (capture.status, capture.problem) == ("aborted", "aborted")


async def test_longest_answer(fake_engine: Any, proxy: Any) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    fake_engine.reply = slow
    async with proxy(proxy={"request_timeout_s": 0.3}) as running:
        status, data = await running.ask(QUESTION)
        (capture,) = await running.captures()
    assert (status, json.loads(data)["error"]["code"]) == (504, "engine_timeout")
    assert capture.problem == "aborted"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"n": 0}, "n = 0"),
        ({"n": "2"}, 'n = "2"'),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "image_url"),
    ],
)
async def test_served_but_not_trained(change: dict[str, Any], word: str, fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_plain")
    async with proxy() as running:
        status, _ = await running.ask(QUESTION | change)
        (capture,) = await running.captures()
    assert status == 200
    assert "return_token_ids" not in fake_engine.seen[0][1]
    assert capture.problem == "not_trainable"
    assert word in capture.problem_detail


async def test_sampling_defaults(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    rollout = {"apply_sampling_defaults": True, "temperature": 0.7, "top_p": 0.9, "max_new_tokens": 48}
    async with proxy(rollout=rollout) as running:
        await running.ask(QUESTION | {"top_p": 0.5})
        (capture,) = await running.captures()
    body = fake_engine.seen[0][1]
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.7, 0.5, 48)
    assert (capture.sampling.temperature, capture.sampling.top_p, capture.sampling.max_tokens) == (0.7, 0.5, 48)


async def test_raw_engine_is_recognised(fake_engine: Any, proxy: Any) -> None:
    fake_engine.tempered = False
    fake_engine.replay("chat_stop")
    async with proxy() as running:
        await running.ask(QUESTION)
        (capture,) = await running.captures()
    assert capture.behaviour_space == "raw"


@pytest.mark.parametrize("ending", ["[DONE]", "usage"])
async def test_client_that_leaves_after_the_answer_got_it(ending: str, fake_engine: Any, proxy: Any, wire: Any) -> None:
    events = wire("vllm", "chat_stream_stop")["body"].split("\n\n")[:-1]
    assert events[-1] == "data: [DONE]"
    if ending == "usage":
        events = events[:-1]

    async def lingering(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(("\n\n".join(events) + "\n\n").encode())
        await asyncio.sleep(60)
        return response

    fake_engine.reply = lingering
    async with proxy() as running:
        body = QUESTION | {"stream": True}
        async with running.session.post(running.url + "/v1/chat/completions", json=body) as response:
            got = b""
            while b'"finish_reason":"stop"' not in got:
                got += await response.content.readany()
            await asyncio.sleep(0.2)
            response.close()
        (capture,) = await running.captures()
    assert (capture.status, capture.problem, capture.finish_reason) == ("complete", None, "stop")


async def test_request_before_the_probe_is_served_and_not_trained(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    fake_engine.probes_may_end.clear()
    async with proxy(probed=False) as running:
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*(running.ask(QUESTION) for _ in range(5)))
        captures = await running.captures(5)
        fake_engine.probes_may_end.set()
        async with asyncio.timeout(60):
            while not running.deps.watch.ready:
                await asyncio.sleep(0.01)
        await running.ask(QUESTION)
        (later,) = await running.captures()
    assert [status for status, _ in answers] == [200] * 5
    assert {body["model"] for _, body in fake_engine.seen} == {"engine-name"}
    assert {capture.problem for capture in captures} == {"not_trainable"}
    assert {"not yet probed" in capture.problem_detail for capture in captures} == {True}
    assert later.problem is None


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("neutral", "tempered", "asked", "unknown"),
    [
        (True, True, {}, False),
        (False, True, {}, True),
        (False, True, {"temperature": 0.5, "top_p": 1}, True),
        (
            False,
            True,
            {"temperature": 0.5, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1.0},
            False,
        ),
    ],
)
async def test_what_is_left_out_is_guessed_only_where_it_is_known(
    kind: str,
    neutral: bool,
    tempered: bool,
    asked: dict[str, Any],
    unknown: bool,
    fake_engine: Any,
    proxy: Any,
) -> None:
    fake_engine.kind, fake_engine.neutral, fake_engine.tempered = kind, neutral, tempered
    fake_engine.replay("chat_stop")
    async with proxy() as running:
        await running.ask(QUESTION | asked)
        (capture,) = await running.captures()
    assert (capture.sampling.defaults_unknown, capture.sampling.constrained) == (unknown, unknown)
    assert capture.problem is None


async def test_raw_scores_do_not_show_what_was_sampled_from(fake_engine: Any, proxy: Any) -> None:
    fake_engine.tempered = False
    fake_engine.replay("chat_stop")
    async with proxy() as running:
        await running.ask(QUESTION)
        (capture,) = await running.captures()
    assert capture.behaviour_space == "raw" and capture.sampling.defaults_unknown
