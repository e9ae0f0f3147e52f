"""What OpenAI's client makes of translated answers, against the vendor's own types."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from hintloop_rollout_proxy.apis import responses
from hintloop_rollout_proxy.apis.identity import core_of, index_of
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from .scripted_answers import (
    CALLING,
    CUT,
    ENGINES,
    EVERYTHING,
    PLAIN,
    SCRIPTS,
    THINKING,
    Script,
    answering,
    as_fields,
    events_of,
    openai_client,
    refusing,
    stream_of,
)

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object"}, "strict": False}
ASKED: dict[str, Any] = {"model": "policy", "input": "Where?", "tools": [WEATHER, CLOCK]}


def streamed(script: Script, engine: str = "vllm", **more: Any) -> list[dict[str, Any]]:
    translation = responses.translate(as_fields({**ASKED, "stream": True, **more}))
    return events_of(stream_of(translation, script.chunks(engine)))


def whole(script: Script, engine: str = "vllm", **more: Any) -> dict[str, Any]:
    translation = responses.translate(as_fields({**ASKED, **more}))
    document: dict[str, Any] = json.loads(translation.body(script.whole(engine)))
    return document


def without_ids(document: dict[str, Any]) -> dict[str, Any]:
    output = [{name: value for name, value in item.items() if name != "id"} for item in document["output"]]
    return {**document, "id": "", "output": output}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_every_event_is_of_the_vendors_type(script: Script, engine: str) -> None:
    events = streamed(script, engine)
    for number, event in enumerate(events):
        EVENT.validate_python(event)
        assert event["sequence_number"] == number
    Response.model_validate(whole(script, engine))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_streamed_and_whole_are_the_same_response(script: Script, engine: str) -> None:
    last = streamed(script, engine)[-1]
    assert without_ids(last["response"]) == without_ids(whole(script, engine))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
async def test_the_vendors_client_reads_all(script: Script, engine: str) -> None:
    async with openai_client(answering(responses.translate, script, engine)) as client:
        response = await client.responses.create(**ASKED)
        async with client.responses.stream(**ASKED) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response() if kinds[-1] == "response.completed" else None
    for found in (response, final):
        if found is None:
            assert script.finish == "length"
            continue
        assert found.output_text == script.text
        calls = [(item.call_id, item.name, item.arguments) for item in found.output if item.type == "function_call"]
        assert calls == script.calls
        thoughts = [item.content[0].text for item in found.output if item.type == "reasoning"]
        assert thoughts == [script.reasoning] * bool(script.reasoning)
        assert (found.usage.input_tokens, found.usage.output_tokens, found.usage.total_tokens) == (30, 12, 42)
        assert found.usage.output_tokens_details.reasoning_tokens == 5


def test_the_order_of_events() -> None:
    item, part = "response.output_item", "response.content_part"
    call = [f"{item}.added", *["response.function_call_arguments.delta"] * 5]
    call += ["response.function_call_arguments.done", f"{item}.done"]
    assert [event["type"] for event in streamed(EVERYTHING)] == [
        "response.created",
        "response.in_progress",
        *(f"{item}.added", f"{part}.added"),
        *["response.reasoning_text.delta"] * 3,
        *("response.reasoning_text.done", f"{part}.done", f"{item}.done"),
        *(f"{item}.added", f"{part}.added"),
        *["response.output_text.delta"] * 3,
        *("response.output_text.done", f"{part}.done", f"{item}.done"),
        *call,
        *(f"{item}.added", "response.function_call_arguments.delta", "response.function_call_arguments.done"),
        f"{item}.done",
        "response.completed",
    ]


def test_places_and_ids_hold_from_first_to_last() -> None:
    events = streamed(EVERYTHING)
    ids = {item["id"]: index for index, item in enumerate(events[-1]["response"]["output"])}
    assert len(ids) == 4
    for event in events:
        if "item_id" in event:
            assert ids[event["item_id"]] == event["output_index"]
        if event["type"] == "response.output_item.done":
            assert events[-1]["response"]["output"][event["output_index"]] == event["item"]
    core = core_of(events[0]["response"]["id"])
    assert core is not None
    assert [(core_of(name), index_of(name)) for name in ids] == [(core, index) for index in range(4)]
    assert {event["response"]["id"] for event in events if "response" in event} == {events[0]["response"]["id"]}
    assert streamed(PLAIN)[0]["response"]["id"] != streamed(PLAIN)[0]["response"]["id"]


def test_an_answer_cut_by_its_limit_is_incomplete() -> None:
    response = streamed(CUT)[-1]["response"]
    assert streamed(CUT)[-1]["type"] == "response.incomplete"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"
    assert streamed(PLAIN)[-1]["response"]["output"][0]["status"] == "completed"


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_an_answer_that_the_engine_gave_up_has_failed(finish: str) -> None:
    script = Script(text="Half", finish=finish)
    last = streamed(script)[-1]
    assert last["type"] == "response.failed"
    assert finish in last["response"]["error"]["message"]
    assert whole(script)["status"] == "failed"


def test_an_error_inside_the_stream_ends_it() -> None:
    translation = responses.translate(as_fields({**ASKED, "stream": True}))
    translation.event(PLAIN.chunks("vllm")[1])
    error = json.dumps({"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}}).encode()
    [failed] = events_of(translation.event(error))
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "out of memory"}
    assert translation.event(PLAIN.chunks("vllm")[2]) == translation.end() == translation.broken("late") == b""


def test_a_stream_that_breaks_off_has_failed() -> None:
    translation = responses.translate(as_fields({**ASKED, "stream": True}))
    for chunk in PLAIN.chunks("vllm")[:3]:
        translation.event(chunk)
    [failed] = events_of(translation.broken("the engine is gone"))
    EVENT.validate_python(failed)
    assert failed["response"]["error"]["message"] == "the engine is gone"
    assert failed["response"]["output"][0]["content"][0]["text"] == "The capi"


def test_a_stream_without_any_chunk_still_begins() -> None:
    translation = responses.translate(as_fields({**ASKED, "stream": True}))
    kinds = [event["type"] for event in events_of(translation.end())]
    assert kinds == ["response.created", "response.in_progress", "response.failed"]


def test_what_was_asked_is_repeated() -> None:
    asked = {
        "instructions": "Be brief.",
        "temperature": 0.5,
        "metadata": {"k": "v"},
        "max_output_tokens": 64,
        "reasoning": {"effort": "low"},
        "text": {"verbosity": "low"},
        "store": False,
        "user": "u",
    }
    response = whole(PLAIN, **asked)
    assert {name: response[name] for name in asked} == {
        **asked,
        "reasoning": {"effort": "low", "summary": None},
        "text": {"verbosity": "low", "format": {"type": "text"}},
    }
    assert response["tools"] == ASKED["tools"]
    assert response["created_at"] == 1795000000
    assert response["model"] == "policy"


def test_log_probabilities_come_with_their_text_when_asked_for() -> None:
    entry = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}
    chunks = [json.loads(chunk) for chunk in Script(text="Hi").chunks("vllm")]
    for chunk in chunks:
        if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
            chunk["choices"][0]["logprobs"] = {"content": [entry]}
    encoded = [json.dumps(chunk).encode() for chunk in chunks]
    for include, expected in ((["message.output_text.logprobs"], [entry]), ([], [])):
        translation = responses.translate(as_fields({**ASKED, "stream": True, "include": include}))
        events = events_of(stream_of(translation, encoded))
        assert [event["logprobs"] for event in events if event["type"].endswith("text.delta")] == [expected]
        assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == expected


def test_sealed_reasoning_comes_back_as_reasoning() -> None:
    item = whole(THINKING, include=["reasoning.encrypted_content"])["output"][0]
    assert item["encrypted_content"]
    kept = {name: item[name] for name in ("id", "type", "summary", "encrypted_content")}
    again = responses.translate(as_fields({**ASKED, "input": [kept, {"role": "user", "content": "So?"}]}))
    [thought, _] = json.loads(bytes(again.fields["messages"]))
    assert thought["reasoning"] == thought["reasoning_content"] == THINKING.reasoning
    assert "encrypted_content" not in whole(THINKING)["output"][0]


@pytest.mark.parametrize("engine", ENGINES)
def test_custom_tools_and_namespaces_keep_their_names(engine: str) -> None:
    tools = [
        {"type": "custom", "name": "patch", "format": {"type": "text"}},
        {"type": "namespace", "name": "crm", "description": "d", "tools": [{"type": "function", "name": "find"}]},
    ]
    text = 'line "1"\nline 2 — ü'
    calls = [("c1", "patch", json.dumps({"input": text})), ("c2", "crm__find", "{}"), ("c3", "patch", "bare")]
    script = Script(calls=calls, finish="tool_calls")
    events = streamed(script, engine, tools=tools)
    for event in events:
        EVENT.validate_python(event)
    custom, named, bare = events[-1]["response"]["output"]
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "patch", text)
    assert (named["type"], named["name"], named["namespace"]) == ("function_call", "find", "crm")
    assert bare["input"] == "bare"
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert deltas == [text, "bare"]


def test_a_call_without_an_id_gets_one() -> None:
    [item] = whole(Script(calls=[(None, "weather", "{}")], finish="tool_calls"))["output"]
    assert item["call_id"].isalnum()
    assert len(item["call_id"]) <= 40


@pytest.mark.parametrize(
    "delta",
    [
        {"tool_calls": [{"index": 0, "function": {"arguments": "more"}}]},
        {"tool_calls": [{"index": 2, "function": {"arguments": "{}"}}]},
    ],
)
def test_calls_that_cannot_be_told_apart_are_refused(delta: dict[str, Any]) -> None:
    translation = responses.translate(as_fields({**ASKED, "stream": True}))
    for chunk in CALLING.chunks("vllm"):
        translation.event(chunk)
    odd = {"model": "policy", "choices": [{"index": 0, "delta": delta}]}
    with pytest.raises(ValueError, match="tool call"):
        translation.event(json.dumps(odd).encode())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"too long","type":"BadRequestError","param":"input","code":400}}', "too long"),
        (b'{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}', "too long"),
        (b'{"detail":"too long"}', "too long"),
        (b"too long", "too long"),
        (b"", "the engine gave no reason"),
    ],
)
async def test_errors_are_in_the_vendors_form(body: bytes, message: str) -> None:
    async with openai_client(refusing(responses.translate, 400, body)) as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.responses.create(**ASKED)
    assert raised.value.body["message"] == message
    assert raised.value.type
    if body.startswith(b'{"error"'):
        assert raised.value.response.content == body
