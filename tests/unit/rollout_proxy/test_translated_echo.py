"""Whatever a model says: streamed and whole are the same, and an agent that echoes it gives the model its own words."""

from __future__ import annotations

import json
from typing import Any

from hintloop_rollout_proxy.apis import messages, responses
from hypothesis import given, settings
from hypothesis import strategies as st

from .scripted_answers import ENGINES, Script, as_fields, events_of, stream_of

TOOLS = ("weather", "clock")
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
arguments = st.dictionaries(words, st.one_of(words, st.integers(), st.none(), st.lists(words, max_size=2)), max_size=3)
scripts = st.builds(
    Script,
    reasoning=words,
    text=words,
    calls=st.lists(
        st.tuples(words.map(lambda word: f"call_{word}"), st.sampled_from(TOOLS), arguments.map(json.dumps)), max_size=3
    ),
    finish=st.sampled_from(["stop", "tool_calls", "length"]),
)


def said(script: Script) -> dict[str, Any]:
    """The chat message that the script is."""
    message: dict[str, Any] = {"role": "assistant", "content": script.text or (None if script.calls else "")}
    if script.reasoning:
        message |= {"reasoning": script.reasoning, "reasoning_content": script.reasoning}
    if script.calls:
        message["tool_calls"] = [(call_id, name, json.loads(text)) for call_id, name, text in script.calls]
    return message


def read_back(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with their calls in comparable form."""
    for message in found:
        if "tool_calls" in message:
            calls = [(call["id"], call["function"]) for call in message["tool_calls"]]
            message["tool_calls"] = [(name, f["name"], json.loads(f["arguments"])) for name, f in calls]
    return found


@settings(max_examples=60)
@given(scripts, st.sampled_from(ENGINES))
def test_responses(script: Script, engine: str) -> None:
    asked = {"model": "m", "input": "Go", "tools": [{"type": "function", "name": name} for name in TOOLS]}
    whole = json.loads(responses.translate(as_fields(asked)).body(script.whole(engine)))
    streaming = responses.translate(as_fields({**asked, "stream": True}))
    events = events_of(stream_of(streaming, script.chunks(engine)))
    last = events[-1]["response"]
    for mine, other in zip(whole["output"], last["output"], strict=True):
        assert {**mine, "id": ""} == {**other, "id": ""}
    assert (whole["status"], whole["usage"]) == (last["status"], last["usage"])
    texts = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert texts == script.text
    later = {"role": "user", "content": "So?"}
    echoing = responses.translate(as_fields({**asked, "input": [*whole["output"], later]}))
    *found, _ = read_back(json.loads(bytes(echoing.fields["messages"])))
    assert found == ([said(script)] if script.reasoning or script.text or script.calls else [])


@settings(max_examples=60)
@given(scripts, st.sampled_from(ENGINES))
def test_messages(script: Script, engine: str) -> None:
    user = {"role": "user", "content": "Go"}
    asked = {"model": "m", "max_tokens": 9, "messages": [user], "tools": [{"name": name} for name in TOOLS]}
    whole = json.loads(messages.translate(as_fields(asked)).body(script.whole(engine)))
    streaming = messages.translate(as_fields({**asked, "stream": True}))
    events = events_of(stream_of(streaming, script.chunks(engine)))
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            grow(blocks[-1], event["delta"])
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
    for mine, other in zip(whole["content"], blocks, strict=True):
        assert {**mine, "signature": ""} == {**other, "signature": ""}
    assert whole["stop_reason"] == events[-2]["delta"]["stop_reason"]
    echo = {"role": "assistant", "content": whole["content"]}
    echoing = messages.translate(as_fields({**asked, "messages": [user, echo, user]}))
    [_, found, _] = read_back(json.loads(bytes(echoing.fields["messages"])))
    assert found == said(script)


def grow(block: dict[str, Any], delta: dict[str, Any]) -> None:
    """What a client does with a delta."""
    kind = delta["type"]
    if kind == "input_json_delta":
        block["json"] += delta["partial_json"]
    elif kind == "signature_delta":
        block["signature"] = delta["signature"]
    else:
        name = kind.removesuffix("_delta")
        block[name] += delta[name]
