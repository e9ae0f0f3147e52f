"""What Anthropic's client makes of translated answers, against the vendor's own types."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hintloop_rollout_proxy.apis import messages
from hintloop_rollout_proxy.apis.identity import core_of
from pydantic import TypeAdapter

from .scripted_answers import (
    CALLING,
    CUT,
    ENGINES,
    EVERYTHING,
    FORCED,
    PLAIN,
    SCRIPTS,
    SILENT,
    Script,
    answering,
    anthropic_client,
    as_fields,
    events_of,
    refusing,
    stream_of,
)

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("weather", "clock")]
ASKED: dict[str, Any] = {
    "model": "policy",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "Where?"}],
    "tools": TOOLS,
}


def streamed(script: Script, engine: str = "vllm", **more: Any) -> list[dict[str, Any]]:
    translation = messages.translate(as_fields({**ASKED, "stream": True, **more}))
    return events_of(stream_of(translation, script.chunks(engine, continuous=True)))


def whole(script: Script, engine: str = "vllm", **more: Any) -> dict[str, Any]:
    translation = messages.translate(as_fields({**ASKED, **more}))
    document: dict[str, Any] = json.loads(translation.body(script.whole(engine)))
    return document


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_every_event_is_of_the_vendors_type(script: Script, engine: str) -> None:
    for event in streamed(script, engine):
        if event["type"] != "ping":
            EVENT.validate_python(event)
    Message.model_validate(whole(script, engine))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
async def test_the_vendors_client_reads_all(script: Script, engine: str) -> None:
    async with anthropic_client(answering(messages.translate, script, engine)) as client:
        message = await client.messages.create(**ASKED)
        async with client.messages.stream(**ASKED) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_message()
        beta = await client.beta.messages.create(**ASKED)
    for found in (message, final, beta):
        assert "".join(block.text for block in found.content if block.type == "text") == script.text
        calls = [(block.id, block.name, block.input) for block in found.content if block.type == "tool_use"]
        assert calls == [(name, tool, json.loads(arguments)) for name, tool, arguments in script.calls]
        thoughts = [block for block in found.content if block.type == "thinking"]
        assert [block.thinking for block in thoughts] == [script.reasoning] * bool(script.reasoning)
        assert all(core_of(block.signature) == core_of(found.id) for block in thoughts)
        assert (found.usage.input_tokens, found.usage.cache_read_input_tokens) == (
            30 - (script.cached or 0),
            script.cached or 0,
        )
        assert found.usage.output_tokens == 12
    assert message.stop_reason == final.stop_reason


def test_the_order_of_events() -> None:
    start, delta, stop = "content_block_start", "content_block_delta", "content_block_stop"
    events = streamed(EVERYTHING)
    assert [event["type"] for event in events] == [
        *("message_start", "ping"),
        *(start, *[delta] * 3, delta, stop),
        *(start, *[delta] * 3, stop),
        *(start, *[delta] * 5, stop),
        *(start, delta, stop),
        *("message_delta", "message_stop"),
    ]
    kinds = [event["delta"]["type"] for event in events if event["type"] == delta]
    assert kinds == [
        *["thinking_delta"] * 3,
        "signature_delta",
        *["text_delta"] * 3,
        *["input_json_delta"] * 6,
    ]
    assert [event["index"] for event in events if event["type"] == start] == [0, 1, 2, 3]
    assert all(event["message"]["content"] == [] for event in events if event["type"] == "message_start")


def test_the_first_event_tells_the_prompts_length() -> None:
    assert streamed(PLAIN)[0]["message"]["usage"]["input_tokens"] == 30
    first, *others = (json.loads(chunk) for chunk in PLAIN.chunks("sglang", continuous=True))
    del first["usage"]
    translation = messages.translate(as_fields({**ASKED, "stream": True}))
    chunks = [json.dumps(chunk).encode() for chunk in (first, *others)]
    assert events_of(stream_of(translation, chunks))[0]["message"]["usage"]["input_tokens"] == 30
    assert streamed(PLAIN)[-2]["usage"]["output_tokens"] == 12


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("script", "reason", "sequence"),
    [
        (PLAIN, "end_turn", None),
        (SILENT, "end_turn", None),
        (CUT, "max_tokens", None),
        (CALLING, "tool_use", None),
        (FORCED, "tool_use", None),
        (Script(text="One", stop_string="END"), "stop_sequence", "END"),
        (Script(calls=FORCED.calls, stop_string="END"), "tool_use", None),
        (Script(calls=[("c1", "weather", '{"ci')], stop_string="END"), "stop_sequence", "END"),
        (Script(text="No.", finish="content_filter"), "refusal", None),
    ],
)
def test_stop_reasons(script: Script, reason: str, sequence: str | None, engine: str) -> None:
    document, delta = whole(script, engine), streamed(script, engine)[-2]["delta"]
    assert (document["stop_reason"], document["stop_sequence"]) == (reason, sequence)
    assert (delta["stop_reason"], delta["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize(
    ("arguments", "expected"), [("", {}), ('{"ci', {"INVALID_JSON": '{"ci'}), ("[1]", {"INVALID_JSON": "[1]"})]
)
def test_arguments_that_are_no_object_are_kept_and_named(arguments: str, expected: dict[str, Any]) -> None:
    [block] = whole(Script(calls=[("c1", "weather", arguments)], finish="tool_calls"))["content"]
    assert block["input"] == expected


def test_an_error_inside_the_stream_ends_it() -> None:
    translation = messages.translate(as_fields({**ASKED, "stream": True}))
    translation.event(PLAIN.chunks("vllm")[1])
    error = json.dumps({"error": {"message": "out of memory", "code": 500}}).encode()
    [failed] = events_of(translation.event(error))
    assert failed == {"type": "error", "error": {"type": "api_error", "message": "out of memory"}}
    assert translation.event(PLAIN.chunks("vllm")[2]) == translation.end() == translation.broken("late") == b""


@pytest.mark.parametrize("finish", ["abort", "error"])
async def test_an_answer_that_the_engine_gave_up_is_an_error(finish: str) -> None:
    transport = answering(messages.translate, Script(text="Half", finish=finish), "vllm")
    async with anthropic_client(transport) as client:
        with pytest.raises(anthropic.APIStatusError, match=finish):
            async with client.messages.stream(**ASKED) as stream:
                await stream.get_final_message()


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error"),
        (404, anthropic.NotFoundError, "not_found_error"),
        (429, anthropic.RateLimitError, "rate_limit_error"),
        (500, anthropic.InternalServerError, "api_error"),
        (503, anthropic.ServiceUnavailableError, "overloaded_error"),
        (418, anthropic.APIStatusError, "invalid_request_error"),
    ],
)
async def test_errors_are_in_the_vendors_form(status: int, error: type[Exception], kind: str) -> None:
    body = b'{"error":{"message":"too long","type":"BadRequestError","param":"x","code":400}}'
    async with anthropic_client(refusing(messages.translate, status, body)) as client:
        with pytest.raises(error) as raised:
            await client.messages.create(**ASKED)
    assert raised.value.body == {"type": "error", "error": {"type": kind, "message": "too long"}}


def test_calls_that_cannot_be_told_apart_are_refused() -> None:
    translation = messages.translate(as_fields({**ASKED, "stream": True}))
    for chunk in CALLING.chunks("vllm"):
        translation.event(chunk)
    for delta in ({"index": 0, "function": {"arguments": "more"}}, {"index": 2, "function": {"arguments": "{}"}}):
        odd = {"model": "policy", "choices": [{"index": 0, "delta": {"tool_calls": [delta]}}]}
        with pytest.raises(ValueError, match="tool call"):
            translation.event(json.dumps(odd).encode())
