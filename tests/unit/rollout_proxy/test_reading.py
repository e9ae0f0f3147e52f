"""Raw requests of every API as chat messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hintloop_rollout_proxy.apis.reading import chat_messages


def read(api: str, **body: Any) -> list[dict[str, Any]]:
    return chat_messages(api, json.dumps(body).encode())


def test_chat_messages_stay_as_they_are() -> None:
    given = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}, {"role": "x", "k": 1}]
    assert read("chat_completions", messages=[*given, "odd"]) == given


@pytest.mark.parametrize(("api", "member"), [("completions", "prompt"), ("generate", "text")])
def test_a_prompt_is_the_users_word(api: str, member: str) -> None:
    assert read(api, **{member: "Once"}) == [{"role": "user", "content": "Once"}]
    assert read(api, **{member: ["a", "b"]}) == [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert read(api, **{member: [1, 2]}) == read(api, input_ids=[1, 2]) == []


def test_results_are_tool_messages_and_what_has_no_chat_form_is_left_out() -> None:
    image = {"type": "input_image", "image_url": "u"}
    found = read(
        "responses",
        instructions="I",
        input=[
            {"type": "computer_call", "call_id": "x"},
            {"type": "item_reference", "id": "msg_1"},
            {"type": "function_call_output", "call_id": "c", "output": "r"},
            {"role": "user", "content": [image, {"type": "input_text", "text": "U"}]},
        ],
    )
    assert found == [
        {"role": "system", "content": "I"},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
        {"role": "user", "content": "U"},
    ]
    result = {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": [{"type": "image"}]}
    found = read("messages", system="S", messages=[{"role": "user", "content": [result]}])
    assert found == [
        {"role": "system", "content": "S"},
        {"role": "tool", "tool_call_id": "t", "content": "", "is_error": True},
    ]


@pytest.mark.parametrize("api", ["chat_completions", "completions", "generate", "responses", "messages"])
@pytest.mark.parametrize(
    "request_json",
    [
        b"",
        b"[1]",
        b"{}",
        b"[" * 100_000,
        b'{"messages": 3, "input": 3, "prompt": 3, "text": 3}',
        b'{"messages": [3, null], "input": [3, null, {"type": "function_call"}, {"type": ["x"]}], "system": 3}',
        b'{"messages": [{"role": "user", "content": 3}], "input": [{"role": "user", "content": 3}]}',
        b'{"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}], "input": [{"role": ["x"]}]}',
        b'{"input": [{"type": "reasoning", "content": [{"type": ["x"]}], "encrypted_content": 3}]}',
    ],
)
def test_nothing_raises(api: str, request_json: bytes) -> None:
    assert isinstance(chat_messages(api, request_json), list)
