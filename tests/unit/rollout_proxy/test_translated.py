"""The vendors' clients at the running proxy: what they see, what is captured, what the engine's own endpoints get."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web
from hintloop_contract.tensors import unpack

from .conftest import FakeEngine, RunningProxy, StartProxy
from .scripted_answers import ENGINES, EVERYTHING, Script

TOOLS = {"weather": {"type": "object"}, "clock": {"type": "object"}}
FUNCTIONS: Any = [{"type": "function", "name": name, "parameters": p, "strict": False} for name, p in TOOLS.items()]
CUSTOM: Any = [{"name": name, "input_schema": schema} for name, schema in TOOLS.items()]
TEXT = "The capital of France is Paris."


def openai_at(proxy: RunningProxy) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="k", base_url=proxy.url + "/v1", max_retries=0)


def anthropic_at(proxy: RunningProxy) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(api_key="k", base_url=proxy.url, max_retries=0)


def say(engine: FakeEngine, script: Script) -> None:
    """Let the engine say what small models never say; without ids, so that nothing of it is trained."""

    async def reply(request: web.Request) -> web.StreamResponse:
        if not (await request.json()).get("stream"):
            return web.Response(body=script.whole(engine.kind), content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for chunk in [*script.chunks(engine.kind), b"[DONE]"]:
            await response.write(b"data: " + chunk + b"\n\n")
        return response

    engine.reply = reply


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_served_and_captured_exactly(
    proxy: StartProxy, fake_engine: FakeEngine, engine: str, stream: bool
) -> None:
    fake_engine.kind = engine
    async with proxy() as running, openai_at(running) as client:
        fake_engine.replay("chat_stream_stop" if stream else "chat_stop", split=50)
        asked: Any = {"model": "any", "input": "Which?", "temperature": 1.0, "top_p": 1.0}
        if stream:
            async with client.responses.stream(**asked) as events:
                response = await events.get_final_response()
        else:
            response = await client.responses.create(**asked)
        assert (response.output_text, response.status, response.model) == (TEXT, "completed", "policy")
        assert response.usage is not None
        [capture] = await running.captures()
        assert (capture.api, capture.problem, capture.response_id) == ("responses", None, response.id)
        assert json.loads(capture.request)["input"] == "Which?"
        assert json.loads(capture.chat_request or b"")["messages"] == [{"role": "user", "content": "Which?"}]
        assert capture.response_ids is not None
        assert len(unpack(capture.response_ids)) == response.usage.output_tokens
        assert not any(name in response.model_dump_json() for name in ("token_ids", '"logprob"', "sglext"))
        fake_engine.replay("chat_stop")
        later = await client.responses.create(model="any", input="And?", previous_response_id=response.id)
        said = [message["content"] for message in fake_engine.seen[-1][1]["messages"]]
        assert said == ["Which?", TEXT, "And?"]
        assert later.previous_response_id == response.id


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_message_is_served_and_captured_exactly(
    proxy: StartProxy, fake_engine: FakeEngine, engine: str, stream: bool
) -> None:
    fake_engine.kind = engine
    async with proxy() as running, anthropic_at(running) as client:
        fake_engine.replay("chat_stream_stop" if stream else "chat_stop", split=50)
        asked: Any = {"model": "any", "max_tokens": 64, "messages": [{"role": "user", "content": "Which?"}]}
        if stream:
            async with client.beta.messages.stream(**asked) as events:
                message: Any = await events.get_final_message()
        else:
            message = await client.beta.messages.create(**asked)
        assert [block.text for block in message.content] == [TEXT]
        assert (message.stop_reason, message.model) == ("end_turn", "policy")
        [capture] = await running.captures()
        assert (capture.api, capture.problem, capture.response_id) == ("messages", None, message.id)
        assert capture.response_ids is not None
        assert len(unpack(capture.response_ids)) == message.usage.output_tokens
        assert capture.prompt_ids is not None
        assert len(unpack(capture.prompt_ids)) == message.usage.input_tokens


@pytest.mark.parametrize("engine", ENGINES)
async def test_reasoning_and_parallel_calls_come_through(
    proxy: StartProxy, fake_engine: FakeEngine, engine: str
) -> None:
    fake_engine.kind = engine
    async with proxy() as running, openai_at(running) as client, anthropic_at(running) as other:
        say(fake_engine, EVERYTHING)
        async with client.responses.stream(model="m", input="Go", tools=FUNCTIONS) as events:
            response = await events.get_final_response()
        calls = [(item.call_id, item.name, item.arguments) for item in response.output if item.type == "function_call"]
        assert calls == EVERYTHING.calls
        asked: Any = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "Go"}], "tools": CUSTOM}
        async with other.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert message.stop_reason == "tool_use"
        answer = json.loads((await running.captures(2))[0].answer or b"")
        assert [call["id"] for call in answer["tool_calls"]] == [call[0] for call in EVERYTHING.calls]


async def test_what_cannot_be_translated_meets_the_engines_own_endpoint(
    proxy: StartProxy, fake_engine: FakeEngine
) -> None:
    async with proxy() as running, openai_at(running) as client, anthropic_at(running) as other:
        image: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": "u", "detail": "auto"}]}]
        with pytest.raises(openai.APIStatusError) as refused:
            await client.responses.create(model="m", input=image)
        assert refused.value.status_code == 418
        assert refused.value.response.json()["path"] == "/v1/responses"
        search: Any = [{"type": "web_search_20250305", "name": "web_search"}]
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        with pytest.raises(anthropic.APIStatusError) as unserved:
            await other.beta.messages.create(**asked, max_tokens=8, tools=search, extra_query={"beta": "true"})
        assert unserved.value.response.json()["path"] == "/v1/messages?beta=true"
        with pytest.raises(anthropic.APIStatusError) as counted:
            await other.messages.count_tokens(**asked)
        seen = counted.value.response.json()
        assert seen["path"] == "/v1/messages/count_tokens"
        assert json.loads(seen["body"])["model"] == fake_engine.model
        captures = await running.captures(2)
        assert [capture.api for capture in captures] == ["responses", "messages"]
        assert {capture.chat_request for capture in captures} == {None}


async def test_refusals_are_in_the_vendors_form(proxy: StartProxy, fake_engine: FakeEngine) -> None:
    async with proxy() as running, openai_at(running) as client, anthropic_at(running) as other:
        fake_engine.replay("chat_bad_temperature")
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="m", input="Hi", temperature=-1.0)
        assert refused.value.body["message"]  # type: ignore[index]
        with pytest.raises(openai.BadRequestError, match="not found") as unknown:
            await client.responses.create(model="m", input="Hi", previous_response_id="resp_hl" + "0" * 30)
        assert unknown.value.code == "previous_response_not_found"
        asked: Any = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]}
        with pytest.raises(anthropic.BadRequestError) as unserved:
            await other.messages.create(**asked, extra_body={"temperature": -1.0})
        assert unserved.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]


@pytest.mark.parametrize("stop", [2, 5])
async def test_an_engine_that_dies_in_its_answer_is_told(proxy: StartProxy, fake_engine: FakeEngine, stop: int) -> None:
    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for chunk in EVERYTHING.chunks("vllm")[:stop]:
            await response.write(b"data: " + chunk + b"\n\n")
        assert request.transport is not None
        request.transport.close()
        return response

    fake_engine.reply = reply
    async with proxy() as running, openai_at(running) as client, anthropic_at(running) as other:
        stream = await client.responses.create(model="m", input="Go", stream=True)
        kinds = [event.type async for event in stream]
        assert kinds[-1] == "response.failed"
        asked: Any = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "Go"}]}
        with pytest.raises(anthropic.APIStatusError):
            async with other.messages.stream(**asked) as events:
                await events.get_final_message()
        assert {capture.problem for capture in await running.captures(2)} == {"aborted"}


async def test_an_answer_that_cannot_be_translated_is_told(proxy: StartProxy, fake_engine: FakeEngine) -> None:
    odd = [{"index": 0, "function": {"arguments": "{}"}}]

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        chunk = {"id": "c", "model": "engine-name", "choices": [{"index": 0, "delta": {"tool_calls": odd}}]}
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")
        return response

    fake_engine.reply = reply
    async with proxy() as running, openai_at(running) as client:
        stream = await client.responses.create(model="m", input="Go", stream=True)
        *_, last = [event async for event in stream]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert "begins without a name" in last.response.error.message
        [capture] = await running.captures()
        assert capture.problem == "aborted"
